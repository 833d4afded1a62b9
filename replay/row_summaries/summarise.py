"""Summarising tensors, the entry point of the taps: row hash, L2, absmax and sketch of rows, without a copy.

It knows torch tensors and where results go; the definitions stand in `row_hash_and_sketch.py`, the
fast kernel in `cpu_kernels.py`, that of GPUs behind `gpu_queue.py`. Where numba is missing, or a dtype is
rare, the numpy reference gives the same values.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .row_hash_and_sketch import WORD_BYTES, hash_keys, hash_offset, is_negative
from .rows import RowSummaries, as_rows, rows_do_not_fit_error, summarise_by_reference

if TYPE_CHECKING:
    import torch

    from .gpu_queue import Pending

TICKET_BYTES = 32 * 1024
"""What a thread takes at a time: small enough to share a prefill evenly, large enough to be worth it."""

SHARED_BYTES = 1024 * 1024
"""Below this (some 50 µs of one core: a decode step, for example) rows are not shared among threads. Little
would be saved, and on a busy machine a thread that has to be waited for may come milliseconds late."""

BLOCK_PADDING = 32
"""Table entries beyond the widest row, so that its last block can be read whole."""

ADDRESS, FIRST_SLOT, JOB_LENGTH, NEXT_UNIT = 0, 5, 6, 0
"""Fields of a job and of a task that change from call to call, and a job's length (see cpu_kernels.py)."""


def summarise_tensor(
    tensor: torch.Tensor, out: RowSummaries, first_position: int, site: int, pending: Pending | None = None
) -> None:
    """Summarise the rows of one tensor: row r goes to `out[first_position + r, site]`.

    Args:
        tensor: [..., W]; the leading dimensions count as one, in row-major order. Rows may lie at any
            stride. A copy is made only where that leaves no single row stride, where the last dimension
            is not contiguous, or where the tensor is on a device that has no kernel for it.
        out: Where the results go.
        first_position: First index on the first axis of the output.
        site: Index on the second axis of the output.
        pending: Takes what a GPU only begins to compute here; the results are in `out` after its `settle`.
            None waits for them.

    Raises:
        IndexError: The rows do not fit into the output.
    """
    if not tensor.is_cpu:
        from .gpu_queue import summarise_on_device

        if summarise_on_device(tensor, out, first_position, site, pending):
            return
        tensor = tensor.cpu()
    tensor, rows, row_stride = as_rows(tensor)
    positions, sites = out.l2.shape
    if not (0 <= site < sites and 0 <= first_position <= positions - rows):
        raise rows_do_not_fit_error(out, rows, first_position, site)
    work = KernelCall.of(out, tensor.dtype, rows, row_stride, (tensor.shape[-1],))
    if work is None:
        summarise_by_reference(tensor, out, first_position, site)
    elif rows:
        work.job[ADDRESS] = tensor.data_ptr()
        work.job[FIRST_SLOT] = first_position * sites + site
        work.run(work.address)


class RepeatedRows:
    """Summarises the tensors of decode steps as they come: the same sites and shapes, token after token.

    What `summarise_tensor` finds out about a tensor is kept for its site. That makes a call cheap enough to
    summarise each output at once, while its values are in the cache and before anything can overwrite it.
    """

    def __init__(self, out: RowSummaries) -> None:
        self._out = out
        self._sites = out.l2.shape[1]
        self._known: list[tuple[Any, ...] | None] = [None] * self._sites

    def summarise_first(self, site: int, tensor: torch.Tensor, width: int, first_position: int) -> None:
        """Summarise rows of `width` elements, and remember what the tensor was like.

        Raises:
            IndexError: The rows do not fit into the output.
        """
        self._known[site] = None
        rows = tensor if tensor.shape[-1] == width else tensor.reshape(-1, width)
        summarise_tensor(rows, self._out, first_position, site)
        if tensor.is_contiguous() and tensor.is_cpu:
            work = KernelCall.of(self._out, tensor.dtype, tensor.numel() // width, width, (width,))
            if work is not None:
                work.job[FIRST_SLOT] = first_position * self._sites + site
                self._known[site] = (
                    tensor.shape,
                    tensor.dtype,
                    work.job,
                    work.task,
                    work.run,
                    work.address,
                    work,
                )

    def summarise_like_last(self, site: int, tensor: torch.Tensor, first_position: int) -> bool:
        """Summarise a tensor like the site's last one.

        This runs hundreds of times a token, between operations that leave the caches cold, so it calls as
        little as possible.

        Returns:
            False where its form differs; then nothing was done. True, too, where this row was filled already:
            a module that runs more often than it was discovered to is not followed.
        """
        known = self._known[site]
        if known is None:
            return False
        shape, dtype, job, task, run, address, _ = known
        if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous():
            return False
        slot = first_position * self._sites + site
        if slot != job[FIRST_SLOT]:
            job[ADDRESS] = tensor.data_ptr()
            job[FIRST_SLOT] = slot
            task[NEXT_UNIT] = 0
            run(address)
        return True


class KernelCall:
    """One call of the kernel: some columns of the rows of one tensor. It can be repeated at other addresses.

    Attributes:
        job: JOB_LENGTH fields for each of the columns.
        task: The task's fields.
    """

    def __init__(
        self, out: RowSummaries, rows: int, stride: int, columns: Sequence[int], code: int, size: int
    ) -> None:
        kernel = _kernel()
        assert kernel is not None
        widest = max(columns)
        tables = _tables_for(widest * size, widest)
        self.job = array("q", [item for width in columns for item in (0, stride, rows, width, code, 0)])
        jobs, _ = self.job.buffer_info()
        per_ticket = max(1, TICKET_BYTES // max(1, widest * size))
        units = rows * len(columns)
        fields = (0, units, per_ticket, rows, jobs, out.l2.shape[1], *out.addresses, *tables.addresses)
        self.task = array("q", fields)
        self.address, _ = self.task.buffer_info()
        self.run = kernel.in_threads if rows * sum(columns) * size >= SHARED_BYTES else kernel.alone
        self._kept = (out, tables)  # the task holds their addresses

    @classmethod
    def of(
        cls, out: RowSummaries, dtype: torch.dtype, rows: int, row_stride: int, columns: Sequence[int]
    ) -> KernelCall | None:
        """Work on `rows` rows, `row_stride` elements apart; None for a rare dtype.

        Args:
            row_stride: Elements from one row to the next.
            columns: How many elements of a row each of the columns has.
        """
        fast = _fast_dtypes().get(dtype)
        if fast is None:
            return None
        code, size = fast
        return cls(out, rows, row_stride * size, columns, code, size)


def prepare_kernel(device: torch.device | None = None, dtype: torch.dtype | None = None) -> str:
    """Compile the kernel ahead of the first use (about two seconds once, a tenth from a cache).

    Args:
        device: Where the rows will be; None for the CPU.
        dtype: Theirs; needed with a device.

    Returns:
        What will compute summaries: `triton`, else `numba`, or `numpy` where numba is not installed. For rows
        on another device these two are followed by the reason why they are copied to the CPU.
    """
    on_cpu = "numba" if _kernel() else "numpy"
    if device is None or device.type == "cpu" or dtype is None:
        return on_cpu
    from .gpu_queue import doubt_about

    doubt = doubt_about(device, dtype)
    return f"{on_cpu}, after a copy to the CPU: {doubt}" if doubt else "triton"


@dataclass(frozen=True, eq=False)
class _Tables:
    """The constants of hash and sketch, for rows up to some width, as the kernel reads them."""

    words: int
    elements: int
    arrays: tuple[npt.NDArray[np.unsignedinteger], ...]
    addresses: tuple[int, ...]


_tables: _Tables | None = None


def _tables_for(row_bytes: int, elements: int) -> _Tables:
    """Tables for rows of at least this size; they grow by doubling and are replaced, never changed."""
    global _tables
    words = 1 + -(-row_bytes // WORD_BYTES)
    if _tables is None or _tables.words < words or _tables.elements < elements:
        known_words, known_elements = (_tables.words, _tables.elements) if _tables else (2048, 2048)
        words = known_words if words <= known_words else 2 * words
        elements = known_elements if elements <= known_elements else 2 * elements
        keys = [hash_keys(k, words + BLOCK_PADDING) for k in range(2)]
        bias = [np.uint64(hash_offset(k)) + np.cumsum(keys[k], dtype=np.uint64) for k in range(2)]
        negative = is_negative(elements + BLOCK_PADDING)
        signs = [
            negative.astype(f"u{size}") << np.uint64(8 * size - 1).astype(f"u{size}") for size in (2, 4, 8)
        ]
        arrays = (*keys, *bias, *signs)
        _tables = _Tables(words, elements, arrays, tuple(table.ctypes.data for table in arrays))
    return _tables


@dataclass(frozen=True, eq=False)
class _Kernel:
    alone: Callable[[int], None]
    """Runs a task on the calling thread."""
    in_threads: Callable[[int], None]
    """Runs it with the threads of the OpenMP runtime that torch itself uses, where there is one. They wait
    actively between torch's operations; a second pool would fight them for the cores."""


@functools.cache
def _kernel() -> _Kernel | None:
    try:
        from .cpu_kernels import compiled_task
    except ImportError:
        return None
    import torch

    compiled = compiled_task()
    # Without giving up the interpreter's lock: a row takes less time than that.
    alone = ctypes.PYFUNCTYPE(None, ctypes.c_size_t)(compiled.address)
    try:
        # As torch's own libraries find it: among the process's global symbols. Not on macOS and Windows.
        in_team = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return _Kernel(alone, compiled.ctypes)
    in_team.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    in_team.restype = None

    def in_threads(task: int) -> None:
        threads = torch.get_num_threads()
        if threads > 1:
            in_team(compiled.address, task, threads, 0)
        else:
            compiled.ctypes(task)

    return _Kernel(alone, in_threads)


@functools.cache
def _fast_dtypes() -> dict[torch.dtype, tuple[int, int]]:
    """Each dtype that the kernel reads → its code there, and the bytes of an element."""
    if _kernel() is None:
        return {}
    import torch

    from .cpu_kernels import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

    return {
        torch.bfloat16: (BFLOAT16, 2),
        torch.float16: (FLOAT16, 2),
        torch.float32: (FLOAT32, 4),
        torch.float64: (FLOAT64, 8),
    }
