"""Intervals, jumps and survival curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..schemas.sequences import Proportion, SurvivalPoint

Z_95 = 1.959963984540054
"""The 97.5th percentile of the standard normal distribution: 95 % lie between −Z and Z."""


def wilson(count: int, of: int) -> Proportion:
    """A share with its Wilson score interval at 95 %.

    Args:
        count: Successes.
        of: Trials, at least one.
    """
    low, high = wilson_bounds(count / of, of)
    return Proportion(count=count, of=of, share=count / of, low=float(low), high=float(high))


def wilson_bounds(
    share: np.ndarray | float, trials: np.ndarray | float, z: float = Z_95
) -> tuple[np.ndarray, np.ndarray]:
    """The Wilson score intervals of shares; source: Wilson 1927, J. Am. Stat. Assoc. 22, 209-212.

    Args:
        share: float64[N].
        trials: float64[N], above 0; not whole where trials are not independent.
        z: Half width in standard deviations.

    Returns:
        float64[N] and float64[N]: the lower and upper ends.
    """
    share, trials = np.asarray(share, np.float64), np.asarray(trials, np.float64)
    shrink = 1 + z**2 / trials
    middle = (share + z**2 / (2 * trials)) / shrink
    half = z / shrink * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    # By definition the ends of no and of all successes are 0 and 1; rounding leaves them beside that.
    low = np.where(share == 0, 0.0, np.maximum(0.0, middle - half))
    return low, np.where(share == 1, 1.0, np.minimum(1.0, middle + half))


def newcombe_bounds(
    count_1: np.ndarray | float,
    of_1: np.ndarray | float,
    count_2: np.ndarray | float,
    of_2: np.ndarray | float,
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of share 2 − share 1 from the two Wilson intervals.

    Source: Newcombe 1998, Statistics in Medicine 17, 873-890, method 10.
    """
    share_1, share_2 = np.divide(count_1, of_1), np.divide(count_2, of_2)
    (low_1, high_1), (low_2, high_2) = wilson_bounds(share_1, of_1), wilson_bounds(share_2, of_2)
    difference = share_2 - share_1
    return (
        difference - np.hypot(share_2 - low_2, high_1 - share_1),
        difference + np.hypot(high_2 - share_2, share_1 - low_1),
    )


EARLIER = 8
"""Drifting rows before a jump: the range of fewer is too narrow to leave."""
SKETCH_WIDTH = math.log(1.30 / 0.71)
"""How far apart, in logs, sketches estimate equal drifts: their measured 5th to 95th percentile."""


def jump_of(drift: np.ndarray) -> tuple[float, int] | None:
    """The largest leap of a series out of the range of everything before it.

    A row leaps where it lies above the largest earlier one by more than the earlier ones lie apart, on a log
    scale: steady growth, however fast, widens its own range as it goes.

    Args:
        drift: float32[n], positive and finite, in order of position.

    Returns:
        The log of (drift / largest earlier drift), and the index; None where no row leaps.
    """
    if len(drift) <= EARLIER:
        return None
    logs = np.log(drift.astype(np.float64))
    top, bottom = np.maximum.accumulate(logs)[:-1], np.minimum.accumulate(logs)[:-1]
    leap = logs[1:] - top
    leap[: EARLIER - 1] = -np.inf
    jumps = leap > np.maximum(top - bottom, SKETCH_WIDTH)
    if not jumps.any():
        return None
    at = int(np.where(jumps, leap, -np.inf).argmax())
    return float(leap[at]), at + 1


def leaves_range(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """bool[S]: sites that leap at a row by the same rule; one that had been equal leaps when it differs.

    Args:
        before: float32[n, S]: earlier drifts, 0 where equal.
        now: float32[S].
    """
    top = before.max(axis=0, initial=0.0)
    bottom = np.where(before > 0, before, np.inf).min(axis=0, initial=np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        leap = np.log(now / top) > np.maximum(np.log(top / bottom), SKETCH_WIDTH)
    moved: np.ndarray = (now > 0) & ((top == 0) | leap)
    return moved


def survival(times: Sequence[tuple[int, bool]]) -> list[SurvivalPoint]:
    """The Kaplan-Meier curve of agreement, at the steps where sequences diverge.

    Source: Kaplan and Meier 1958, J. Am. Stat. Assoc. 53, 457-481.

    Args:
        times: For each sequence the step at which it diverges and True, or how many generated tokens were
            equal and False: it ended, or was cut, without diverging (censored).
    """
    diverging = Counter(step for step, event in times if event)
    if not diverging:
        return []
    # A sequence of n equal tokens was at risk at steps 0 … n − 1, one that diverges at n also at n.
    last = np.sort([step if event else step - 1 for step, event in times])
    steps = np.array(sorted(diverging), np.int64)
    count = np.array([diverging[step] for step in steps.tolist()], np.float64)
    at_risk = len(last) - np.searchsorted(last, steps)
    with np.errstate(divide="ignore"):
        share = np.cumprod(1 - count / at_risk)
        spread = np.cumsum(count / (at_risk * (at_risk - count)))
    low, high = survival_bounds(share, spread, len(last))
    columns = zip(*(column.tolist() for column in (steps, at_risk, share, low, high)), strict=True)
    return [
        SurvivalPoint(step=step, at_risk=risk, share=value, low=bottom, high=top)
        for step, risk, value, bottom, top in columns
    ]


def survival_bounds(
    share: np.ndarray | float, spread: np.ndarray | float, sequences: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """95 % intervals on the log-log scale, which stay between 0 and 1.

    Source: Kalbfleisch and Prentice 1980, with Greenwood's variance.

    Args:
        share: float64[N]: Kaplan-Meier estimates. Of 0 the upper end is Wilson's of 0 of `sequences`.
        spread: float64[N]: Greenwood's sum of d / (n (n − d)).
        sequences: All of them, censored ones included.

    Returns:
        float64[N] and float64[N]: the lower and upper ends.
    """
    share, spread = np.asarray(share, np.float64), np.asarray(spread, np.float64)
    inside = (share > 0) & (share < 1) & np.isfinite(spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.exp(Z_95 * np.sqrt(spread) / np.log(share))
        low, high = share ** (1 / factor), share**factor
    none_left = wilson_bounds(0.0, sequences)[1]
    return np.where(inside, low, share), np.where(inside, high, np.where(share == 0, none_left, share))


def half_life(curve: Sequence[SurvivalPoint]) -> int | None:
    """The first step at which at most half of the sequences agree."""
    return next((point.step for point in curve if point.share <= 0.5), None)


def rate_without_failures(of: int) -> float:
    """The largest rate of failure that `of` trials without one are compatible with, at 95 %.

    One-sided; source: Clopper and Pearson 1934, Biometrika 26, 404-413, for no failures: 1 − 0.05^(1/n),
    about 3/n. Trials are taken as independent.
    """
    return float(1.0 - 0.05 ** (1.0 / of))
