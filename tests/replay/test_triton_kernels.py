"""The GPU kernel gives the reference's values. Without a GPU: Triton interprets it, and compiles it."""

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from fakes import interpreted
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rip.replay.row_summaries.rows import RowSummaries, summarise_by_reference
from rip.replay.row_summaries.summarise import prepare_kernel

pytest.importorskip("triton")

DTYPES = ("bfloat16", "float16", "float32", "float64")
NAMES = ("hash", "l2", "absmax", "sketch")


@pytest.fixture(scope="module")
def kernel():
    """Runs functions of `interpreted` in one process, which lives as long as this module's tests."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=interpreted.begin) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


def reference(tensor):
    out = RowSummaries.empty(tensor.shape[:-1].numel(), 1)
    summarise_by_reference(tensor, out, 0, 0)
    return interpreted.arrays_of(out)


def differing(actual, expected):
    return [name for name, a, b in zip(NAMES, actual, expected, strict=True) if a.tobytes() != b.tobytes()]


def storage(dtype, elements, seed, any_bits):
    """Bytes of normal values, or arbitrary bits: NaN with payloads, infinities, subnormals, −0."""
    random, dtype = np.random.default_rng(seed), getattr(torch, dtype)
    if any_bits:
        return random.integers(0, 256, elements * dtype.itemsize, np.uint8)
    return torch.from_numpy(random.standard_normal(elements)).to(dtype).view(torch.uint8).numpy()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(DTYPES), st.integers(1, 4), st.integers(1, 140), st.integers(0, 20), st.integers(0, 3),
    st.integers(0, 2**32 - 1), st.booleans(),
)  # fmt: skip
@example("bfloat16", 70, 37, 0, 0, 0, True)  # more rows than have a program each
@example("float32", 66, 5, 3, 1, 0, False)
@example("float16", 3, 0, 1, 0, 0, False)
@example("bfloat16", 2, 1531, 7, 1, 3, True)  # several steps and a rest
@example("float64", 2, 1025, 0, 0, 3, False)
def test_the_kernel_equals_the_reference_bit_for_bit(kernel, dtype, rows, width, gap, offset, seed, any_bits):
    bits = storage(dtype, rows * (width + gap) + offset, seed, any_bits)
    shape, stride = (rows, width), (width + gap, 1)
    tensor = torch.as_strided(torch.from_numpy(bits).view(getattr(torch, dtype)), shape, stride, offset)
    assert not differing(kernel(interpreted.summarise, bits, dtype, shape, stride, offset), reference(tensor))


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 16384), ("float64", 9001)])
def test_wide_rows(kernel, dtype, width):
    bits = storage(dtype, width, 5, False)
    actual = kernel(interpreted.summarise, bits, dtype, (1, width), (width, 1))
    assert not differing(actual, reference(torch.from_numpy(bits).view(getattr(torch, dtype))[None]))


@settings(max_examples=10)
@given(st.sampled_from(DTYPES), st.integers(1, 70), st.integers(-500, 500))
def test_very_large_and_very_small_rows_keep_their_norm(kernel, dtype, width, exponent):
    rows = torch.ones(2, width, dtype=torch.float64)
    rows[0] *= 2.0**exponent  # beside a usual row, which keeps its own way of adding
    rows = rows.to(getattr(torch, dtype))
    bits = rows.view(torch.uint8).numpy().reshape(-1)
    assert not differing(kernel(interpreted.summarise, bits, dtype, (2, width), (width, 1)), reference(rows))


def test_rows_on_several_axes_and_one_row_wanted_often(kernel):
    bits = storage("bfloat16", 6 * 40, 1, False)
    rows = torch.from_numpy(bits).view(torch.bfloat16)
    for shape, stride in (
        ((2, 3, 33), (120, 40, 1)),
        ((3, 1, 33), (40, 40, 1)),
        ((4, 33), (0, 1)),
        ((5, 6), (1, 40)),  # the last dimension is not contiguous
    ):
        expected = reference(torch.as_strided(rows, shape, stride))
        assert not differing(kernel(interpreted.summarise, bits, "bfloat16", shape, stride), expected), shape


def test_a_changed_bit_is_seen(kernel):
    """The negative control of the tests above."""
    bits = storage("bfloat16", 576, 2, False)
    expected = reference(torch.from_numpy(bits.copy()).view(torch.bfloat16)[None])
    bits[2 * 575] ^= 1
    assert "hash" in differing(kernel(interpreted.summarise, bits, "bfloat16", (1, 576), (576, 1)), expected)


def test_taps_find_the_same_summaries_wherever_the_model_is(kernel):
    (on_cpu, _), (elsewhere, launches) = kernel(interpreted.watched_run, [[1, 2, 3], [4]], 2)
    assert launches > 4 * 10
    for here, there in zip(on_cpu, elsewhere, strict=True):
        assert here[0].any(axis=2).all()  # every site of every position
        assert not differing(here, there)


def test_what_a_device_computes_lands_when_it_is_settled_and_leaves_the_rest_alone(kernel):
    cpu_before, device_before, cpu_after, device_after, same = kernel(interpreted.landing)
    assert cpu_before
    assert not device_before
    assert cpu_after
    assert device_after
    assert same


def test_a_kernel_that_is_missing_broken_or_wrong_is_not_used_and_the_reason_is_said(kernel):
    found = kernel(interpreted.doubts)
    said = {name: doubt for name, (doubt, _) in found.items()}
    assert said.pop("right") == ""
    assert said == {
        "rare": "the Triton kernel does not read torch.int64",
        "wrong": "the Triton kernel gives summaries of torch.float32 rows that differ from the reference",
        "broken": "the Triton kernel does not run: TypeError: 'NoneType' object is not callable",
        "missing": "Triton is not installed",
    }
    assert all(same for _, same in found.values())


def test_what_will_compute_is_said():
    assert prepare_kernel(torch.device("cpu"), torch.float32) == "numba"
    elsewhere = prepare_kernel(torch.device("meta"), torch.float32)
    assert elsewhere.startswith("numba, after a copy to the CPU: the Triton kernel does not run: ")


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(("element", "rows", "blocks", "warps"), [("bf16", 1, 32, 4), ("fp64", 4, 8, 1)])
def test_it_compiles_for_a_gpu_and_nothing_in_it_is_fused_or_flushed(
    element, rows, blocks, warps, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from rip.replay.row_summaries.gpu_kernels import _summarise
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = _summarise.arg_names
    signature = dict.fromkeys(names, "i32") | {"rows": f"*{element}", "out": "*i64", "table": "*i64"}
    constants = {"ROWS": rows, "BLOCKS": blocks}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        _summarise, signature, {(names.index(name),): value for name, value in constants.items()}
    )
    options = {"num_warps": warps, "enable_fp_fusion": False}
    ptx = compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert "add.f32" in ptx or "add.rn.f32" in ptx or "add.f64" in ptx or "add.rn.f64" in ptx
    assert not re.findall(r"\bfma\.|\.ftz|sqrt\.approx", ptx)
    fused = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    assert "fma." in fused  # what it would be otherwise
