"""The fast path gives the reference's values, however rows lie in memory and however the work is cut."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rip.replay.row_summaries import summarise
from rip.replay.row_summaries.row_hash_and_sketch import (
    absmax_rows_reference,
    hash_rows_reference,
    l2_rows_reference,
    sketch_rows_reference,
)
from rip.replay.row_summaries.rows import RowSummaries
from rip.replay.row_summaries.summarise import RepeatedRows, prepare_kernel, summarise_tensor

FAST = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
WIDTHS = st.one_of(st.integers(1, 200), st.sampled_from([576, 577, 1536, 4099]))


def reference(rows: torch.Tensor) -> list[np.ndarray]:
    """Hash, L2, absmax and sketch of [T, W], by definition."""
    values = rows.to(
        torch.float32 if rows.itemsize == 2 and rows.is_floating_point() else torch.float64
    ).numpy()
    return [
        hash_rows_reference(rows.contiguous().view(torch.uint8).numpy()),
        l2_rows_reference(values),
        absmax_rows_reference(values),
        sketch_rows_reference(values),
    ]


def everything(out: RowSummaries, site: int = 0) -> list[np.ndarray]:
    return [out.row_hash[:, site], out.l2[:, site], out.absmax[:, site], out.sketch[:, site]]


def summarised(tensor: torch.Tensor) -> list[np.ndarray]:
    out = RowSummaries.empty(tensor.shape[:-1].numel(), 1)
    summarise_tensor(tensor, out, 0, 0)
    return everything(out)


def assert_same_bits(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for name, a, b in zip(("hash", "l2", "absmax", "sketch"), actual, expected, strict=True):
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes(), name


def random_rows(dtype: torch.dtype, rows: int, width: int, seed: int, any_bits: bool) -> torch.Tensor:
    """Normal values, or arbitrary bits: NaN with payloads, infinities, subnormals, extreme exponents."""
    random = np.random.default_rng(seed)
    if any_bits:
        return torch.from_numpy(random.integers(0, 256, (rows, width * dtype.itemsize), np.uint8)).view(dtype)
    return torch.from_numpy(random.standard_normal((rows, width))).to(dtype)


@settings(deadline=None)
@given(st.sampled_from(FAST), WIDTHS, st.integers(1, 5), st.integers(0, 2**32 - 1), st.booleans())
def test_the_kernel_equals_the_reference_bit_for_bit(dtype, width, rows, seed, any_bits):
    tensor = random_rows(dtype, rows, width, seed, any_bits)
    assert_same_bits(summarised(tensor), reference(tensor))


@settings(deadline=None)
@given(st.sampled_from(FAST), st.integers(1, 70), st.integers(-500, 500))
def test_very_large_and_very_small_rows_keep_their_norm(dtype, width, exponent):
    tensor = (torch.ones(1, width, dtype=torch.float64) * 2.0**exponent).to(dtype)
    actual = summarised(tensor)
    assert_same_bits(actual, reference(tensor))
    value = tensor[0, 0].double().item()
    expected = torch.tensor(value * width**0.5, dtype=torch.float64).to(torch.float32)
    torch.testing.assert_close(torch.tensor(actual[1][0]), expected, rtol=1e-6, atol=2e-45)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
def test_other_dtypes_are_summarised_too(dtype):
    tensor = torch.arange(-40, 40).reshape(4, 20).to(dtype)
    assert_same_bits(summarised(tensor), reference(tensor))


def test_row_stride_alignment_and_shape_do_not_matter():
    storage = random_rows(torch.bfloat16, 1, 6 * 40 + 1, 0, False)[0]
    rows = storage[1:].view(6, 40)[:, :33]  # starts at an odd element, has gaps between rows
    expected = reference(rows)
    assert not rows.is_contiguous()
    for tensor in (
        rows,
        rows.contiguous(),
        rows[None],
        rows[:, None],
        rows.view(2, 3, 33),
        rows.T.contiguous().T,
    ):
        assert_same_bits(summarised(tensor), expected)
    assert_same_bits(summarised(rows[2]), [part[2:3] for part in expected])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count_and_chunks_do_not_matter(threads, monkeypatch):
    rows = random_rows(torch.bfloat16, 300, 576, 1, False)
    expected = reference(rows)
    monkeypatch.setattr(summarise, "SHARED_BYTES", 0)
    monkeypatch.setattr(summarise, "TICKET_BYTES", 4096)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same_bits(summarised(rows), expected)
        for cut in (1, 7, 299):
            out = RowSummaries.empty(300, 1)
            summarise_tensor(rows[:cut], out, 0, 0)
            summarise_tensor(rows[cut:], out, cut, 0)
            assert_same_bits(everything(out), expected)
    finally:
        torch.set_num_threads(before)


STEPS = (
    [(3, 1, 576), (3, 1, 576), (3, 1, 576)],  # the usual decode step of a batch of three
    [(3, 1, 576), (3, 1, 576), (1, 1, 576)],  # another shape in between
    [(3, 1, 3, 192), (3, 1, 3, 192), (3, 1, 3, 192)],  # rows that are spread over two axes
)


@pytest.mark.parametrize("shapes", STEPS, ids=["same", "another-shape", "heads"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32])
def test_repeated_rows_give_what_each_gives_alone(shapes, dtype):
    out = RowSummaries.empty(3 * len(shapes), 2)
    repeated = RepeatedRows(out)
    tensors = [random_rows(dtype, shape[0], 576, 576, False).reshape(shape) for shape in shapes]
    for step, tensor in enumerate(tensors):
        if not repeated.summarise_like_last(1, tensor, 3 * step):
            repeated.summarise_first(1, tensor, 576, 3 * step)
    for step, tensor in enumerate(tensors):
        written = slice(3 * step, 3 * step + len(tensor))
        assert_same_bits([part[written] for part in everything(out, 1)], reference(tensor.reshape(-1, 576)))
    assert not out.row_hash[:, 0].any()


@pytest.mark.parametrize("other", [
    torch.ones(2, 1, 8), torch.ones(1, 1, 9),
    torch.ones(1, 1, 8, dtype=torch.float64), torch.ones(1, 1, 16)[..., ::2],
], ids=["rows", "width", "dtype", "strides"])  # fmt: skip
def test_a_tensor_unlike_the_last_one_is_not_read_with_its_form(other):
    out = RowSummaries.empty(4, 1)
    repeated = RepeatedRows(out)
    repeated.summarise_first(0, torch.ones(1, 1, 8), 8, 0)
    assert not repeated.summarise_like_last(0, other, 1)
    assert not out.row_hash[1:].any()
    assert repeated.summarise_like_last(0, torch.full((1, 1, 8), 2.0), 1)


def test_a_place_that_was_filled_is_not_filled_again():
    out = RowSummaries.empty(2, 1)
    repeated = RepeatedRows(out)
    repeated.summarise_first(0, torch.zeros(1, 1, 8), 8, 0)
    repeated.summarise_like_last(0, torch.ones(1, 1, 8), 1)
    before = out.row_hash.copy()
    assert repeated.summarise_like_last(0, torch.full((1, 1, 8), 5.0), 1)
    assert (out.row_hash == before).all()


def test_empty_tensors_write_nothing_and_empty_rows_have_a_hash():
    out = RowSummaries.empty(2, 1)
    summarise_tensor(torch.ones(0, 5), out, 2, 0)
    assert not out.row_hash.any()
    assert_same_bits(summarised(torch.ones(2, 0)), reference(torch.ones(2, 0)))


@pytest.mark.parametrize(("first", "site"), [(-1, 0), (2, 0), (0, 3), (0, -1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(first, site, dtype):
    out = RowSummaries.empty(3, 3)
    with pytest.raises(IndexError):
        summarise_tensor(torch.ones(2, 4, dtype=dtype), out, first, site)
    assert not out.row_hash.any()


def test_without_numba_the_reference_computes_the_same(monkeypatch):
    tensors = [random_rows(dtype, 3, 33, 5, False) for dtype in FAST]
    fast = [summarised(tensor) for tensor in tensors]
    assert prepare_kernel() == "numba"
    monkeypatch.setitem(sys.modules, "rip.replay.row_summaries.cpu_kernels", None)
    summarise._kernel.cache_clear()
    summarise._fast_dtypes.cache_clear()
    try:
        assert prepare_kernel() == "numpy"
        for tensor, expected in zip(tensors, fast, strict=True):
            assert_same_bits(summarised(tensor), expected)
    finally:
        summarise._kernel.cache_clear()
        summarise._fast_dtypes.cache_clear()


def test_a_changed_bit_is_not_missed_by_the_kernel():
    """The negative control of the tests above: they would see a wrong byte."""
    rows = random_rows(torch.bfloat16, 1, 576, 2, False)
    changed = rows.clone()
    changed.view(torch.int16)[0, 575] ^= 1
    with pytest.raises(AssertionError, match="hash"):
        assert_same_bits(summarised(changed), reference(rows))


def test_the_second_process_takes_the_kernel_from_the_cache(tmp_path):
    program = "from rip.replay.row_summaries.cpu_kernels import compiled_task as c; print(c().cache_hits)"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    hits = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert [int(count) for count in hits] == [0, 1]
