"""Intervals and survival of agreement, against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.diverge.statistics import Z_95, newcombe_bounds, survival, survival_bounds, wilson, wilson_bounds
from scipy import stats

COUNTS = st.integers(1, 400).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))


def test_the_quantile_of_the_normal_distribution() -> None:
    assert pytest.approx(stats.norm.ppf(0.975), abs=1e-15) == Z_95


@given(COUNTS)
def test_wilson_intervals(counts: tuple[int, int]) -> None:
    expected = stats.binomtest(*counts).proportion_ci(0.95, method="wilson")
    found = wilson(*counts)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.share == counts[0] / counts[1]


@given(COUNTS, st.floats(0.5, 6))
def test_wilson_intervals_of_another_width(counts: tuple[int, int], z: float) -> None:
    confidence = 1 - 2 * float(stats.norm.sf(z))
    expected = stats.binomtest(*counts).proportion_ci(confidence, method="wilson")
    low, high = wilson_bounds(counts[0] / counts[1], counts[1], z)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-6)


@given(COUNTS, COUNTS)
def test_newcombe_intervals(one: tuple[int, int], other: tuple[int, int]) -> None:
    (low_1, high_1), (low_2, high_2) = (
        stats.binomtest(*counts).proportion_ci(0.95, method="wilson") for counts in (one, other)
    )
    share_1, share_2 = one[0] / one[1], other[0] / other[1]
    low, high = newcombe_bounds(*one, *other)
    assert low == pytest.approx(share_2 - share_1 - math.hypot(share_2 - low_2, high_1 - share_1), abs=1e-12)
    assert high == pytest.approx(share_2 - share_1 + math.hypot(high_2 - share_2, share_1 - low_1), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=40))
def test_survival_of_agreement(times: list[tuple[int, bool]]) -> None:
    """A sequence of n equal tokens has been seen to agree up to step n − 1: scipy is given that."""
    diverging = [step for step, event in times if event]
    censored = [step - 1 for step, event in times if not event]
    curve = survival(times)
    if not diverging:
        assert curve == []
        return
    expected = stats.ecdf(stats.CensoredData(uncensored=diverging, right=censored)).sf
    at = np.array([point.step for point in curve])
    assert [point.share for point in curve] == pytest.approx(expected.evaluate(at).tolist())
    ends = expected.confidence_interval(0.95, method="log-log")
    for name, function in (("low", ends.low), ("high", ends.high)):
        for point, value in zip(curve, function.evaluate(at), strict=True):
            if 0 < point.share < 1:
                assert getattr(point, name) == pytest.approx(float(value))
    if curve[-1].share == 0:
        assert curve[-1].high == pytest.approx(float(wilson_bounds(0.0, len(times))[1]))


def test_bounds_of_whole_columns() -> None:
    share, spread = np.array([0.9, 0.5, 0.0]), np.array([0.01, 0.1, np.inf])
    low, high = survival_bounds(share, spread, np.full(3, 10.0))
    assert (low[2], high[2]) == (0, pytest.approx(Z_95**2 / (10 + Z_95**2)))
    assert np.all(low <= share)
    assert np.all(share <= high)
