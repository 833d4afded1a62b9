"""What a postmortem holds: one object, built once, that the HTML page and the Markdown text both show.

Texts in it are plain: whoever renders them escapes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ....schemas.verdict import Verdict
    from .drift import Drift
    from .environment import WhereItRan
    from .patterns import Pattern
    from .plot import Plot
    from .recorded import Recorded
    from .rows import Candidate, FirstLogits, LayerTotal, Pair, SiteTotal, TokenRow
    from .sources import Place, Source


@dataclass(frozen=True)
class Sentence:
    """One of the three sentences that open the document."""

    about: str
    """`What`, `Where` or `Why`."""
    text: str


@dataclass(frozen=True)
class NextStep:
    """What to do now."""

    text: str
    command: str | None = None
    tells: str | None = None
    """How to read what the command gives."""


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
class PairView:
    """Everything that is shown of one pair."""

    pair: Pair
    name: str
    prompt: list[Token]
    prompt_left_out: int
    a: SideText
    b: SideText
    before_left_out: int
    after_left_out: int
    recorded: tuple[Recorded | None, Recorded | None]
    """What the two traces themselves say of it; None where a trace was not read."""
    prompts_differ: bool
    first_logits: FirstLogits | None
    """The first token that was chosen from unlike logits."""
    candidates_at: int | None
    """Position of the token whose candidates are shown."""
    candidates: list[tuple[Candidate, list[tuple[bool, str]]]]
    """The likeliest ones and the chosen ones."""
    more_candidates: list[tuple[Candidate, list[tuple[bool, str]]]]
    """Folded."""
    sampler: str | None
    """What the samplers saw there, in a sentence."""
    sampling: str | None
    """The sampling fields that were stated, in a sentence."""
    largest_logprob: float
    close_call: str | None
    """What margin and drift at the divergence say together."""
    close_steps: list[TokenRow]
    """The steps whose margin is nearest to the drift, in order of steps."""
    moved_steps: int
    """All steps that could have been among them."""
    layers: list[LayerTotal]
    """The heat map in words: a row per layer."""
    plot: Plot | None
    drift: Drift | None
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
    """What makes the document checkable."""

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
    summary: list[Sentence]
    next_step: NextStep
    glossary: list[tuple[str, str]]
    """Special words that occur, with their meanings."""
    verdict: Verdict
    place: Place
    sources: tuple[Source, Source]
    kind: str
    """What differences of distributions are of: `logit` or `logprob`."""
    largest: float | None
    """Largest such difference."""
    facts: list[tuple[str, str, str]]
    """Name, A, B."""
    environment: WhereItRan
    timeline: list[Event]
    text_sides: list[tuple[str, str, str]] | None
    agreement: list[tuple[str, str, str]] | None
    unique_line: str | None
    proofs: list[Proof]
    patterns: list[Pattern]
    pairs: list[Pair]
    pair_count: int
    views: list[PairView]
    sites: list[SiteTotal]
    site_count: int
    rules: list[RuleGroup]
    change_count: int
    not_seen: list[str]
    findings: list[str]
    """Said by the traces themselves."""
    appendix: Appendix
    has_text: bool
    """False: token ids stand for the text."""
