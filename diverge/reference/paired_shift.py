"""Is one side farther from the reference than the other? Signs of paired, dependent rows at many sites.

x = ln(d_b / d_a), row by row, [N, S]. Of two sides that round equally well x is as often above 0 as below it,
whatever the size of the drift, so no threshold of drift is needed. Formulas: docs/reference.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from ..statistics import EARLIER, SKETCH_WIDTH, Z_95, wilson_bounds

ERROR = 0.05
"""Chance, over all sites and views together, of calling two equally good sides unequal."""
BEYOND_SCATTER = NormalDist().cdf(1.0)
"""Share of rows (0.84) on one side of 0 where the shift is as large as the scatter of single rows."""
VIEWS = (1.0, 0.5, 0.25, 0.125)
"""Which last part of every sequence is compared: a fault may begin late."""
_LAGS = 32
_LEAST_ROWS = 4
"""Rows of a sequence from which on it has a majority of its own."""


@dataclass(frozen=True)
class Shift:
    """How the sites of one view shift. All [S]."""

    rows: np.ndarray  # int64: rows with a known x
    effective: np.ndarray  # float64: independent rows that they are worth
    ratio: np.ndarray  # float64: median of d_b / d_a; NaN: no rows
    low: np.ndarray  # 95 % interval of that median
    high: np.ndarray
    b_farther: np.ndarray  # bool
    a_farther: np.ndarray  # bool


def log_ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float32[N, S]: ln(b / a); 0 where both are 0 or both infinite, NaN where one is not known."""
    unknown = np.isnan(a) | np.isnan(b)
    same = (a == b) & ~unknown
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log(b.astype(np.float64)) - np.log(a.astype(np.float64))
    x[same], x[unknown] = 0.0, np.nan
    return x.astype(np.float32)


def last_part(pair: np.ndarray, share: float) -> np.ndarray:
    """bool[N]: the last rows of every sequence; `pair` ascending."""
    _, first, count = np.unique(pair, return_index=True, return_counts=True)
    within = np.arange(len(pair)) - np.repeat(first, count)
    length = np.repeat(count, count)
    chosen: np.ndarray = within >= length - np.ceil(length * share)
    return chosen


def strictness(sites: int) -> float:
    """Standard deviations that a share must lie away from 1/2: Bonferroni over sites and views, two sides."""
    return NormalDist().inv_cdf(1 - ERROR / (2 * max(sites, 1) * len(VIEWS)))


def rows_needed(sites: int) -> int:
    """Effective rows below which no result could be distinguished from chance."""
    return int(strictness(sites) ** 2) + 1


def measure_shift(x: np.ndarray, pair: np.ndarray, low: np.ndarray, high: np.ndarray) -> Shift:
    """Judge the rows of one view.

    Args:
        x: float32[N, S], NaN: not known.
        pair: int32[N], ascending: rows of one sequence are not independent.
        low: float64[S]: the smallest x that is explained (0 for equal dtypes).
        high: The largest.
    """
    s = x.shape[1]
    known = ~np.isnan(x)
    rows = known.sum(axis=0)
    ordered = np.sort(x, axis=0)  # NaN last
    middle = _quantile(ordered, rows, np.full(s, 0.5))
    tau = _dependence(x, middle, pair)
    effective = np.where(rows > 0, rows / tau, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = 0.5 * Z_95 / np.sqrt(effective)
    ends = [_quantile(ordered, rows, np.clip(0.5 + sign * half, 0, 1)) for sign in (-1, 1)]
    above = _share(x > high, x == high, rows)
    below = _share(x < low, x == low, rows)
    everywhere = _everywhere(x, pair, low, high)
    plain = [
        (share >= BEYOND_SCATTER)
        & (wilson_bounds(share, np.maximum(effective, 1e-9), strictness(s))[0] > 0.5)
        for share in (above, below)
    ]
    with np.errstate(over="ignore"):
        return Shift(
            rows=rows,
            effective=effective,
            ratio=np.exp(middle),
            low=np.exp(ends[0]),
            high=np.exp(ends[1]),
            b_farther=plain[0] & everywhere[0],
            a_farther=plain[1] & everywhere[1],
        )


def onset(x: np.ndarray, limit: float) -> int:
    """Index from which on a series is shifted: the best split in two means; 0 where it is so throughout.

    Args:
        x: float32[n] of one sequence, without NaN.
        limit: What x reaches without a fault.
    """
    n = len(x)
    if n < 2:
        return 0
    bounded = np.clip(x.astype(np.float64), -50, 50)
    total = np.cumsum(bounded)
    k = np.arange(1, n)
    gain = (total[:-1] / k - (total[-1] - total[:-1]) / (n - k)) ** 2 * k * (n - k)
    at = int(gain.argmax()) + 1
    # The rows before must be unshifted, or there is no onset to name.
    return at if float(np.median(bounded[:at])) <= limit else 0


def _share(over: np.ndarray, ties: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """float64[S]: share of rows beyond a limit; a row on it counts half."""
    share: np.ndarray = (over.sum(axis=0) + 0.5 * ties.sum(axis=0)) / np.maximum(rows, 1)
    return share


def _everywhere(
    x: np.ndarray, pair: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """bool[S] each: most rows of every sequence lie above what is explained; below it.

    One early rounding that every later row attends to shifts its whole sequence; it does not shift all.
    """
    above, below = np.ones(x.shape[1], np.bool_), np.ones(x.shape[1], np.bool_)
    edges = [0, *(np.flatnonzero(np.diff(pair)) + 1).tolist(), len(pair)]
    for start, stop in pairwise(edges):
        rows = x[start:stop]
        known = np.count_nonzero(~np.isnan(rows), axis=0)
        enough = known >= _LEAST_ROWS
        above &= ~enough | (np.count_nonzero(rows > high, axis=0) > known / 2)
        below &= ~enough | (np.count_nonzero(rows < low, axis=0) > known / 2)
    return above, below


def is_clearly_farther(far: np.ndarray, near: np.ndarray) -> np.ndarray:
    """bool[S]: half of the rows of one side are farther than every row of the other."""
    rows = np.count_nonzero(~np.isnan(far), axis=0)
    middle = _quantile(np.sort(far, axis=0), rows, np.full(far.shape[1], 0.5))
    top = np.where(np.isnan(near), -np.inf, near).max(axis=0, initial=-np.inf)
    beyond: np.ndarray = middle > top
    return beyond


def outlier(far: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Single rows of one side beyond all rows of the other, by more than twice what those lie apart.

    Args:
        far: float32[N, S]: distances of the side that may have them.
        near: Of the other side.

    Returns:
        bool[S], and int64[S]: the row of its largest distance.
    """
    finite = np.where(np.isnan(near) | (near <= 0), np.nan, near)
    known = np.count_nonzero(~np.isnan(finite), axis=0)
    top = np.where(np.isnan(finite), -np.inf, finite).max(axis=0, initial=-np.inf)
    bottom = np.where(np.isnan(finite), np.inf, finite).min(axis=0, initial=np.inf)
    largest = np.where(np.isnan(far), -np.inf, far)
    with np.errstate(divide="ignore", invalid="ignore"):
        leap = np.log(largest.max(axis=0, initial=-np.inf) / top)
        beyond = leap > 2 * np.maximum(np.log(top / bottom), SKETCH_WIDTH)
    return beyond & (known >= EARLIER) & np.isfinite(top), largest.argmax(axis=0)


def _quantile(ordered: np.ndarray, rows: np.ndarray, share: np.ndarray) -> np.ndarray:
    """float64[S]: a quantile of each column's first `rows` values; NaN where there are none."""
    rank = share * np.maximum(rows - 1, 0)
    index = np.floor(rank).astype(np.int64)
    column = np.arange(ordered.shape[1])
    low = ordered[index, column].astype(np.float64)
    high = ordered[np.minimum(index + 1, np.maximum(rows - 1, 0)), column].astype(np.float64)
    with np.errstate(invalid="ignore"):
        found = np.where(low == high, low, low + (high - low) * (rank - index))
    return np.where(rows > 0, found, np.nan)


def _dependence(x: np.ndarray, middle: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """float64[S]: rows that are worth one independent row: 1 + 2 Σ ρ_k, up to the first ρ_k ≤ 0.

    ρ_k: correlation of the signs of x − median, k rows apart in a sequence. A difference between sequences
    counts as dependence, too.
    """
    centre = middle.astype(np.float32)
    signs = (x > centre).astype(np.float32) - (x < centre)
    tau, open_ = np.ones(x.shape[1]), np.ones(x.shape[1], np.bool_)
    for lag in range(1, min(_LAGS, len(x) - 1) + 1):
        same = pair[lag:] == pair[:-lag]
        if not same.any() or not open_.any():
            break
        one, other = signs[lag:][same], signs[:-lag][same]
        pairs = np.count_nonzero((one != 0) & (other != 0), axis=0)
        rho = np.einsum("ij,ij->j", one, other) / np.maximum(pairs, 1)
        open_ &= (rho > 0) & (pairs > 0)
        tau += np.where(open_, 2 * rho, 0)
    return tau
