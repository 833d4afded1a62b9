"""The verdict of a comparison: levels, first divergence, causes. Written as `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from .base import Document, JsonObject, Real, Record, Upgrade
from .change import Change
from .claim import Level
from .findings.evidence import Evidence
from .findings.experiments import Confirmation
from .findings.reasons import Reason
from .findings.statement import Command, Location, ModuleKind, Side
from .findings.unseen import EarlierRows, Missing, NotSeen
from .reference import Reference
from .sequences import Agreement, Patterns
from .trace import site_label
from .zoom import Zoom

State = Literal["holds", "fails", "not comparable", "not stated"]


class LevelVerdict(Record):
    """Whether one level holds, and if not, where it first fails."""

    state: State
    where: Location | None = None
    """The first place where it fails."""
    why: list[Reason] = []
    """For `not comparable` and `not stated`: the reasons. For `numeric`: the measured drift."""


class OfSequence(Record):
    """Something in one sequence."""

    request_id: str
    sample: int

    @property
    def sequence(self) -> tuple[str, int]:
        """What names the sequence."""
        return self.request_id, self.sample


class FirstToken(OfSequence):
    """The first divergent token of the sequence that says most: where tokens part at the earliest step, and
    not only because one side ended."""

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
    max_abs_logprob_diff: Real | None = None
    """The same of their log-probabilities, nats; all there is where an engine gives no logits."""
    max_abs_prob_diff: Real | None = None
    """The same of their probabilities, before temperature and filters."""
    sampled: list[Side] | None = None
    """The sides that chose the token by a random draw, as far as they say; the other was greedy.
    Absent: neither."""
    draw_a: Real | None = None
    """The draw, uniform in [0, 1); None: greedy, or not recorded."""
    draw_b: Real | None = None


class FirstLogprob(OfSequence):
    """The first place where log-probabilities differ at all, whether or not the tokens do."""

    step: int | None
    """Of the token that the distribution chose, among generated tokens; None inside the prompt."""
    position: int
    """Of that token."""
    max_abs_diff: Real
    """Largest difference there, nats: over the candidates that both sides list, and the chosen token."""


class FirstText(OfSequence):
    """The first differing character of the first sequence that is compared as text and differs."""

    character: int
    """Index in the generated text."""
    before: str
    """The end of what both sides have before it."""
    a: str
    """How A goes on; empty: it ends there."""
    b: str


class FirstSite(OfSequence):
    """The first differing row in causal order: position ascending, then site in execution order.

    Where it is not finite, or of experts that a later token's routing moved: the module of its forward pass
    that ran first.
    """

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
    unseen: list[EarlierRows] = []
    """Where `is_origin` is false: which earlier rows were not there to compare."""

    def label(self) -> str:
        """`layers.4.self_attn#1:attn`."""
        return site_label(self.site, self.occurrence, self.part)


Fault = Literal[
    "row relation",
    "constant",
    "experts",
    "token rows",
    "one channel",
    "rounding",
    "unknown",
    "single row",
    "some rows",
    "rows onward",
    "decoding",
    "configuration",
]
"""What is wrong with a module."""


class Subject(Record):
    """The module that a cause is about, and what is wrong with it."""

    site: str
    """Its label."""
    module: ModuleKind
    fault: Fault
    """`unknown`: beyond rounding, and nothing tells more. `rows onward`: all rows from `position` on."""
    position: int
    """Of the first differing row."""
    token: int
    """There."""
    equal_before: int = 0
    """Earlier rows of the site, all equal."""
    within_rounding: bool = False
    other_values: bool = False
    """Most of the row is something else: no loss of precision."""


class Place(Record):
    """Where a cause acts."""

    role: Literal["begins", "grows"]
    """`begins`: at the first differing row. `grows`: where the drift jumps beyond rounding."""
    site: str
    """Its label."""
    position: int
    rel_drift: Real | None = None
    ulps: Real | None = None
    """The same in ULP of the site's dtype; absent: not known."""
    within_rounding: bool | None = None
    """Absent: the drift is not known."""
    factor: Real | None = None
    """Of `grows`: the drift over the median of those of the sites before."""


Interpretation = Literal[
    "prompts part",
    "environment changed",
    "rows not finite",
    "same setting as A",
    "repeats at the same place",
    "repeats differ",
    "repeats choose",
    "ends the same",
    "state A's value",
    "fresh cache",
    "rows of one prefill",
    "forced tokens",
    "ratio over all positions",
    "other padding side",
    "module computes it otherwise",
]
"""How to read what a confirming command gives."""
_UNDO_NOTHING: frozenset[Interpretation] = frozenset(
    {"fresh cache", "repeats differ", "repeats at the same place", "repeats choose", "forced tokens"}
)
"""Of commands that run B as it was."""


class Cause(Record):
    """One possible cause, ranked by the verdict's order."""

    id: str
    label: str = ""
    """The cause in words, for readers; made from the rest."""
    subject: Subject | None = None
    """Absent: it is about no single module."""
    place: Place | None = None
    """Absent: the rows do not show where it acts, or it is about no rows."""
    evidence: list[Evidence]
    missing: list[Missing] = []
    """Evidence that was not there and would have helped."""
    confidence: Literal["high", "medium", "low"]
    confirm: Command | None = None
    """The rip command that would confirm or refute it."""
    interpretation: Interpretation | None = None
    """How to read what that command gives: what confirms the cause, what refutes it."""
    interpretation_text: str | None = None
    """The same in words, for readers; in a document of version 1 these are all there is."""
    confirmation: Confirmation | None = None
    """What `rip confirm` decided by experiment; absent: nobody ran it."""

    @property
    def has_experiment(self) -> bool:
        """Whether rip can run what would confirm it."""
        return self.confirm is not None and self.confirm.purpose == "rerun" and bool(self.confirm.argv)

    @property
    def needs_control(self) -> bool:
        """Whether its experiment undoes something of B, so that B as it was has to run again, too."""
        return self.interpretation not in _UNDO_NOTHING


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
    texts: int | None = None
    """Sequences compared as text only, because a side tells no token ids; not among `sequences`."""
    texts_differing: int | None = None


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


def _from_version_1(old: JsonObject) -> JsonObject:
    """Version 1 held sentences: each stands on, as data of the kind `sentence`."""

    def sentence(text: str) -> JsonObject:
        return {"kind": "sentence", "text": text}

    levels = {
        name: {
            **level,
            "where": None if level.get("where") is None else {"text": level["where"]},
            "why": [] if level.get("why") is None else [sentence(level["why"])],
        }
        for name, level in old.get("levels", {}).items()
    }
    site = old.get("first_site")
    if site is not None:
        site = {**site, "unseen": [] if site.get("unseen") is None else [sentence(site["unseen"])]}
    causes = []
    for cause in old.get("causes", []):
        confirm = cause.get("confirm")
        causes.append(
            {
                **{name: value for name, value in cause.items() if name != "tells"},
                "evidence": [sentence(text) for text in cause["evidence"]],
                "missing": [sentence(text) for text in cause.get("missing", [])],
                "confirm": None if confirm is None else {"purpose": "not known", "text": confirm},
                "interpretation_text": cause.get("tells"),
            }
        )
    new = {**old, "levels": levels, "first_site": site, "causes": causes}
    new["not_seen"] = [sentence(text) for text in old.get("not_seen", [])]
    for name in ("reference", "agreement"):
        if old.get(name) is not None:
            new[name] = {**old[name], "notes": [sentence(text) for text in old[name].get("notes", [])]}
    return new


def _from_version_2(old: JsonObject) -> JsonObject:
    """Version 2 held sentences of a zoom: each stands on, as data of the kind `sentence`."""
    zoom = old.get("zoom")
    if zoom is None:
        return old

    def sentence(text: str | None) -> JsonObject | None:
        return None if text is None else {"kind": "sentence", "text": text}

    new = {**zoom, "notes": [sentence(text) for text in zoom.get("notes", [])]}
    for side in ("a", "b"):
        where = zoom[side].get("where")
        new[side] = {**zoom[side], "where": None if where is None else {"text": where}}
    if (finding := zoom.get("finding")) is not None:
        kept = {name: value for name, value in finding.items() if name != "sentence"}
        new["finding"] = {**kept, "shows": sentence(finding["sentence"])}
    if (transplant := zoom.get("transplant")) is not None:
        new["transplant"] = {**transplant, "why": sentence(transplant.get("why"))}
    return {**old, "zoom": new}


class Verdict(Document):
    """The result of `rip diverge`."""

    KIND: ClassVar[str] = "verdict"
    VERSION: ClassVar[int] = 3
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _from_version_1, 2: _from_version_2}

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
    max_abs_logprob_diff: Real | None = None
    """Of log-probabilities, nats, likewise."""
    first_logprob: FirstLogprob | None = None
    """Absent: no log-probability is known to differ."""
    first_text: FirstText | None = None
    """Absent: no sequence was compared as text, or none of those differs."""
    agreement: Agreement | None = None
    """Absent: every request ran once, on engines that take a seed."""
    not_seen: list[NotSeen] = []
    """What the comparison could not see."""
    reference: Reference | None = None
    """Absent: no reference trace was given."""
    settings: list[str] | None = None
    """Names of the lanes' settings that differ, by what was observed, else by what was resolved.
    Absent: none, or written before it was recorded."""
    patterns: Patterns | None = None
    """Absent: no sequence was compared by tokens."""
    zoom: Zoom | None = None
    """Absent: nobody asked for it (`--zoom`), or there is no difference to look at."""
    together: Confirmation | None = None
    """What came of B with all causes undone (`rip confirm --all`); absent: it was not run."""
    run_in: str | None = None
    """The folder in which `rip diverge` ran: paths here, and those in the commands of causes, start from it.
    Absent: written before it was recorded."""
