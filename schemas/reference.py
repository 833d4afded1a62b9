"""The distances of two sides from a reference trace of a finer dtype."""

from __future__ import annotations

from typing import Literal

from .base import Real, Record


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
