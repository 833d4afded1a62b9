"""The verdict of a comparison: levels, first divergence, causes. Written as `summary.json`."""

from __future__ import annotations

from typing import ClassVar, Literal

from .base import Document, Real, Record
from .change import Change
from .claim import Level
from .zoom import Zoom

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
    max_abs_logprob_diff: Real | None = None
    """The same of their log-probabilities, nats; all there is where an engine gives no logits."""


class FirstLogprob(Record):
    """The first place where log-probabilities differ at all, whether or not the tokens do."""

    request_id: str
    sample: int
    step: int | None
    """Of the token that the distribution chose, among generated tokens; None inside the prompt."""
    position: int
    """Of that token."""
    max_abs_diff: Real
    """Largest difference there, nats: over the candidates that both sides list, and the chosen token."""


class FirstText(Record):
    """The first differing character of the first sequence that is compared as text and differs."""

    request_id: str
    sample: int
    character: int
    """Index in the generated text."""
    before: str
    """The end of what both sides have before it."""
    a: str
    """How A goes on; empty: it ends there."""
    b: str


class Proportion(Record):
    """A share with its Wilson 95 % interval."""

    count: int
    of: int
    share: float
    low: float
    high: float


class TraceAgreement(Record):
    """Whether the samples of each request agree with one another. Requests with one sample do not count."""

    samples: int
    """N: samples of a request, the fewest of any that counts."""
    most_samples: int
    """The most of any."""
    all_agree: Proportion
    """TARr@N: requests whose N raw outputs are all equal."""


class RequestAgreement(Record):
    """The outputs of one request in both traces."""

    request_id: str
    by: Literal["token ids", "text"]
    """What is compared between A and B: text where a side tells no token ids."""
    samples_a: int
    unique_a: int
    """Different outputs among them: of token ids where the trace has any, else of texts."""
    samples_b: int
    unique_b: int
    unique_both: int
    """Different outputs among all samples of A and B."""
    pairs: int
    """Samples that both have."""
    pairs_equal: int
    """Those where sample i of A equals sample i of B."""


class Agreement(Record):
    """How often outputs agree where requests ran several times: shares and intervals; nothing is tested."""

    a: TraceAgreement | None = None
    """Absent: no request of A has several samples."""
    b: TraceAgreement | None = None
    both: TraceAgreement | None = None
    """All samples of A and B together."""
    pairs: Proportion | None = None
    """Pairs (sample i of A, sample i of B) that are equal."""
    requests: list[RequestAgreement] = []
    notes: list[str] = []
    """What limits it, in sentences."""


class FirstSite(Record):
    """The first differing row in causal order: position ascending, then site in execution order.

    Where it is not finite, or of experts that a later token's routing moved: the module of its forward pass
    that ran first.
    """

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
    tells: str | None = None
    """How to read what that command gives: what confirms the cause, what refutes it."""


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


class ReferenceSite(Record):
    """How two sides lie to a reference at one site: distances compared row by row."""

    site: str
    """Its label; `logits` or `logprobs` for the distributions."""
    request_id: str
    sample: int
    position: int
    """From which on the ratio was taken, in the sequence where it shows best."""
    ratio: Real
    """Median over the rows of (B's distance) / (A's distance)."""
    low: Real
    """95 % interval of that median."""
    high: Real
    rows: int
    """Rows it was taken over."""


class Reference(Record):
    """Both sides beside a reference of a finer dtype: rounding, or one of them farther than it explains."""

    path: str
    verdict: Literal["as far as the dtype explains", "B is farther", "A is farther", "not judged"]
    sentence: str
    """The verdict with its numbers."""
    dtype_a: str
    """Of most of the compared rows; empty where only distributions were compared."""
    dtype_b: str
    dtype_reference: str
    expected_ratio: Real = 1.0
    """What the dtypes let expect of (B's distance) / (A's distance): the ratio of their epsilons."""
    rows: int
    """Positions that were compared."""
    covered: int
    """Positions at which A, B and the reference have equal tokens up to there."""
    sites: int
    sites_farther: int = 0
    first: ReferenceSite | None = None
    """The first site, in execution order, at which a side is farther."""
    separated: bool = False
    """There, half of the farther side's rows are farther than any row of the other side."""
    output: ReferenceSite | None = None
    """The last one."""
    repeats: int = 0
    """Traces of A's lane that noise was measured from."""
    notes: list[str] = []


class SurvivalPoint(Record):
    """How many sequences still agree: the Kaplan-Meier estimate."""

    step: int
    at_risk: int
    """Sequences that agreed up to this step and have it."""
    share: Real
    """That agree up to and including this step."""
    low: Real
    """95 % interval (Greenwood, on the log-log scale)."""
    high: Real


class DriftJump(Record):
    """The position at which drift leaves the range of all positions before it."""

    request_id: str
    sample: int
    position: int
    step: int | None = None
    """Absent: inside the prompt."""
    site: str
    """The first site, in execution order, whose own drift leaves its range there."""
    drift: Real
    """Of the watched site at this position."""
    before: Real
    """Its largest at the positions before."""


class Patterns(Record):
    """What many sequences show together."""

    sequences: int
    diverging: Proportion
    survival: list[SurvivalPoint] = []
    """At steps where sequences part, at most a dozen."""
    half_at: int | None = None
    """The first step at which at most half agree; absent: it never falls so low."""
    causes: dict[str, int] = {}
    """First-ranked cause of each diverging sequence: id and count."""
    not_diagnosed: int = 0
    """Diverging sequences whose cause was not looked for, because there are too many."""
    watched_site: str = ""
    """Whose drift is followed over the positions."""
    growth: Real | None = None
    """Its median drift in the last quarter of the positions, over that in the first quarter."""
    jumps: int = 0
    """Sequences in which it jumps."""
    jump: DriftJump | None = None
    """The largest; absent: drift grows steadily, or there is too little of it."""


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
    max_abs_logprob_diff: Real | None = None
    """Of log-probabilities, nats, likewise."""
    first_logprob: FirstLogprob | None = None
    """Absent: no log-probability is known to differ."""
    first_text: FirstText | None = None
    """Absent: no sequence was compared as text, or none of those differs."""
    agreement: Agreement | None = None
    """Absent: every request ran once, on engines that take a seed."""
    not_seen: list[str] = []
    """What the comparison could not see, in sentences."""
    reference: Reference | None = None
    """Absent: no reference trace was given."""
    patterns: Patterns | None = None
    """Absent: no sequence was compared by tokens."""
    zoom: Zoom | None = None
    """Absent: nobody asked for it (`--zoom`), or there is no difference to look at."""
    run_in: str | None = None
    """The folder in which `rip diverge` ran: paths here, and those in the commands of causes, start from it.
    Absent: written before it was recorded."""
