"""Rounding or regression: both sides beside a reference trace of a finer dtype (fp32 or fp64).

The basis is measured: the other side at the same site, row by row; the dtypes' epsilons where they differ;
and repeats of A's lane where they are given. How it decides: docs/reference.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...schemas.reference import Limit, NotJudged, Reference, ReferenceNote, ReferenceSite
from ..comparison.align import Pair
from ..reading.load import Trace
from . import stats
from .fitness import EPSILON, expected_ratio, main_dtypes, of_another_model, too_coarse
from .rows import Distances, read_distances

FEW = 3
"""Sequences below which a shift may be one sequence's own: then all of a side's typical rows must be beyond
every row of the other."""


@dataclass(frozen=True)
class Judged:
    """A reference's verdict and what its tables are made of."""

    verdict: Reference
    distances: Distances | None = None
    whole: stats.Shift | None = None
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
    if isinstance(found, NotJudged):
        return Judged(_not_judged(reference, found, ("", "", ""), len(noise)))
    dtypes = main_dtypes(found, (a.header, b.header, reference.header))
    why = of_another_model(a, b, reference) or too_coarse(dtypes)
    expected = math.log(expected_ratio(dtypes))
    low, high = np.full(len(found.labels), min(0.0, expected)), np.full(len(found.labels), max(0.0, expected))
    for repeat in found.noise:
        band = _band(stats.log_ratio(found.a, repeat), found.pair)
        low, high = low - band, high + band
    x = stats.log_ratio(found.a, found.b)
    if expected:
        # A row that the finer dtype computes exactly as the reference says nothing of its rounding.
        x[np.isinf(x)] = np.nan
    shifts = [
        stats.shift(x[chosen], found.pair[chosen], low, high)
        for chosen in (stats.last_part(found.pair, share) for share in stats.VIEWS)
    ]
    needed, most = stats.rows_needed(len(found.labels)), float(shifts[0].effective.max(initial=0))
    if why is None and most < needed:
        why = NotJudged(
            kind="too few rows",
            sequences=len(np.unique(found.pair)),
            independent=int(most),
            needed=int(needed),
        )
    if why is not None:
        return Judged(_not_judged(reference, why, dtypes, len(noise), found), found, shifts[0])
    farther = np.zeros(len(found.labels), np.int8)
    few = len(np.unique(found.pair)) < FEW
    for share, view in zip(reversed(stats.VIEWS), reversed(shifts), strict=True):  # the widest says last
        b_farther, a_farther = view.b_farther, view.a_farther
        if few:
            chosen = stats.last_part(found.pair, share)
            b_farther = b_farther & stats.apart(found.b[chosen], found.a)
            a_farther = a_farther & stats.apart(found.a[chosen], found.b)
        farther[a_farther], farther[b_farther] = -1, 1
    return Judged(
        _decide(found, reference, dtypes, shifts, farther, x, (low, high), len(noise)),
        found,
        shifts[0],
        farther,
    )


def _decide(
    found: Distances,
    reference: Trace,
    dtypes: tuple[str, str, str],
    shifts: list[stats.Shift],
    farther: np.ndarray,
    x: np.ndarray,
    explained: tuple[np.ndarray, np.ndarray],
    repeats: int,
) -> Reference:
    expected = expected_ratio(dtypes)
    output = _at(found, len(found.labels) - 1, shifts, 0, x, explained)
    first, separated = None, False
    verdict: Literal["as far as the dtype explains", "B is farther", "A is farther"]
    verdict = "as far as the dtype explains"
    if farther.any():
        site = int((farther != 0).argmax())
        sign = int(farther[site])
        view = next(i for i, one in enumerate(shifts) if (one.b_farther if sign > 0 else one.a_farther)[site])
        first = _at(found, site, shifts, view, x, explained, sign)
        verdict = "B is farther" if sign > 0 else "A is farther"
        chosen = stats.last_part(found.pair, stats.VIEWS[view])
        far, near = (found.b, found.a) if sign > 0 else (found.a, found.b)
        separated = bool(stats.apart(far[chosen, site : site + 1], near[:, site : site + 1])[0])
    single = None
    if first is None and (single := _single_row(found, expected)) is not None:
        verdict, first = single
    count = int(np.count_nonzero(farther == (1 if verdict == "B is farther" else -1)))
    return Reference(
        path=str(reference.path),
        verdict=verdict,
        dtype_a=dtypes[0],
        dtype_b=dtypes[1],
        dtype_reference=dtypes[2],
        expected_ratio=expected,
        rows=len(found.position),
        covered=found.covered,
        sites=len(found.labels),
        sites_farther=count,
        first=first,
        separated=separated,
        single_rows=single is not None,
        output=output,
        repeats=repeats,
        notes=_notes(found, repeats, dtypes),
    )


def _at(
    found: Distances,
    site: int,
    shifts: list[stats.Shift],
    view: int,
    x: np.ndarray,
    explained: tuple[np.ndarray, np.ndarray],
    sign: int = 0,
) -> ReferenceSite | None:
    """One site's ratio, and from where on it was taken."""
    chosen = np.flatnonzero(~np.isnan(x[:, site]))
    if not len(chosen) or not shifts[view].rows[site]:
        return None
    at = int(chosen[0])
    if sign:
        limit = float(explained[1][site] if sign > 0 else -explained[0][site])
        best = -math.inf
        for pair in np.unique(found.pair[chosen]):
            rows = chosen[found.pair[chosen] == pair]
            series = sign * x[rows, site]
            start = stats.onset(series, limit)
            mean = float(np.clip(series[start:], -50, 50).mean())
            if mean > best:
                best, at = mean, int(rows[start] if start else chosen[0])
    request_id, sample, _ = found.keys[int(found.pair[at])]
    shift = shifts[view]
    return ReferenceSite(
        site=found.labels[site],
        request_id=request_id,
        sample=sample,
        position=int(found.position[at]),
        ratio=float(shift.ratio[site]),
        low=float(shift.low[site]),
        high=float(shift.high[site]),
        rows=int(shift.rows[site]),
    )


def _single_row(
    found: Distances, expected: float
) -> tuple[Literal["A is farther", "B is farther"], ReferenceSite] | None:
    """The first site with a row of one side that is far beyond all rows of the other, if there is one."""
    for far, near, sign in (
        (found.b / max(expected, 1.0), np.vstack([found.a, *found.noise]), 1),
        (found.a * min(expected, 1.0), found.b, -1),
    ):
        beyond, rows = stats.outlier(far, near)
        if not beyond.any():
            continue
        site = int(beyond.argmax())
        row = int(rows[site])
        with np.errstate(over="ignore"):
            ratio = float((found.b if sign > 0 else found.a)[row, site] / np.nanmax(near[:, site])) ** sign
        request_id, sample, _ = found.keys[int(found.pair[row])]
        return ("B is farther" if sign > 0 else "A is farther"), ReferenceSite(
            site=found.labels[site],
            request_id=request_id,
            sample=sample,
            position=int(found.position[row]),
            ratio=ratio,
            low=ratio,
            high=ratio,
            rows=1,
        )
    return None


def _band(x: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """float64[S]: how far from 0 the log ratio of an equally good repeat lies, its interval included."""
    nothing = np.zeros(x.shape[1])
    shift = stats.shift(x, pair, nothing, nothing)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.fmax(np.abs(np.log(shift.low)), np.abs(np.log(shift.high)))
    return np.where(np.isfinite(ends), ends, 0.0)


def _notes(found: Distances, repeats: int, dtypes: tuple[str, str, str], judged: bool = True) -> list[Limit]:
    notes: list[Limit] = []
    if len(found.position) < found.covered:
        notes.append(ReferenceNote(kind="some positions", rows=len(found.position), covered=found.covered))
    known = {name for names in found.dtypes for name in names[:2] if name}
    if unknown := sorted(known - EPSILON.keys()):
        notes.append(ReferenceNote(kind="unknown dtypes", dtypes=unknown))
    if judged and len(np.unique(found.pair)) < FEW:
        notes.append(ReferenceNote(kind="few sequences"))
    if repeats:
        moved = [float(np.nanmax(gap, initial=0.0)) for gap in found.apart]
        equal = sum(gap == 0 for gap in moved)
        notes.append(ReferenceNote(kind="noise", repeats=repeats, equal=equal, largest=max(moved)))
    return notes


def _not_judged(
    reference: Trace,
    why: NotJudged,
    dtypes: tuple[str, str, str],
    repeats: int,
    found: Distances | None = None,
) -> Reference:
    return Reference(
        path=str(reference.path),
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
        notes=[] if found is None else _notes(found, repeats, dtypes, judged=False),
    )
