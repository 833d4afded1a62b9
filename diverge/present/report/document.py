"""What a postmortem holds: one object, built once, that the HTML page and the Markdown text both show.

Texts in it are plain: whoever renders them escapes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ....schemas.verdict import Verdict
    from ..first_screen.screen import FirstScreen
    from .environment import WhereItRan
    from .patterns import Pattern
    from .pictures.drift import Drift
    from .pictures.step_charts import Plot
    from .reading.rows import Candidate, FirstLogits, LayerTotal, Pair, Recorded, SiteTotal, TokenRow
    from .reading.traces import ReportPaths, Source


@dataclass(frozen=True)
class Event:
    """One line of the timeline of evidence."""

    when: str
    """Wall-clock time, or step and position."""
    title: str
    detail: str
    source: str
    """Where it can be looked up: a table, a view or the header of a trace."""
    kind: str = ""
    """`run`, `numbers`, `origin`, `tokens` or `end`: colours the mark."""


@dataclass(frozen=True)
class Token:
    """One token of one side as it is shown."""

    position: int
    pieces: list[tuple[bool, str]]
    kind: str
    """Empty, `first` (the divergent one) or `other` (differs, later)."""

    @property
    def text(self) -> str:
        """All pieces together."""
        return "".join(text for _, text in self.pieces)


@dataclass(frozen=True)
class SideText:
    """One side's output in the stretches that are shown."""

    folded: list[Token]
    shown: list[Token]
    ends: bool
    """The output ends at the divergence."""


@dataclass(frozen=True)
class Outputs:
    """The tokens of one pair that are shown."""

    prompt: list[Token]
    prompt_left_out: int
    a: SideText
    b: SideText
    before_left_out: int
    after_left_out: int


@dataclass(frozen=True)
class Candidates:
    """The distributions of both sides at one step."""

    step: int
    note: str
    """What they are, and what the samplers saw."""
    shown: list[tuple[Candidate, list[tuple[bool, str]]]]
    """The top ones and the chosen ones, with their texts."""
    folded: list[tuple[Candidate, list[tuple[bool, str]]]]
    largest_logprob: float


@dataclass(frozen=True)
class MarginView:
    """Margin against difference, by step."""

    plot: Plot
    note: str
    close_steps: list[TokenRow]
    """The steps whose margin is closest to the difference, in order of steps."""
    title: str
    """Of these steps."""


@dataclass(frozen=True)
class PairView:
    """Everything that is shown of one pair."""

    pair: Pair
    name: str
    recorded: tuple[Recorded | None, Recorded | None]
    """What only the two traces hold of it; None where a trace was not read."""
    prompts_differ: bool
    first_logits: FirstLogits | None
    """The first token that was chosen from different logits."""
    sampling: str | None
    """The stated sampling fields."""
    outputs: Outputs
    close_call: str | None
    """What margin and difference at the divergence say together."""
    candidates: Candidates | None
    margins: MarginView | None
    drift: Drift | None
    layers: list[LayerTotal]
    """The heat map as a table: a row per layer."""
    no_drift_note: str
    """Why there is no heat map."""
    data: dict[str, Any]
    """For hovering."""


@dataclass(frozen=True)
class RuleGroup:
    """Fingerprint changes that one rule judges."""

    risk: str
    """`semantic at risk`, …"""
    rule: str
    replay: str | None
    sources: list[str]
    fields: list[tuple[str, str, str]]
    """Name, value in A, value in B."""


@dataclass(frozen=True)
class Proof:
    """What an experiment showed beyond the two traces: a zoom, a transplant, a reference."""

    title: str
    conclusion: str
    proven: bool
    rows: list[tuple[str, str]] = field(default_factory=list)
    """Facts by name."""
    lines: list[str] = field(default_factory=list)
    """What was seen, a line each."""
    tables: list[tuple[list[str], list[list[str]]]] = field(default_factory=list)
    """Headings and rows."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Appendix:
    """What a reader needs to check the document."""

    identities: list[tuple[str, str, str]]
    """Name, A, B."""
    envelopes: list[tuple[str, str, str]]
    """Request, digest of its envelope in A, in B."""
    commands: list[tuple[str, str]]
    """What for, command."""
    left_out: list[str]
    """What is in the result folder and not in this document."""


@dataclass(frozen=True)
class Postmortem:
    """The document."""

    title: str
    headline: str
    screen: FirstScreen
    runs: str
    """Which two were compared."""
    asked: dict[str, str]
    """Request id → first words of its prompt, where they are known."""
    glossary: list[tuple[str, str]]
    """Special terms that occur, with their meanings."""
    verdict: Verdict
    paths: ReportPaths
    sources: tuple[Source, Source]
    kind: str
    """What differences of distributions are of: `logit` or `logprob`."""
    facts: list[tuple[str, str, str]]
    """Name, A, B."""
    environment: WhereItRan
    extent: str
    """How much was compared."""
    timeline: list[Event]
    text_sides: list[tuple[str, str, str]] | None
    agreement: list[tuple[str, str, str]] | None
    unique_line: str | None
    proofs: list[Proof]
    patterns: list[Pattern]
    pairs: list[Pair]
    pair_count: int
    first_causes: dict[int, str]
    """Pair → its first-ranked cause; empty where none was diagnosed."""
    views: list[PairView]
    sites: list[SiteTotal]
    site_count: int
    rules: list[RuleGroup]
    change_count: int
    not_seen: list[str]
    findings: list[str]
    """From the headers of the traces."""
    appendix: Appendix
    has_text: bool
    """False: token ids stand for the text."""
