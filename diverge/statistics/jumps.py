"""Jumps in a series of drifts: a row that leaves the range of everything before it."""

from __future__ import annotations

import math

import numpy as np

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
