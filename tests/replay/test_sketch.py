"""The sketch estimates distances within its stated band; L2 and absmax are right at the edges of the number range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.capture.sketch import (
    absmax_rows_reference,
    bfloat16_values,
    estimate_distance,
    is_negative,
    l2_rows_reference,
    sketch_rows_reference,
)

LOW, HIGH = 0.7, 1.4
PAIRS = 1500


def drift(shape: str, width: int, random: np.random.Generator) -> np.ndarray:
    """Unit-free differences [PAIRS, width] of a kind that kernels produce."""
    noise = random.standard_normal((PAIRS, width))
    if shape == "sparse":
        noise *= random.random((PAIRS, width)) < 8 / width
        noise[:, 0] += noise[:, 0] == 0
    if shape == "outliers":
        noise[:, random.choice(width, 6, replace=False)] *= 100
    return noise


@pytest.mark.parametrize("shape", ["dense", "sparse", "outliers"])
@pytest.mark.parametrize("width", [576, 4096])
@pytest.mark.parametrize("relative", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7])
def test_the_estimate_stays_in_its_band(shape, width, relative):
    random = np.random.default_rng(width)
    a = random.standard_normal((PAIRS, width))
    noise = drift(shape, width, random)
    scale = relative * np.linalg.norm(a, axis=1) / np.linalg.norm(noise, axis=1)
    a = a.astype(np.float32)
    b = (a + noise * scale[:, None]).astype(np.float32)
    truth = np.linalg.norm(a.astype(np.float64) - b, axis=1)
    sketches = [sketch_rows_reference(rows.astype(np.float64)) for rows in (a, b)]
    differing = truth > 0
    assert differing.mean() > 0.9
    ratio = estimate_distance(*sketches)[differing] / truth[differing]
    low, high = np.quantile(ratio, [0.05, 0.95])
    assert low >= LOW
    assert high <= HIGH


def test_one_changed_bit_of_a_bfloat16_row_is_estimated_too():
    random = np.random.default_rng(1)
    bits = (random.standard_normal((PAIRS, 576)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    changed = bits.copy()
    changed[np.arange(PAIRS), random.integers(0, 576, PAIRS)] ^= 1
    a, b = bfloat16_values(bits), bfloat16_values(changed)
    truth = np.linalg.norm(a.astype(np.float64) - b, axis=1)
    ratio = estimate_distance(sketch_rows_reference(a), sketch_rows_reference(b)) / truth
    low, high = np.quantile(ratio, [0.05, 0.95])
    assert low >= LOW
    assert high <= HIGH


def test_the_estimate_compares_rows_of_two_dtypes():
    values = np.random.default_rng(2).standard_normal((200, 576)).astype(np.float32)
    rounded = bfloat16_values((values.view(np.uint32) >> 16).astype(np.uint16))
    truth = np.linalg.norm(values - rounded, axis=1)
    estimate = estimate_distance(sketch_rows_reference(values.astype(np.float64)), sketch_rows_reference(rounded))
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
