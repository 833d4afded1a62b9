"""Summaries that a GPU computes: where they lie in its memory, and how they reach the CPU once, late.

It knows slots, copies and which kernel may be trusted; the kernel itself is in `gpu_kernels.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch

from .rows import (
    ABSMAX_HALF,
    L2_HALF,
    SKETCH_HALF,
    SLOT_WORDS,
    RowSummaries,
    as_rows,
    rows_do_not_fit_error,
    summarise_by_reference,
)

if TYPE_CHECKING:
    from .gpu_kernels import Launch


def new_slots(positions: int, sites: int, device: torch.device | str) -> torch.Tensor:
    """Room for `positions × sites` rows on a device: int64[positions, sites, 11], all 0."""
    return torch.zeros(positions, sites, SLOT_WORDS, dtype=torch.int64, device=device)


def summaries_in(slots: torch.Tensor) -> RowSummaries:
    """The summaries in slots on the CPU, as views with gaps."""
    words = slots.numpy()
    floats = words.view(np.float32)
    return RowSummaries(
        words.view(np.uint64)[..., :2],
        floats[..., L2_HALF],
        floats[..., ABSMAX_HALF],
        floats[..., SKETCH_HALF:],
    )


class HostCopy:
    """Slots on their way to the CPU."""

    def __init__(self, slots: torch.Tensor) -> None:
        """Start the copy of int64[positions, sites, 11], behind everything that its stream holds already."""
        self._copied: torch.cuda.Event | None = None
        if not slots.is_cuda:
            self._words = slots.clone()
            return
        with torch.cuda.device(slots.device):
            self._words = torch.empty(slots.shape, dtype=slots.dtype, pin_memory=True)
            self._words.copy_(slots, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self) -> RowSummaries:
        """The summaries, as views with gaps."""
        if self._copied is not None:
            self._copied.synchronize()
        return summaries_in(self._words)


def runs_on_device(tensor: torch.Tensor) -> bool:
    """Whether a kernel on the tensor's own device can summarise it, and was seen to do it rightly."""
    return not tensor.is_cpu and not doubt_about(tensor.device, tensor.dtype)


def summarise_on_device(
    tensor: torch.Tensor, out: RowSummaries, first_position: int, site: int, pending: Pending | None
) -> bool:
    """Do what `summarise_tensor` does where the tensor is, if that can be done.

    Returns:
        False where it cannot; then nothing was done.

    Raises:
        IndexError: The rows do not fit into the output.
    """
    if not runs_on_device(tensor):
        return False
    enqueued = Pending() if pending is None else pending
    enqueued.summarise(tensor, out, first_position, site)
    if pending is None:
        enqueued.settle()
    return True


@functools.cache
def doubt_about(device: torch.device, dtype: torch.dtype) -> str:
    """Run the kernel on rows whose summaries are known: seconds, once for each device and dtype.

    Returns:
        Nothing if it gives the reference's bits, else why it cannot be used.
    """
    try:
        from .gpu_kernels import DTYPES, FEW_ROWS
    except ImportError:
        return "Triton is not installed"
    if dtype not in DTYPES:
        return f"the Triton kernel does not read {dtype}"
    random = np.random.default_rng(0)
    # Both forms of the kernel; each width is more than one step of it, and a multiple of nothing.
    for rows, width in ((3, 531), (FEW_ROWS + 3, 147)):
        # Every second row is arbitrary bits: NaN, infinities, subnormals, norms beyond float32.
        raw = random.integers(0, 256, (rows, width * dtype.itemsize), np.uint8)
        usual = torch.from_numpy(random.standard_normal((rows, width))).to(dtype)
        tensor = torch.from_numpy(raw).view(dtype)
        tensor[::2] = usual[::2]
        expected, actual = RowSummaries.empty(rows, 1), RowSummaries.empty(rows, 1)
        summarise_by_reference(tensor, expected, 0, 0)
        pending = Pending()
        try:
            pending.summarise(tensor.to(device), actual, 0, 0)
            pending.settle()
        except Exception as error:  # whatever a compiler or a driver raises, the CPU can do the work instead
            return f"the Triton kernel does not run: {type(error).__name__}: {error}".splitlines()[0]
        if not expected.same_bits(actual):
            return f"the Triton kernel gives summaries of {dtype} rows that differ from the reference"
    return ""


class Pending:
    """Summaries that devices still compute: enqueued in passing, and all put in their places by `settle`."""

    def __init__(self) -> None:
        self._mirrors: dict[tuple[int, torch.device], _DeviceSummaries] = {}

    def summarise(
        self, tensor: torch.Tensor, out: RowSummaries, first_position: int, site: int, times: int = 1
    ) -> Launch:
        """Enqueue what `summarise_tensor` does, on the tensor's own device.

        Args:
            tensor: One that `runs_on_device`.
            times: How often the rows are wanted; only one row can be wanted more than once.

        Returns:
            The launch, which serves every contiguous tensor of the same shape and dtype.

        Raises:
            IndexError: The rows do not fit into the output.
        """
        from .gpu_kernels import Launch, table_for

        rows, count, stride = as_rows(tensor)
        if times > 1:
            count, stride = times, 0
        width = tensor.shape[-1]
        table = table_for(tensor.device, width * tensor.itemsize)
        launch = Launch(count, stride, width, out.l2.shape[1], table)
        self.run(launch, rows, out, first_position, site)
        return launch

    def run(
        self, launch: Launch, rows: torch.Tensor, out: RowSummaries, first_position: int, site: int
    ) -> None:
        """Enqueue a launch: row r will go to `out[first_position + r, site]`.

        Raises:
            IndexError: The rows do not fit into the output.
        """
        positions, sites = out.l2.shape
        if not (0 <= site < sites and 0 <= first_position <= positions - launch.rows):
            raise rows_do_not_fit_error(out, launch.rows, first_position, site)
        key = (id(out), rows.device)
        mirror = self._mirrors.get(key)
        if mirror is None:
            mirror = self._mirrors[key] = _DeviceSummaries(out, rows.device)
        mirror.written[first_position : first_position + launch.rows, site] = True
        launch(rows, mirror.slots, first_position * sites + site)

    def settle(self) -> None:
        """Wait for what was enqueued since the last call, and write it where it belongs."""
        unsettled = [mirror for mirror in self._mirrors.values() if mirror.written.any()]
        landings = [mirror.start() for mirror in unsettled]  # all copies run before the first is waited for
        for mirror, (rows, landing) in zip(unsettled, landings, strict=True):
            mirror.finish(rows, landing)


class _DeviceSummaries:
    """The counterpart of some summaries on one device."""

    def __init__(self, out: RowSummaries, device: torch.device) -> None:
        self._out = out
        positions, sites = out.l2.shape
        self.slots = torch.empty(positions, sites, SLOT_WORDS, dtype=torch.int64, device=device)
        self.written = np.zeros((positions, sites), np.bool_)
        """Which slots hold what `out` has not got yet. The others may be another device's, or the CPU's."""

    def start(self) -> tuple[slice, HostCopy]:
        """Start copying the positions that were written to."""
        touched = np.flatnonzero(self.written.any(axis=1))
        rows = slice(int(touched[0]), int(touched[-1]) + 1)
        return rows, HostCopy(self.slots[rows])

    def finish(self, rows: slice, landing: HostCopy) -> None:
        """Wait, and write."""
        found, written, out = landing.wait(), self.written[rows], self._out
        for array, new in zip(out.at(rows).arrays(), found.arrays(), strict=True):
            np.copyto(array, new, where=written.reshape(written.shape + (1,) * (array.ndim - 2)))
        self.written[:] = False


class RepeatedOnDevice:
    """Summarises the tensors of decode steps on their device, as `RepeatedRows` does on the CPU."""

    def __init__(self, out: RowSummaries) -> None:
        self._out = out
        self._pending = Pending()
        self._known: dict[int, tuple[torch.Size, torch.dtype, torch.device, Launch]] = {}

    def summarise(self, site: int, tensor: torch.Tensor, width: int, first_position: int, times: int) -> bool:
        """Enqueue the rows of one tensor: `width` elements each, or one row for `times` positions.

        Returns:
            False where this tensor's device cannot do it; then nothing was done.
        """
        known = self._known.get(site)
        form = (tensor.shape, tensor.dtype, tensor.device)
        if known is not None and known[:3] == form and tensor.is_contiguous():
            self._pending.run(known[3], tensor, self._out, first_position, site)
            return True
        if not runs_on_device(tensor):
            return False
        rows = tensor if tensor.shape[-1] == width else tensor.reshape(-1, width)
        launch = self._pending.summarise(rows, self._out, first_position, site, times)
        if tensor.is_contiguous():
            self._known[site] = (*form, launch)
        return True

    def settle(self) -> None:
        """Wait for everything, and write it where it belongs."""
        self._pending.settle()
