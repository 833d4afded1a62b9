"""What came of an acceptance plan: its runs, its cells, and the verdict on each claim."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Document, Real, Record, sha256_of
from .claim import Claim
from .errors import ErrorReport as ErrorReport
from .findings.statement import Location
from .plan import ScorerUse, Tolerance, Value

CellState = Literal["done", "invalid"]
ClaimState = Literal["holds", "fails", "not covered", "invalid"]
Pair = Literal["a-a", "b-b", "a-b"]
"""Which runs are compared: two of one side (its noise), or one of each."""


class Run(Record):
    """One finished run of one configuration: a line of the ledger."""

    kind: Literal["run"] = "run"
    key: str
    """Digest of everything that was stated for it, and the number of its launch."""
    launch: int
    """From 1. Each launch is a process of its own."""
    attempt: int = 1
    """Above 1: an earlier attempt was lost with its machine."""
    command: list[str]
    """What follows `rip`; without output and secrets."""
    trace: str | None = None
    """SHA-256 of its trace, which is its file name; absent: the run failed."""
    error: str | None = None
    """Why it failed."""
    started: str
    seconds: float
    header: str | None = None
    """SHA-256 of the trace's header."""
    environment: str | None = None
    """Root digest of the environment's fingerprint."""
    claimed: bool = False
    """The fingerprint holds hashes that were stated and not computed."""
    host: str | None = None
    node: str | None = None


class Numbers(Record):
    """How far two runs lie apart in numbers. Over steps with equal tokens before them."""

    max_abs: Real | None = None
    max_rel: Real | None = None
    same_ranks: int | None = None
    """At every step at least so many first candidates are the same, in order."""
    max_kl: Real | None = None
    of: Literal["logits", "logprobs"] | None = None
    steps: int = 0


class Score(Record):
    """What one scorer said of two runs."""

    agree: int = 0
    """Outputs of both runs that score the same."""
    of: int = 0
    unscored: int = 0
    """Outputs that could not be scored (no JSON, no number): they never agree."""
    judge_spread: Real | None = None
    """Of a judge that samples: share of its repeated scores of one output that disagree with one another."""


class Scored(Record):
    """One comparison of a cell, scored: a line of the ledger."""

    kind: Literal["score"] = "score"
    cell: str
    comparison: int
    """Index among those of the cell."""
    scorer: ScorerUse
    version: str
    """Of the scorer: outputs are scored again where it has changed."""
    score: Score

    @property
    def key(self) -> tuple[str, int, str]:
        """What is scored, by what."""
        return self.cell, self.comparison, sha256_of([self.scorer.model_dump(), self.version])


class Comparison(Record):
    """Two runs, compared."""

    pair: Pair
    launch_a: int
    launch_b: int
    sequences: int = 0
    sequences_diverging: int = 0
    rows: int = 0
    rows_differing: int = 0
    bitwise: Literal["equal", "differs", "not comparable"]
    token: Literal["equal", "differs", "not comparable"]
    numbers: Numbers = Numbers()
    first_token: Location | None = None
    first_site: Location | None = None
    causes: list[str] = []
    """Ids of the ranked causes."""
    result: str | None = None
    """Folder of the comparison, kept where something differs."""


class Invalid(Record):
    """Why a cell says nothing."""

    kind: Literal["run failed", "not as planned", "nothing compared", "not exercised"]
    side: Literal["a", "b"] | None = None
    name: str | None = None
    """Of the setting."""
    wanted: str | None = None
    found: str | None = None
    message: str | None = None
    """Of the run's error."""


class Cell(Record):
    """One finished cell: a line of the ledger."""

    kind: Literal["cell"] = "cell"
    id: str
    lane: str
    dimension: str
    value_a: Value | None = None
    value_b: Value | None = None
    runs_a: list[str] = []
    """Keys of its runs."""
    runs_b: list[str] = []
    state: CellState
    why: list[Invalid] = []
    """Of `invalid`."""
    resolved_a: str | None = None
    """What the engine says of the setting; absent: nothing."""
    resolved_b: str | None = None
    comparisons: list[Comparison] = []


class Bound(Record):
    """What `failures` of `of` bound the true rate to, from above, at 95 % (Clopper-Pearson, one-sided)."""

    failures: int
    of: int
    most: Real


class CellVerdict(Record):
    """What one cell says of one claim."""

    cell: str
    state: Literal["holds", "fails", "noise", "not comparable", "invalid"]
    """`noise`: a lane does not repeat itself, so nothing is said of the variable."""
    side: Literal["a", "b"] | None = None
    """Of `noise`: the side that does not repeat itself."""
    scorer: str | None = None
    p: Real | None = None
    """Of a failure that is not certain: its p-value after Holm's correction."""


class ClaimVerdict(Record):
    """The verdict on one claim."""

    id: str
    state: ClaimState
    control: bool = False
    card: Claim
    tolerance: Tolerance | None = None
    scorers: list[ScorerUse] = []
    cells: list[CellVerdict] = []
    bound: Bound | None = None
    """Of requests compared in cells that hold."""
    not_covered: list[str] = []
    """`lane/dimension` that the claim names and no finished cell has."""


class MatrixVerdict(Document):
    """The verdict of a plan."""

    KIND: ClassVar[str] = "matrix"

    tool_version: str
    created: str
    plan: str
    """SHA-256 of the plan as it was run."""
    requests: str
    """SHA-256 of the request set."""
    valid: bool
    """False: a negative control held, or there is none."""
    controls_planned: Annotated[int, Field(ge=0)]
    """Negative controls of the plan."""
    controls: Annotated[int, Field(ge=0)]
    """Those that failed, as they must."""
    claims: list[ClaimVerdict]
    cells: int
    cells_done: int
    cells_invalid: int
    not_covered: list[str] = []
    """Dimensions of the table that no cell varies."""
