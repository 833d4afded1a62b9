"""What an experiment on a cause gave: runs compared with A and B, and what limits a decision."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..base import Real, Record
from .statement import Location, Side, Statement, Undone

By = Literal["rows", "logits", "logprobs", "tokens", "texts"]
"""The finest thing that was compared."""
Run = Literal["unchanged", "changed", "all undone", "the others undone", "repeated"]
"""`unchanged`: B again as it was. `changed`: with the cause undone. `all undone`: with those of all causes.
`the others undone`: of all causes but this. `repeated`: B as it was, several times."""


class RunCompared(Statement):
    """A new run, compared with A or B."""

    kind: Literal["run compared"] = "run compared"
    run: Run
    against: Side
    equal: bool
    by: By
    compared: int
    """How many of these."""
    undoes: list[Undone] = []
    """What was otherwise than B."""
    where: Location | None = None
    """The first difference; absent: there is none, or it has no place."""
    gone_at: Location | None = None
    """The place of the cause, where it differs: nothing differs there and before it."""


class RepeatsCompared(Statement):
    """Runs of one trace, compared with each other."""

    kind: Literal["repeats compared"] = "repeats compared"
    repeats: int
    requests: int
    differing: int
    """Requests whose repeats are not all equal."""


class NotAsAsked(Statement):
    """What the engine made of something that was asked for."""

    kind: Literal["not as asked"] = "not as asked"
    undone: Undone
    found: Any = None
    """Absent: the new trace does not tell."""


class LargestDrift(Statement):
    """With A's tokens forced: the largest logit difference, beside that at the step in question."""

    kind: Literal["largest drift"] = "largest drift"
    largest: Real
    there: Real


class BeyondRounding(Statement):
    """The drift of A and B is larger than rounding explains."""

    kind: Literal["beyond rounding"] = "beyond rounding"
    drift: Real
    """The largest of the compared rows, relative."""


class RunFailed(Statement):
    """A run that left no trace."""

    kind: Literal["run failed"] = "run failed"
    run: Run
    message: str


class Limit(Statement):
    """Why nothing is decided, or what is not proven."""

    kind: Literal["limit"] = "limit"
    what: Literal[
        "not repeated",
        "tokens only",
        "fewer rows",
        "nothing was changed",
        "same experiment as an earlier cause",
        "neither A nor B",
        "files changed together",
        "not compared",
    ]
    names: list[str] = []


ExperimentFinding = Annotated[
    RunCompared | RepeatsCompared | NotAsAsked | LargestDrift | BeyondRounding | RunFailed | Limit,
    Field(discriminator="kind"),
]


class Confirmation(Record):
    """What the confirming experiment of a cause decided."""

    state: Literal["confirmed", "refuted", "not decided"]
    """`confirmed`: with this undone, B's difference from A is gone. `refuted`: it changes nothing."""
    evidence: list[ExperimentFinding]
    undoes: list[Undone] = []
    argv: list[str] = []
    """The replay that was run, in the folder of the comparison (`run_in`)."""
    traces: list[str] = []
    """What was recorded: files in `folder`."""
    folder: str = ""
    seconds: float = 0.0
    """Of the runs that this decision took, as their traces tell."""
    created: str
    """UTC, ISO 8601."""
