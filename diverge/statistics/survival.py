"""Survival of agreement: how many sequences still agree at a step (Kaplan-Meier)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...schemas.sequences import SurvivalPoint
from .intervals import Z_95, wilson_bounds


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
