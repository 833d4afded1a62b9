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

from ...schemas.reference import Reference, ReferenceSite
from ..comparison.align import Pair
from ..present.format import plural
from ..present.reference import sentence
from ..reading.load import Trace
from . import paired_shift
from .distances import Distances, read_distances
from .fitness import EPSILON, expected_ratio, main_dtypes, of_another_model, too_coarse

FEW = 3
"""Sequences below which a shift may be one sequence's own: then all of a side's typical rows must be beyond
every row of the other."""


@dataclass(frozen=True)
class Judged:
    """A reference's verdict and what its tables are made of."""

    verdict: Reference
    distances: Distances | None = None
    whole: paired_shift.Shift | None = None
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
    if isinstance(found, str):
        return Judged(_not_judged(reference, found, ("", "", ""), len(noise)))
    dtypes = main_dtypes(found, (a.header, b.header, reference.header))
    why = of_another_model(a, b, reference) or too_coarse(dtypes)
    expected = math.log(expected_ratio(dtypes))
    low, high = np.full(len(found.labels), min(0.0, expected)), np.full(len(found.labels), max(0.0, expected))
    for repeat in found.noise:
        band = _band(paired_shift.log_ratio(found.a, repeat), found.pair)
        low, high = low - band, high + band
    x = paired_shift.log_ratio(found.a, found.b)
    if expected:
        # A row that the finer dtype computes exactly as the reference says nothing of its rounding.
        x[np.isinf(x)] = np.nan
    shifts = [
        paired_shift.shift(x[chosen], found.pair[chosen], low, high)
        for chosen in (paired_shift.last_part(found.pair, share) for share in paired_shift.VIEWS)
    ]
    needed, most = paired_shift.rows_needed(len(found.labels)), float(shifts[0].effective.max(initial=0))
    if why is None and most < needed:
        why = (
            f"{plural(len(found.position), 'position')} of {plural(len(np.unique(found.pair)), 'sequence')} "
            f"are worth {int(most)} independent ones, and {needed} are needed for {len(found.labels)} sites; "
            "replay more or longer requests, or B with A's tokens forced (--mode golden-decode)"
        )
    if why is not None:
        return Judged(_not_judged(reference, why, dtypes, len(noise), found), found, shifts[0])
    farther = np.zeros(len(found.labels), np.int8)
    few = len(np.unique(found.pair)) < FEW
    for share, view in zip(reversed(paired_shift.VIEWS), reversed(shifts), strict=True):  # the widest says last
        b_farther, a_farther = view.b_farther, view.a_farther
        if few:
            chosen = paired_shift.last_part(found.pair, share)
            b_farther = b_farther & paired_shift.apart(found.b[chosen], found.a)
            a_farther = a_farther & paired_shift.apart(found.a[chosen], found.b)
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
    shifts: list[paired_shift.Shift],
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
        chosen = paired_shift.last_part(found.pair, paired_shift.VIEWS[view])
        far, near = (found.b, found.a) if sign > 0 else (found.a, found.b)
        separated = bool(paired_shift.apart(far[chosen, site : site + 1], near[:, site : site + 1])[0])
    single = None
    if first is None and (single := _single_row(found, expected)) is not None:
        verdict, first = single
    count = int(np.count_nonzero(farther == (1 if verdict == "B is farther" else -1)))
    return Reference(
        path=str(reference.path),
        verdict=verdict,
        sentence=sentence(
            verdict, first, output, count, len(found.labels), dtypes, expected, single is not None
        ),
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
        output=output,
        repeats=repeats,
        notes=_notes(found, repeats, dtypes),
    )


def _at(
    found: Distances,
    site: int,
    shifts: list[paired_shift.Shift],
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
            start = paired_shift.onset(series, limit)
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
        ratio=float(paired_shift.ratio[site]),
        low=float(paired_shift.low[site]),
        high=float(paired_shift.high[site]),
        rows=int(paired_shift.rows[site]),
    )


def _single_row(
    found: Distances, expected: float
) -> tuple[Literal["A is farther", "B is farther"], ReferenceSite] | None:
    """The first site with a row of one side that is far beyond all rows of the other, if there is one."""
    for far, near, sign in (
        (found.b / max(expected, 1.0), np.vstack([found.a, *found.noise]), 1),
        (found.a * min(expected, 1.0), found.b, -1),
    ):
        beyond, rows = paired_shift.outlier(far, near)
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
    shift = paired_shift.shift(x, pair, nothing, nothing)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.fmax(np.abs(np.log(paired_shift.low)), np.abs(np.log(paired_shift.high)))
    return np.where(np.isfinite(ends), ends, 0.0)


def _notes(found: Distances, repeats: int, dtypes: tuple[str, str, str], judged: bool = True) -> list[str]:
    notes: list[str] = []
    if len(found.position) < found.covered:
        notes.append(
            f"{len(found.position):,} of {found.covered:,} covered positions were read, evenly chosen"
        )
    known = {name for names in found.dtypes for name in names[:2] if name}
    if unknown := sorted(known - EPSILON.keys()):
        notes.append(f"no epsilon is known of {', '.join(unknown)}, so nothing is expected of the dtypes")
    if judged and len(np.unique(found.pair)) < FEW:
        notes.append(
            "few sequences: what belongs to one cannot be told from what belongs to a side, so only a shift "
            "beyond all rows of the other side counts; give more"
        )
    if repeats:
        moved = [float(np.nanmax(gap, initial=0.0)) for gap in found.apart]
        same = sum(gap == 0 for gap in moved)
        said = f"{same} of {repeats} repeats of A equal A" if same else "no repeat of A equals A"
        notes.append(f"noise: {said}; the largest distance between A and a repeat is {max(moved):.2g}")
    return notes


def _not_judged(
    reference: Trace, why: str, dtypes: tuple[str, str, str], repeats: int, found: Distances | None = None
) -> Reference:
    return Reference(
        path=str(reference.path),
        verdict="not judged",
        sentence=f"Neither side can be judged against the reference: {why}.",
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
