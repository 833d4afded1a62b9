"""Survival of agreement (Kaplan-Meier), differences of shares (Newcombe), and jumps in a series of drifts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...schemas.sequences import SurvivalPoint
from ..comparison.agreement import Z_95

EARLIER = 8
"""Drifting rows before a jump: the range of fewer is too narrow to leave."""
SKETCH_WIDTH = math.log(1.30 / 0.71)
"""How wide, in logs, equal drifts look through the sketch: its measured 5th to 95th percentile."""


def survival(times: Sequence[tuple[int, bool]]) -> list[SurvivalPoint]:
    """The Kaplan-Meier curve of agreement, at the steps where sequences part.

    Args:
        times: For each sequence the step at which it parts and True, or how many generated tokens were equal
            and False: it ended, or was cut, without parting (censored).
    """
    parted = Counter(step for step, event in times if event)
    # A sequence of n equal tokens was at risk at steps 0 … n − 1, one that parts at n also at n.
    last = np.sort([step if event else step - 1 for step, event in times])
    share, spread = 1.0, 0.0
    curve: list[SurvivalPoint] = []
    for step in sorted(parted):
        at_risk, count = len(last) - int(np.searchsorted(last, step)), parted[step]
        share *= 1 - count / at_risk
        spread += count / (at_risk * (at_risk - count)) if at_risk > count else math.inf
        low, high = _log_log(share, spread)
        if not share:  # of n sequences all have parted: Wilson's bound for 0 of n
            high = Z_95**2 / (len(last) + Z_95**2)
        curve.append(SurvivalPoint(step=step, at_risk=at_risk, share=share, low=low, high=high))
    return curve


def _log_log(share: float, spread: float) -> tuple[float, float]:
    """Greenwood's 95 % interval on the log-log scale, which stays between 0 and 1."""
    if not 0 < share < 1 or not math.isfinite(spread):
        return share, share
    half = Z_95 * math.sqrt(spread) / math.log(share)
    return share ** math.exp(-half), share ** math.exp(half)


def half_life(curve: Sequence[SurvivalPoint]) -> int | None:
    """The first step at which at most half of the sequences agree."""
    return next((point.step for point in curve if point.share <= 0.5), None)


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
