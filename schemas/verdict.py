"""The verdict of a comparison: levels, first divergence, causes. Written as `summary.json`."""

from __future__ import annotations

from typing import ClassVar, Literal

from .base import Document, Real, Record
from .change import Change
from .claim import Level

State = Literal["holds", "fails", "not comparable", "not stated"]


class LevelVerdict(Record):
    """Whether one level holds, and if not, where it first fails."""

    state: State
    where: str | None = None
    """The first place where it fails, in words: request, sample, position, site."""
    why: str | None = None
    """For `not comparable` and `not stated`: the reason. For `numeric`: the measured drift."""


class FirstToken(Record):
    """The first divergent token of the first (in causal order) sequence that diverges."""

    request_id: str
    sample: int
    step: int | None
    """Index among generated tokens; None inside the prompt."""
    position: int
    token_a: int | None
    """None: trace A ended before this position."""
    token_b: int | None
    margin_a: Real | None
    """Top-1 minus top-2 raw logit (or logprob, where an engine gives no logits) of the distribution
    that chose the token; None where it was not recorded."""
    margin_b: Real | None
    max_abs_logit_diff: Real | None
    """Over the token ids both top-K lists hold, in that distribution."""


class FirstSite(Record):
    """The first differing row in causal order: position ascending, then site in execution order."""

    request_id: str
    sample: int
    position: int
    site: str
    """Canonical module path, for example `layers.4.mlp.gate_proj`."""
    occurrence: int
    part: str
    """Empty, or the name of one of several tensors of the module."""
    rel_drift: Real | None
    """Sketch estimate of ‖a − b‖₂ / max(‖a‖₂, ‖b‖₂)."""
    is_origin: bool
    """True: every earlier row was present and equal, so the inputs of this module were equal."""
    unseen: str | None = None
    """Where `is_origin` is false: which earlier rows were not there to compare."""


class Cause(Record):
    """One possible cause, ranked by the verdict's order."""

    id: str
    label: str
    evidence: list[str]
    missing: list[str] = []
    """Evidence that was not there and would have helped."""
    confidence: Literal["high", "medium", "low"]
    confirm: str | None = None
    """The rip command that would confirm or refute it."""


class Compared(Record):
    """How much was compared. Nothing compared is never a pass."""

    sequences: int
    sequences_diverging: int
    positions: int
    """Rows with an equal token prefix, so comparable in numbers."""
    sites: int
    rows: int
    """(position, site) pairs compared by hash."""
    rows_differing: int


class TraceRef(Record):
    """Which trace was compared."""

    path: str
    sha256_of_header: str
    engine: str
    lane: str
    mode: str
    fingerprint: str | None
    """Root digest."""
    sites: int | None = None
    """Sites that the trace observed."""
    site_filter: str | None = None
    """The pattern they had to match; absent: all were observed."""


class Verdict(Document):
    """The result of `rip diverge`."""

    KIND: ClassVar[str] = "verdict"

    tool_version: str
    created: str
    a: TraceRef
    b: TraceRef
    level: Level | None
    """The strongest level that holds."""
    levels: dict[str, LevelVerdict]
    first_token: FirstToken | None
    first_site: FirstSite | None
    causes: list[Cause]
    changes: list[Change]
    compared: Compared
    max_abs_logit_diff: Real | None = None
    """Over all comparable positions."""
    not_seen: list[str] = []
    """What the comparison could not see, in sentences."""
