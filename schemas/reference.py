"""The distances of two sides from a reference trace of a finer dtype."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Real, Record
from .findings.statement import Sentence, Side, Statement


class ReferenceSite(Record):
    """Two sides' distances from a reference at one site, compared row by row."""

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


class NotJudged(Statement):
    """Why a reference cannot judge."""

    kind: Literal[
        "nothing shared",
        "no token ids",
        "different requests",
        "different tokens",
        "different model",
        "too coarse",
        "too few rows",
    ]
    """`nothing shared`: neither sites (with sketches of one kind) nor distributions. `no token ids`: A or B
    is text only. `too coarse`: its dtype is no finer than that of `coarser_than`. `too few rows`: its rows
    are worth fewer independent ones than are needed."""
    requests_a: list[str] = []
    """Of `different requests`: some of A's."""
    requests_reference: list[str] = []
    coarser_than: dict[Side, str] = {}
    """Sides whose dtype is as fine as the reference's, with that dtype."""
    dtype: str | None = None
    """The reference's own."""
    enough: str | None = None
    """A dtype that would do."""
    sequences: int | None = None
    independent: int | None = None
    """Rows as far as they are independent."""
    needed: int | None = None


class ReferenceNote(Statement):
    """What limits a comparison with a reference."""

    kind: Literal["some positions", "unknown dtypes", "few sequences", "noise"]
    """`some positions`: only some were read, evenly chosen. `noise`: what repeats of A's
    lane show."""
    rows: int | None = None
    """Of `some positions`: those that were read, …"""
    covered: int | None = None
    """… of so many."""
    dtypes: list[str] = []
    """Of `unknown dtypes`: those whose epsilon is not known."""
    repeats: int | None = None
    """Of `noise`."""
    equal: int | None = None
    """Of `noise`: repeats that equal A."""
    largest: Real | None = None
    """Largest relative distance between A and a repeat."""


Limit = Annotated[ReferenceNote | Sentence, Field(discriminator="kind")]
"""What limits a comparison with a reference."""


class Reference(Record):
    """Both sides beside a reference of a finer dtype: rounding, or one of them farther than it explains."""

    path: str
    verdict: Literal["as far as the dtype explains", "B is farther", "A is farther", "not judged"]
    sentence: str = ""
    """The verdict with its numbers, for readers; in a document of version 1 all that says why it could not
    judge."""
    why: NotJudged | None = None
    """Of `not judged`."""
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
    single_rows: bool | None = None
    """Only single rows are farther. Absent: in a document of version 1."""
    output: ReferenceSite | None = None
    """The last one."""
    repeats: int = 0
    """Traces of A's lane that noise was measured from."""
    notes: list[Limit] = []
