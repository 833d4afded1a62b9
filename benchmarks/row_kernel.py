"""How fast rows are summarised: GB/s and ns a row for each dtype, beside numpy and the memory's own speed.

    python benchmarks/row_kernel.py

The variants of a line run alternately; each figure is a median. `read` is numpy's float32 sum over the same
bytes: what a core gets out of the cache that holds the rows, or out of memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numba
import torch
from rip.replay.row_summaries import summarise
from rip.replay.row_summaries.cpu_kernels import (
    bf16_zeros,
    f16_zeros,
    f32_zeros,
    f64_zeros,
    hash_row,
    measure_row,
    scratch_block,
)
from rip.replay.row_summaries.rows import RowSummaries
from rip.replay.row_summaries.summarise import RepeatedRows, summarise_tensor

ZEROS = {
    torch.bfloat16: bf16_zeros,
    torch.float16: f16_zeros,
    torch.float32: f32_zeros,
    torch.float64: f64_zeros,
}
ROUNDS = 15
REFERENCE_ROWS = 64
LAYER_WIDTHS = (576, 576, 192, 192, 576, 576, 576, 1536, 1536, 1536, 576, 576)
"""Sites of one of SmolLM2-135M's 30 layers; with embedding and final norm they are 362 rows a decode step."""

Variant = Callable[[], object]


@numba.njit
def hash_only(address, row_bytes, rows, keys_0, keys_1, bias_0, bias_1):
    scratch = scratch_block()
    last = 0
    for row in range(rows):
        h_0, h_1 = hash_row(address + row * row_bytes, row_bytes, keys_0, keys_1, bias_0, bias_1, scratch)
        last ^= h_0 ^ h_1
    return last


def measure_only_for(dtype: torch.dtype):
    zeros, size = ZEROS[dtype], dtype.itemsize

    @numba.njit
    def measure_only(address, width, rows, signs, sketches):
        scratch = scratch_block()
        for row in range(rows):
            measure_row(
                address + row * width * size, width, size, zeros(), signs, scratch, sketches + row * 64
            )

    return measure_only


def medians(variants: dict[str, Variant], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each variant, run in turn; the first round warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, run in variants.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def alone(run: Variant) -> Variant:
    """The same on the calling thread only (torch's own thread count stays: changing it rebuilds its pool)."""

    def bound() -> None:
        before, summarise.SHARED_BYTES = summarise.SHARED_BYTES, 2**62
        run()
        summarise.SHARED_BYTES = before

    return bound


def measure_rows(dtype: torch.dtype, rows: int, width: int) -> None:
    tensor = torch.randn(rows, width).to(dtype)
    out = RowSummaries.empty(rows, 1)
    small = RowSummaries.empty(REFERENCE_ROWS, 1)
    tables = summarise._tables_for(width * dtype.itemsize, width).addresses
    signs = tables[{2: 4, 4: 5, 8: 6}[dtype.itemsize]]
    measure_only = measure_only_for(dtype)
    row_bytes = width * dtype.itemsize
    as_float32 = tensor.view(torch.float32).numpy()
    fused = lambda: summarise_tensor(tensor, out, 0, 0)  # noqa: E731
    taken = medians(
        {
            "hash": lambda: hash_only(tensor.data_ptr(), row_bytes, rows, *tables[:4]),
            "values": lambda: measure_only(tensor.data_ptr(), width, rows, signs, out.addresses[3]),
            "fused": alone(fused),
            "shared": fused,
            "read": as_float32.sum,
        }
    )
    reference = medians(
        {"numpy": lambda: summarise._summarise_by_reference(tensor[:REFERENCE_ROWS], small, 0, 0)}, 3
    )
    size = rows * row_bytes
    speeds = "".join(f"{size / seconds / 1e9:10.1f}" for seconds in taken.values())
    numpy_speed = REFERENCE_ROWS * row_bytes / reference["numpy"] / 1e9
    print(
        f"{str(dtype).removeprefix('torch.'):9}{width:6}{size / 2**20:8.1f}{speeds}{numpy_speed:10.2f}"
        f"{taken['fused'] / rows * 1e9:10.0f}{taken['shared'] / rows * 1e9:10.0f}"
    )


def measure_decode() -> None:
    widths = [*LAYER_WIDTHS * 30, 576, 576]
    tensors = [torch.randn(1, 1, width).to(torch.bfloat16) for width in widths]
    rows = RepeatedRows(RowSummaries.empty(2, len(tensors)))
    for site, tensor in enumerate(tensors):
        rows.summarise_first(site, tensor, tensor.shape[-1], 0)
    step = 0

    def again() -> None:
        nonlocal step
        step += 1
        for site, tensor in enumerate(tensors):
            rows.summarise_like_last(site, tensor, step % 2)

    seconds = medians({"again": again}, 200)["again"]
    each = seconds / len(tensors) * 1e9
    print(f"\ndecode step, {len(tensors)} rows: {seconds * 1e6:.0f} µs, {each:.0f} ns a row with its call")


def main() -> None:
    print(f"{torch.get_num_threads()} threads; GB/s, the last two columns ns a row; MiB of rows")
    heads = ("hash", "values", "fused", "shared", "read", "numpy", "ns alone", "ns shared")
    print(f"{'dtype':9}{'width':>6}{'MiB':>8}" + "".join(f"{head:>10}" for head in heads))
    for dtype in ZEROS:
        for width in (576, 1536):
            measure_rows(dtype, 1024, width)
    for dtype in ZEROS:
        measure_rows(dtype, 2**27 // (576 * dtype.itemsize), 576)
    measure_decode()


if __name__ == "__main__":
    main()
