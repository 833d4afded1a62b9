"""Rounding or regression: both sides beside a reference trace of a finer dtype (fp32 or fp64).

The basis is measured: the other side at the same site, row by row; the dtypes' epsilons where they differ;
and repeats of A's lane where there are any. How it decides: docs/reference.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ...schemas.findings.statement import SIDES
from ...schemas.reference import Limit, NotJudged, Reference, ReferenceNote, ReferenceSite
from ...schemas.trace import TraceHeader
from ..comparison.align import Pair
from ..reading.load import Trace
from .distances import Distances, read_distances
from .paired_shift import (
    VIEWS,
    Shift,
    is_clearly_farther,
    last_part,
    log_ratio,
    measure_shift,
    onset,
    outlier,
    rows_needed,
)

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


FEW = 3
"""Sequences below which a shift may be one sequence's own: then all of a side's typical rows must be beyond
every row of the other."""

Farther = Literal["A is farther", "B is farther"]


@dataclass(frozen=True)
class Judged:
    """A reference's verdict and what its tables are made of."""

    verdict: Reference
    distances: Distances | None = None
    whole: Shift | None = None
    """Over all rows."""
    farther: np.ndarray | None = None
    """int8[S]: 1 where B is farther in some view, −1 where A is, else 0."""


def judge(pairs: Sequence[Pair], a: Trace, b: Trace, reference: Trace, noise: Sequence[Trace]) -> Judged:
    """Compare A and B with a reference.

    Args:
        pairs: The compared sequences.
        a: The trace A.
        b: The trace B.
        reference: Of a finer dtype than both, with A's tokens forced.
        noise: Repeats of A's lane: how much their distances differ from A's is no fault of B.

    Raises:
        BadInput: A trace is damaged.
    """
    found = read_distances(list(pairs), a, b, reference, list(noise))
    path = str(reference.path)
    if isinstance(found, NotJudged):
        return Judged(_not_judged(path, found, ("", "", ""), len(noise)))
    dtypes = main_dtypes(found, (a.header, b.header, reference.header))
    measured = _measure(found, dtypes)
    whole = measured.views[0]
    why = of_different_model(a, b, reference) or too_coarse(dtypes) or measured.too_few_rows()
    if why is not None:
        return Judged(_not_judged(path, why, dtypes, len(noise), found), found, whole)
    return Judged(_decide(measured, path), found, whole, measured.farther)


def _measure(found: Distances, dtypes: tuple[str, str, str]) -> _Measured:
    """The ratio of the distances row by row, what of it is explained, and the shift in every view."""
    expected = math.log(expected_ratio(dtypes))
    low, high = np.full(len(found.labels), min(0.0, expected)), np.full(len(found.labels), max(0.0, expected))
    for repeat in found.noise:
        band = _band(log_ratio(found.a, repeat), found.pair)
        low, high = low - band, high + band
    x = log_ratio(found.a, found.b)
    if expected:
        # A row that the finer dtype computes exactly as the reference says nothing of its rounding.
        x[np.isinf(x)] = np.nan
    parts = [last_part(found.pair, share) for share in VIEWS]
    views = [measure_shift(x[part], found.pair[part], low, high) for part in parts]
    return _Measured(found, dtypes, x, low, high, views)


@dataclass(frozen=True)
class _Measured:
    """What a verdict rests on: N rows, S sites."""

    distances: Distances
    dtypes: tuple[str, str, str]
    """Of A, B and the reference."""
    x: np.ndarray
    """float32[N, S]: ln(B's distance / A's distance)."""
    low: np.ndarray
    """float64[S]: the smallest x that is explained, …"""
    high: np.ndarray
    """… and the largest."""
    views: list[Shift]
    """In the order of `VIEWS`."""

    @cached_property
    def sequences(self) -> int:
        """Sequences that have rows."""
        return len(np.unique(self.distances.pair))

    def too_few_rows(self) -> NotJudged | None:
        """Why no result could be distinguished from chance, if so."""
        most = float(self.views[0].effective.max(initial=0))
        needed = rows_needed(len(self.distances.labels))
        if most >= needed:
            return None
        return NotJudged(
            kind="too few rows", sequences=self.sequences, independent=int(most), needed=int(needed)
        )

    @cached_property
    def farther(self) -> np.ndarray:
        """int8[S]: 1 where B is farther in some view, −1 where A is, else 0."""
        found = self.distances
        farther = np.zeros(len(found.labels), np.int8)
        for share, view in zip(reversed(VIEWS), reversed(self.views), strict=True):  # the widest decides last
            b_farther, a_farther = view.b_farther, view.a_farther
            if self.sequences < FEW:
                part = last_part(found.pair, share)
                b_farther = b_farther & is_clearly_farther(found.b[part], found.a)
                a_farther = a_farther & is_clearly_farther(found.a[part], found.b)
            farther[a_farther], farther[b_farther] = -1, 1
        return farther

    def separated(self, site: int, view: int, sign: int) -> bool:
        """Half of the farther side's rows are farther than any row of the other side."""
        found = self.distances
        far, near = (found.b, found.a) if sign > 0 else (found.a, found.b)
        rows = last_part(found.pair, VIEWS[view])
        return bool(is_clearly_farther(far[rows, site : site + 1], near[:, site : site + 1])[0])

    def at_site(self, site: int, view: int, sign: int = 0) -> ReferenceSite | None:
        """One site's ratio and where the shift begins; None without rows.

        Args:
            site: Index of the site.
            view: Index of the view that the ratio is of.
            sign: 1: B is farther there; −1: A is; 0: neither, so the first row stands for the beginning.
        """
        known, shift = np.flatnonzero(~np.isnan(self.x[:, site])), self.views[view]
        if not len(known) or not shift.rows[site]:
            return None
        row = self._begin(known, site, sign) if sign else int(known[0])
        ratio = float(shift.ratio[site]), float(shift.low[site]), float(shift.high[site])
        return _site(self.distances, site, row, int(shift.rows[site]), ratio)

    def _begin(self, known: np.ndarray, site: int, sign: int) -> int:
        """The row at which the shift begins, in the sequence where it is largest."""
        limit = float(self.high[site] if sign > 0 else -self.low[site])
        best, begin = -math.inf, int(known[0])
        pair = self.distances.pair[known]
        for number in np.unique(pair):
            rows = known[pair == number]
            series = sign * self.x[rows, site]
            start = onset(series, limit)
            mean = float(np.clip(series[start:], -50, 50).mean())
            if mean > best:
                best, begin = mean, int(rows[start] if start else known[0])
        return begin


def _site(
    found: Distances, site: int, row: int, rows: int, ratio: tuple[float, float, float]
) -> ReferenceSite:
    """A ratio (with the ends of its interval) of a site over `rows` rows from one row on."""
    request_id, sample, _ = found.keys[int(found.pair[row])]
    return ReferenceSite(
        site=found.labels[site],
        request_id=request_id,
        sample=sample,
        position=int(found.position[row]),
        ratio=ratio[0],
        low=ratio[1],
        high=ratio[2],
        rows=rows,
    )


def _decide(measured: _Measured, path: str) -> Reference:
    found, dtypes, farther = measured.distances, measured.dtypes, measured.farther
    expected, s = expected_ratio(dtypes), len(found.labels)
    first, separated = None, False
    verdict: Literal["as far as the dtype explains", "B is farther", "A is farther"]
    verdict = "as far as the dtype explains"
    single = None if farther.any() else _single_row(found, expected)
    if single is not None:
        verdict, first = single
    elif farther.any():
        site = int((farther != 0).argmax())
        sign = int(farther[site])
        verdict = "B is farther" if sign > 0 else "A is farther"
        sides = [one.b_farther if sign > 0 else one.a_farther for one in measured.views]
        view = next(index for index, side in enumerate(sides) if side[site])
        first, separated = measured.at_site(site, view, sign), measured.separated(site, view, sign)
    output = measured.at_site(s - 1, 0)
    count = int(np.count_nonzero(farther == (1 if verdict == "B is farther" else -1)))
    return Reference(
        path=path,
        verdict=verdict,
        dtype_a=dtypes[0],
        dtype_b=dtypes[1],
        dtype_reference=dtypes[2],
        expected_ratio=expected,
        rows=len(found.position),
        covered=found.covered,
        sites=s,
        sites_farther=count,
        first=first,
        separated=separated,
        single_rows=single is not None,
        output=output,
        repeats=len(found.noise),
        notes=_notes(found, dtypes),
    )


def _single_row(found: Distances, expected: float) -> tuple[Farther, ReferenceSite] | None:
    """The first site with a row of one side that is far beyond all rows of the other, if there is one."""
    for far, near, sign in (
        (found.b / max(expected, 1.0), np.vstack([found.a, *found.noise]), 1),
        (found.a * min(expected, 1.0), found.b, -1),
    ):
        beyond, rows = outlier(far, near)
        if not beyond.any():
            continue
        site = int(beyond.argmax())
        row = int(rows[site])
        with np.errstate(over="ignore"):
            ratio = float((found.b if sign > 0 else found.a)[row, site] / np.nanmax(near[:, site])) ** sign
        return ("B is farther" if sign > 0 else "A is farther"), _site(
            found, site, row, 1, (ratio, ratio, ratio)
        )
    return None


def _band(x: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """float64[S]: how far from 0 the log ratio of an equally good repeat lies, its interval included."""
    nothing = np.zeros(x.shape[1])
    shift = measure_shift(x, pair, nothing, nothing)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.fmax(np.abs(np.log(shift.low)), np.abs(np.log(shift.high)))
    return np.where(np.isfinite(ends), ends, 0.0)


def _notes(found: Distances, dtypes: tuple[str, str, str], judged: bool = True) -> list[Limit]:
    notes: list[Limit] = []
    if len(found.position) < found.covered:
        notes.append(ReferenceNote(kind="some positions", rows=len(found.position), covered=found.covered))
    known = {name for names in found.dtypes for name in names[:2] if name}
    if unknown := sorted(known - EPSILON.keys()):
        notes.append(ReferenceNote(kind="unknown dtypes", dtypes=unknown))
    if judged and len(np.unique(found.pair)) < FEW:
        notes.append(ReferenceNote(kind="few sequences"))
    if repeats := len(found.noise):
        largest = [float(np.nanmax(gap, initial=0.0)) for gap in found.is_clearly_farther]
        equal = sum(gap == 0 for gap in largest)
        notes.append(ReferenceNote(kind="noise", repeats=repeats, equal=equal, largest=max(largest)))
    return notes


def _not_judged(
    path: str, why: NotJudged, dtypes: tuple[str, str, str], repeats: int, found: Distances | None = None
) -> Reference:
    return Reference(
        path=path,
        verdict="not judged",
        why=why,
        dtype_a=dtypes[0],
        dtype_b=dtypes[1],
        dtype_reference=dtypes[2],
        expected_ratio=expected_ratio(dtypes),
        rows=0 if found is None else len(found.position),
        covered=0 if found is None else found.covered,
        sites=0 if found is None else len(found.labels),
        repeats=repeats,
        notes=[] if found is None else _notes(found, dtypes, judged=False),
    )
