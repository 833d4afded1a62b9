"""The rows that the report reads from a result folder, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """One compared pair of sequences, in short."""

    pair: int
    request_id: str
    sample: int
    positions: int
    prompt: int
    """Positions inside the prompt."""
    comparable: int
    """Positions whose tokens are equal up to and including them."""
    first_position: int | None
    """Position of the first divergent token; None where all are equal."""
    first_step: int | None
    token_a: int | None
    token_b: int | None
    rows_differing: int
    first_moved: int | None
    """Position of the first row that differs."""
    max_logit_diff: float | None
    rows_compared: int
    """Rows of it that were compared, by hash or by sketch."""
    causes: str | None
    """Ids of its causes, the first-ranked first; None: it was not looked at."""

    @property
    def sequence(self) -> tuple[str, int]:
        """What names the sequence."""
        return self.request_id, self.sample


@dataclass(frozen=True)
class TokenRow:
    """One position of a pair; the distribution is the one that chose this token."""

    position: int
    step: int | None
    token_a: int | None
    token_b: int | None
    equal: bool
    logprob_a: float | None
    logprob_b: float | None
    margin_a: float | None
    margin_b: float | None
    drift: float | None
    """Largest absolute logit difference (logprob, where there are no logits)."""


@dataclass(frozen=True)
class Candidate:
    """One candidate at a pair's first divergence, as both sides saw it."""

    token_id: int
    logit_a: float | None
    logit_b: float | None
    logprob_a: float | None
    logprob_b: float | None
    chosen_a: bool
    chosen_b: bool


@dataclass(frozen=True)
class SiteTotal:
    """One row of site_totals."""

    site: int
    name: str
    label: str
    part: str
    layer: int | None
    module: str
    dtype_a: str
    dtype_b: str
    compared: int
    differing: int
    by_sketch: bool
    first_pair: int | None
    first_position: int | None
    drift_p50: float | None
    drift_p95: float | None
    drift_max: float | None


@dataclass(frozen=True)
class LayerTotal:
    """What differs in one layer (or at one site outside the layers) of one pair."""

    name: str
    rows: int
    first_position: int
    drift_first: float | None
    """Largest at that position."""
    drift_max: float | None
    site_max: str
    """Label of the site where."""


@dataclass(frozen=True)
class Spread:
    """How the first difference of one pair spreads."""

    at_origin: int
    """Sites that differ at the position of the first differing row."""
    of_sites: int
    """Sites compared there."""
    next_position: int | None
    """The next position with a differing row."""
    at_next: int
    of_next: int
    last_label: str
    """The last site, in execution order, that was compared."""
    last_position: int | None
    """First position where it differs."""
    last_drift: float | None


@dataclass(frozen=True)
class FirstLogits:
    """The first token of a pair that was chosen from distributions which differ."""

    position: int
    step: int | None
    max_diff: float | None


@dataclass(frozen=True)
class Lengths:
    """How many tokens each side of a pair holds."""

    a: int
    b: int
    generated_a: int
    generated_b: int


@dataclass(frozen=True)
class Margins:
    """Margins and drift per bin of steps (a bin is one step where there is room)."""

    steps: list[int]
    """First step of each bin."""
    width: int
    """Steps in a bin."""
    margin_a: list[float | None]
    """Smallest in the bin."""
    margin_b: list[float | None]
    drift: list[float | None]
    """Largest in the bin."""


@dataclass(frozen=True)
class Rate:
    """How often the sequences of one group diverge."""

    dimension: str
    """`prompt_tokens`, `batch_size_b`, `step`, …"""
    value: str
    sequences: int
    diverging: int
    share: float
    low: float
    """95 % interval."""
    high: float


@dataclass(frozen=True)
class GroupDifference:
    """Two groups of sequences that diverge unequally often."""

    dimension: str
    value_1: str
    value_2: str
    diverging_1: int
    sequences_1: int
    diverging_2: int
    sequences_2: int
    difference: float
    """Share of the second minus share of the first."""
    low: float
    high: float
