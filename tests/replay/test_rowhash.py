"""The row hash tells apart what it must, and equals what docs/row-summaries.md says."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.row_summaries.row_hash_and_sketch import (
    ROW_HASH_NAME,
    SKETCH_NAME,
    absmax_rows_reference,
    bfloat16_values,
    digests,
    hash_keys,
    hash_rows_reference,
    l2_rows_reference,
    sketch_rows_reference,
)

SPECIFICATION = Path(__file__).parents[2] / "docs" / "row-summaries.md"
NUMPY_DTYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8", "int8": "<i1"}


def hash_of(row: np.ndarray) -> bytes:
    bits = np.frombuffer(row.tobytes(), np.uint8)[None]
    return digests(hash_rows_reference(bits))[0].tobytes()


def xor_fold(row: np.ndarray) -> int:
    """What some tools use in place of a hash: the negative control."""
    return int(np.bitwise_xor.reduce(row.view(f"u{row.itemsize}")))


def l1_norm(row: np.ndarray) -> float:
    """Another one."""
    return float(np.abs(row.astype(np.float64)).sum())


floats = st.floats(-100, 100, width=16).filter(lambda value: abs(value) > 0.01)
rows = st.lists(floats, min_size=2, max_size=80, unique=True).map(lambda values: np.array(values, np.float16))


@given(st.integers(2, 80), st.integers(0, 2**32 - 1))
def test_a_permuted_row_differs_and_the_naive_summaries_miss_it(width, seed):
    row = np.arange(1, width + 1, dtype=np.float16)
    permuted = np.random.default_rng(seed).permutation(row)
    assert (hash_of(permuted) == hash_of(row)) == bool((permuted == row).all())
    assert xor_fold(permuted) == xor_fold(row)
    assert l1_norm(permuted) == l1_norm(row)


@given(rows, st.data())
def test_a_swapped_pair_differs(row, data):
    i, j = data.draw(st.lists(st.integers(0, len(row) - 1), min_size=2, max_size=2, unique=True))
    swapped = row.copy()
    swapped[[i, j]] = row[[j, i]]
    assert hash_of(swapped) != hash_of(row)


@given(rows, st.data())
def test_flipped_signs_differ_and_the_l1_norm_misses_them(row, data):
    flipped = row.copy()
    flipped[data.draw(st.lists(st.integers(0, len(row) - 1), min_size=1, unique=True))] *= -1
    assert hash_of(flipped) != hash_of(row)
    assert l1_norm(flipped) == l1_norm(row)


@given(st.sampled_from(["<f2", "<f4", "<f8"]), st.integers(2, 65))
def test_an_even_number_of_flipped_signs_differs_and_the_xor_fold_misses_it(dtype, width):
    row = np.linspace(1, 2, width, dtype=dtype)
    flipped = row.copy()
    flipped[[0, -1]] *= -1
    assert hash_of(flipped) != hash_of(row)
    assert xor_fold(flipped) == xor_fold(row)


@given(rows, st.data())
def test_one_unit_in_the_last_place_differs(row, data):
    changed = row.copy()
    i = data.draw(st.integers(0, len(row) - 1))
    changed[i] = np.nextafter(row[i], np.float16(np.inf))
    assert hash_of(changed) != hash_of(row)


@given(rows, st.integers(1, 9))
def test_a_row_extended_by_zeros_differs(row, extra):
    assert hash_of(np.concatenate([row, np.zeros(extra, row.dtype)])) != hash_of(row)


def test_an_equal_pair_added_twice_differs_and_the_xor_fold_misses_it():
    row = np.array([1, 2, 3, 3], np.float32)
    other = np.array([1, 2, 7, 7], np.float32)
    assert hash_of(row) != hash_of(other)
    assert xor_fold(row) == xor_fold(other)
    assert xor_fold(np.zeros(8, np.float32)) == xor_fold(np.ones(8, np.float32))


@given(rows)
def test_equal_rows_are_equal_wherever_they_stand(row):
    batch = np.stack([row[::-1], row, row * 2, row])
    halves = hash_rows_reference(np.ascontiguousarray(batch).view(np.uint8))
    assert halves[1].tolist() == halves[3].tolist()
    assert digests(halves)[1].tobytes() == hash_of(row)


def test_the_bits_count_not_the_values():
    nan, other_nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    one = np.float32(1)
    assert hash_of(np.array([nan, one])) == hash_of(np.array([nan, one]))
    assert hash_of(np.array([nan, one])) != hash_of(np.array([other_nan, one]))
    assert hash_of(np.array([0.0], np.float32)) != hash_of(np.array([-0.0], np.float32))
    assert hash_of(np.array([1.0], np.float32)) != hash_of(np.array([1.0], np.float64))


def test_every_single_bit_of_a_row_counts():
    row = np.zeros(40, np.uint8)
    bits = np.zeros((320, 40), np.uint8)
    for i in range(320):
        bits[i, i // 8] = 1 << (i % 8)
    digests_seen = {h.tobytes() for h in digests(hash_rows_reference(np.vstack([row[None], bits])))}
    assert len(digests_seen) == 321


def test_keys_are_odd_and_the_two_halves_do_not_share_any():
    first, second = hash_keys(0, 4096), hash_keys(1, 4096)
    assert (first & np.uint64(1)).all()
    assert (second & np.uint64(1)).all()
    assert len(np.unique(np.concatenate([first, second]))) == 8192


def test_the_specification_names_what_the_code_computes():
    text = SPECIFICATION.read_text(encoding="utf-8")
    assert f"`{ROW_HASH_NAME}`" in text
    assert f"`{SKETCH_NAME}`" in text


def specified_vectors() -> list[dict]:
    block = re.search(r"```json\n(.*?)```", SPECIFICATION.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return json.loads(block.group(1))


@pytest.mark.parametrize("vector", specified_vectors(), ids=lambda vector: vector["note"])
def test_the_test_vectors_of_the_specification(vector):
    bits = np.frombuffer(bytes.fromhex(vector["row"]), np.uint8)[None]
    if vector["dtype"] == "bfloat16":
        values = bfloat16_values(bits.view("<u2"))
    else:
        values = bits.view(NUMPY_DTYPES[vector["dtype"]])
        values = values.astype(np.float32 if vector["dtype"] == "float16" else np.float64)
    assert digests(hash_rows_reference(bits))[0].tobytes().hex() == vector["row_hash"]
    for name, reference in (
        ("l2", l2_rows_reference),
        ("absmax", absmax_rows_reference),
        ("sketch", sketch_rows_reference),
    ):
        np.testing.assert_array_equal(reference(values)[0], np.array(vector[name], np.float32), err_msg=name)
