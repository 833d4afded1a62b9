"""The rows that the report reads from a result folder, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....reading.load import DAMAGE, damaged

if TYPE_CHECKING:
    from ....reading.load import Trace
    from .traces import Source


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


@dataclass(frozen=True)
class Recorded:
    """One side of a pair, from its trace."""

    prompt: int
    """Tokens."""
    generated: int
    """Tokens."""
    seen: dict[str, Any] | None
    """What the sampler used at the requested position: top1_id, top1_logit, draw; None: not recorded."""


def recorded(source: Source, pair: Pair, position: int | None) -> Recorded | None:
    """Read one sequence's small columns, a row group at a time.

    Args:
        source: The side.
        pair: Which sequence.
        position: Of the token whose choice is shown; None: of none.

    Returns:
        None where the trace is not there, or holds not exactly one such sequence (cells may share a name).

    Raises:
        BadInput: The trace is damaged.
    """
    if source.trace is None:
        return None
    steps: list[int | None] = []
    numbers: set[int] = set()
    seen = None
    for row in _rows(source.trace, pair):
        numbers.add(row["sequence"])
        steps.append(row["step"])
        if position is not None and row["position"] == position - 1:  # a row holds what chose the next token
            seen = row.get("sampler")
    if len(numbers) != 1:
        return None
    generated = sum(step is not None for step in steps)
    return Recorded(len(steps) - generated, generated, seen)


def _rows(trace: Trace, pair: Pair) -> Iterator[dict[str, Any]]:
    """Sequence number, position, step and what the sampler saw, for every row of a request's sample."""
    import pyarrow.compute as pc

    for part in trace.files:
        columns = ["sequence", "position", "step", *({"sampler"} & set(part.file.schema_arrow.names))]
        try:
            for group in range(part.file.num_row_groups):
                keys = part.file.read_row_group(group, columns=["request_id", "sample"])
                ours = pc.and_(
                    pc.equal(keys["request_id"].cast("string"), pair.request_id),
                    pc.equal(keys["sample"], pair.sample),
                )
                if not pc.any(ours).as_py():
                    continue  # the other columns of this group are not decoded
                yield from part.file.read_row_group(group, columns=columns).filter(ours).to_pylist()
        except DAMAGE as error:
            raise damaged(part.path, error) from None
