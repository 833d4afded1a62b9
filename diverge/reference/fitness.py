"""Can a trace be the reference of two others? Its dtype, its model, the ratio that the dtypes imply."""

from __future__ import annotations

from collections import Counter

from ...schemas.findings.statement import SIDES
from ...schemas.reference import NotJudged
from ...schemas.trace import TraceHeader
from ..reading.load import Trace
from .distances import Distances

EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "tfloat32": 2.0**-10,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""Distance from 1 to the next number of a dtype."""


def main_dtypes(
    found: Distances, headers: tuple[TraceHeader, TraceHeader, TraceHeader]
) -> tuple[str, str, str]:
    """The dtype of most rows of A, B and the reference; without sites, as the lanes state."""
    rows = [names for names in found.dtypes if all(names)]
    if rows:
        a, b, r = (Counter(side).most_common(1)[0][0] for side in zip(*rows, strict=True))
        return a, b, r
    stated = [header.lane.settings.get("dtype") for header in headers]
    a, b, r = (
        "" if one is None else str(one.resolved if one.observed is None else one.observed) for one in stated
    )
    return a, b, r


def too_coarse(dtypes: tuple[str, str, str]) -> NotJudged | None:
    """Why a reference of this dtype cannot measure rounding, if so."""
    a, b, reference = (EPSILON.get(name) for name in dtypes)
    if reference is None:
        return None
    sides = zip(SIDES, dtypes, (a, b), strict=False)
    coarse = {side: name for side, name, own in sides if own and own <= reference}
    if not coarse:
        return None
    finest = min(own for own in (a, b) if own)
    enough = "float32" if EPSILON["float32"] < finest else "float64"
    return NotJudged(kind="too coarse", coarser_than=coarse, dtype=dtypes[2], enough=enough)


def of_different_model(a: Trace, b: Trace, reference: Trace) -> NotJudged | None:
    """Why not, where its model differs: equal distances of both sides would pass for rounding."""
    known: list[object] = []
    for header in (a.header, b.header, reference.header):
        fact = None if header.fingerprint is None else header.fingerprint.get("model", "sha256")
        known.append(None if fact is None or fact.unavailable is not None else fact.value)
    if None in known or known[2] in known[:2]:
        return None
    return NotJudged(kind="different model")


def expected_ratio(dtypes: tuple[str, str, str]) -> float:
    """B's epsilon over A's; 1 where one is not known."""
    a, b = EPSILON.get(dtypes[0]), EPSILON.get(dtypes[1])
    return 1.0 if a is None or b is None else b / a
