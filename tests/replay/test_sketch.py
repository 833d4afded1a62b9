"""The sketch estimates distances within its stated band; L2 and absmax hold at the edges of their range."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.row_summaries.row_hash_and_sketch import (
    absmax_rows_reference,
    bfloat16_values,
    estimate_distance,
    is_negative,
    l2_rows_reference,
    sketch_rows_reference,
)
from rip.replay.row_summaries.rows import RowSummaries
from rip.replay.row_summaries.summarise import summarise_tensor

LOW, HIGH = 0.7, 1.4
"""The band that 90 of 100 estimates, divided by the truth, must meet: at most 5 % on either side."""

PAIRS = 1500
SHARE = 0.05 + 2 * np.sqrt(0.05 * 0.95 / PAIRS)
"""5 %, and two standard errors of a share that is counted in so many pairs."""


def assert_in_band(estimate: np.ndarray, truth: np.ndarray) -> None:
    ratio = estimate[truth > 0] / truth[truth > 0]
    assert len(ratio) > 0.9 * PAIRS
    assert (ratio < LOW).mean() <= SHARE
    assert (ratio > HIGH).mean() <= SHARE


def drift(shape: str, width: int, random: np.random.Generator) -> np.ndarray:
    """Differences [PAIRS, width] of a kind that kernels produce; only their direction counts."""
    noise = random.standard_normal((PAIRS, width))
    if shape == "sparse":
        noise *= random.random((PAIRS, width)) < 8 / width
        noise[:, 0] += noise[:, 0] == 0
    if shape == "outlier-heavy":
        noise *= np.where(random.random((PAIRS, width)) < 0.01, 30, 1)
    return noise


def sketches(rows: np.ndarray) -> np.ndarray:
    """Of float32[PAIRS, width], as a replay computes them."""
    out = RowSummaries.empty(PAIRS, 1)
    summarise_tensor(torch.from_numpy(rows), out, 0, 0)
    return out.sketch[:, 0]


@pytest.mark.parametrize("shape", ["dense", "sparse", "outlier-heavy"])
@pytest.mark.parametrize("width", [576, 4096])
def test_the_estimate_stays_in_its_band(shape, width):
    random = np.random.default_rng(width)
    rows = random.standard_normal((PAIRS, width), np.float32)
    noise = drift(shape, width, random)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    for relative in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        drifted = (rows + noise * (relative * np.sqrt(width))).astype(np.float32)
        truth = np.linalg.norm(drifted.astype(np.float64) - rows, axis=1)
        assert_in_band(estimate_distance(sketches(drifted), sketches(rows)), truth)


def test_an_estimate_ten_per_cent_too_low_would_leave_the_band():
    rows = np.random.default_rng(3).standard_normal((PAIRS, 576), np.float32)
    truth = np.linalg.norm(rows.astype(np.float64), axis=1)
    estimate = estimate_distance(sketches(rows), np.zeros(16))
    assert_in_band(estimate, truth)
    with pytest.raises(AssertionError):
        assert_in_band(0.9 * estimate, truth)


def test_differing_elements_that_share_a_lane_may_cancel():
    """The sketch's known limit: a difference in few elements whose indices are equal modulo 16."""
    a, b = np.zeros((2, 1, 576))
    signs = np.where(is_negative(576), -1.0, 1.0)
    b[0, [3, 35]] = signs[3], -signs[35]
    assert estimate_distance(sketch_rows_reference(a), sketch_rows_reference(b))[0] == 0
    b[0, 35] *= -1
    assert estimate_distance(sketch_rows_reference(a), sketch_rows_reference(b))[0] == 2


def test_one_changed_bit_of_a_bfloat16_row_is_estimated_too():
    random = np.random.default_rng(1)
    bits = (random.standard_normal((PAIRS, 576)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    changed = bits.copy()
    changed[np.arange(PAIRS), random.integers(0, 576, PAIRS)] ^= 1
    a, b = bfloat16_values(bits), bfloat16_values(changed)
    truth = np.linalg.norm(a.astype(np.float64) - b, axis=1)
    assert_in_band(estimate_distance(sketch_rows_reference(a), sketch_rows_reference(b)), truth)


def test_the_estimate_compares_rows_of_two_dtypes():
    values = np.random.default_rng(2).standard_normal((200, 576)).astype(np.float32)
    rounded = bfloat16_values((values.view(np.uint32) >> 16).astype(np.uint16))
    truth = np.linalg.norm(values - rounded, axis=1)
    estimate = estimate_distance(
        sketch_rows_reference(values.astype(np.float64)), sketch_rows_reference(rounded)
    )
    assert 0.9 < np.median(estimate / truth) < 1.1


@given(st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_the_sketch_is_linear(width, seed):
    x, y = np.random.default_rng(seed).integers(-1000, 1000, (2, 1, width)).astype(np.float64)
    together = sketch_rows_reference(x + y)
    np.testing.assert_array_equal(together, sketch_rows_reference(x) + sketch_rows_reference(y))


def test_the_sketch_sees_a_permutation_that_leaves_the_norms_alone():
    row = np.arange(1.0, 65.0)[None]
    assert estimate_distance(sketch_rows_reference(row), sketch_rows_reference(row[:, ::-1]))[0] > 100
    assert l2_rows_reference(row) == l2_rows_reference(row[:, ::-1])


def test_minus_zero_has_no_distance_from_zero():
    zeros = np.zeros((1, 20), np.float32)
    assert estimate_distance(sketch_rows_reference(zeros), sketch_rows_reference(-zeros))[0] == 0
    assert sketch_rows_reference(-zeros).tobytes() == sketch_rows_reference(zeros).tobytes()


def test_nan_reaches_every_summary_as_the_canonical_nan():
    row = np.full((1, 16), 1.0, np.float32)
    row.view(np.uint32)[0, 3] = 0xFFC12345
    quiet = np.float32(np.nan).tobytes()
    assert sketch_rows_reference(row)[0, 3].tobytes() == quiet
    assert l2_rows_reference(row)[0].tobytes() == quiet
    assert absmax_rows_reference(row)[0].tobytes() == quiet
    assert np.isfinite(np.delete(sketch_rows_reference(row)[0], 3)).all()


def test_infinity_is_larger_than_every_number_and_smaller_than_nan():
    row = np.array([[1.0, -np.inf]], np.float32)
    assert absmax_rows_reference(row)[0] == np.inf
    assert l2_rows_reference(row)[0] == np.inf


@pytest.mark.parametrize("scale", [2.0**-126, 2.0**-100, 2.0**-50, 1.0, 2.0**50, 2.0**100])
def test_l2_neither_overflows_nor_underflows(scale):
    row = np.array([[3, 4, 0, 12]], np.float32) * np.float32(scale)
    assert l2_rows_reference(row)[0] == np.float32(13 * scale)


def test_absmax_and_l2_of_wide_numbers_round_to_float32():
    row = np.array([[1e300, 1.0]])
    assert absmax_rows_reference(row)[0] == np.inf
    assert l2_rows_reference(row)[0] == np.inf
    assert absmax_rows_reference(np.zeros((1, 0)))[0] == 0


def test_signs_are_balanced_and_longer_tables_begin_like_shorter_ones():
    assert 0.48 < is_negative(10_000).mean() < 0.52
    np.testing.assert_array_equal(is_negative(100), is_negative(10_000)[:100])
