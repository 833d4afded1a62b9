"""What many sequences show together: how samples agree, how long sequences do, how their drift grows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Real, Record
from .findings.statement import Sentence, Statement


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
    """What is compared between A and B: text where a side has no token ids."""
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


class AgreementNote(Statement):
    """What limits an agreement."""

    kind: Literal["forced", "unfinished", "own seeds", "one sample"]
    """`own seeds`: the n samples of a request run on seeds of their own, so they differ by design."""
    trace: str | None = None
    """File name of the trace whose outputs are not counted; absent: it is about both."""
    requests: int | None = None
    """Of `own seeds`."""


AgreementLimit = Annotated[AgreementNote | Sentence, Field(discriminator="kind")]
"""What limits an agreement."""


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
    notes: list[AgreementLimit] = []
    """What limits it."""


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


Damage = Literal["tokens part", "rows differ"]
"""What makes a sequence a damaged one."""


class Property(Record):
    """What damaged sequences may have in common."""

    kind: Literal[
        "prompt length modulo",
        "batch row",
        "neighbour",
        "begins at the last prompt row",
        "begins at a position modulo",
    ]
    modulus: int | None = None
    value: str = ""
    """The remainder, the row, or the name of the neighbour."""


class Dependence(Record):
    """A property that goes with damage, by an exact test that counts how many properties were tried."""

    property: Property
    damage: Damage
    having: Proportion
    """Damaged ones of the sequences with it; of a beginning, those that begin so of all damaged ones."""
    others: Proportion | None = None
    """Damaged ones of the sequences without it."""
    spared: list[str] = []
    """Counter-examples: sequences with it that are not damaged, the first few."""
    exceptions: list[str] = []
    """Counter-examples: damaged ones without it, the first few."""


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
    """Diverging sequences that were not diagnosed, because there are too many."""
    watched_site: str = ""
    """Whose drift is followed over the positions."""
    growth: Real | None = None
    """Its median drift in the last quarter of the positions, over that in the first quarter."""
    jumps: int = 0
    """Sequences in which it jumps."""
    jump: DriftJump | None = None
    """The largest; absent: drift grows steadily, or there is too little of it."""
    dependence: Dependence | None = None
    """What damage goes with; absent: nothing that chance does not explain."""
