"""95 % intervals of shares (Wilson) and of their differences (Newcombe)."""

from __future__ import annotations

import numpy as np

from ...schemas.sequences import Proportion

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
