"""Room for the rows of several steps: filled by the worker, handed over to be written, and used again.

Axes: T token rows of a step, W elements of a row, S sites, R observed rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...row_summaries.gpu_queue import Pending
from ...row_summaries.summaries import SLOT_BYTES, RowSummaries
from ...row_summaries.summarise import ADDRESS, FIRST_SLOT, JOB_LENGTH, NEXT_UNIT, Work, summarise_tensor
from ..files.part import REQUEST, ROW_FIELDS, Part, TappedRequest
from .kept_logits import LogitsStore, collect
from .step import NOBODY, Segment, Step

if TYPE_CHECKING:
    import torch

KNOWN_SHAPES = 16
"""Batch shapes whose tensors are remembered."""

Columns = tuple[tuple[int, int, int], ...]
"""The sites within a row: (site, first element, elements)."""


class RowBlock:
    """Rows of steps, in the order of the steps.

    Args:
        rows: Most rows.
        sites: Number of sites.
        twins: Sites that may be left out where another one has the same rows: int64[N, 2] (site, the other).
    """

    def __init__(self, rows: int, sites: int, twins: npt.NDArray[np.int64]) -> None:
        self._twins = twins
        self.summaries = RowSummaries.empty(rows, sites)
        self.pending = Pending()
        """What a GPU still computes for it."""
        self.repeated = RepeatedSteps(self.summaries, self.pending)
        self.room = rows
        self.used = 0
        self._steps: list[Step] = []
        self.numbers: set[int] = set()
        """The requests with rows here."""
        self.logits = LogitsStore()

    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self.summaries.l2.size * SLOT_BYTES + self.logits.nbytes()

    def take(self, step: Step) -> None:
        """A step that has run: its rows count now."""
        step.output = None
        self._steps.append(step)
        self.numbers.update(step.numbers)
        self.used += len(step.owners)

    def land(self) -> None:
        """Have everything that devices know on the host: then `part` may run on another thread."""
        self.pending.settle()
        for step in self._steps:
            step.land()

    def part(self, requests: Mapping[int, TappedRequest], ended: Sequence[int], topk: int) -> Part:
        """Everything in it, as a part, once it has landed."""
        tables = [step.table() for step in self._steps]
        table = np.concatenate([np.zeros((0, len(ROW_FIELDS)), np.int32), *tables])
        summaries = self.summaries.at(slice(self.used))
        _fill_twins(summaries, self._twins)
        kept = table[:, REQUEST] != NOBODY
        following = collect(self.logits.kept, (np.cumsum(kept) - 1).tolist(), topk)
        if not kept.all():
            table, summaries = table[kept], summaries.at(kept)
        return Part(requests, ended, table, summaries, following)

    def clear(self) -> None:
        """Make room again."""
        self.summaries.row_hash[: self.used] = 0
        self._steps, self.numbers, self.used = [], set(), 0
        self.logits.clear()


def _fill_twins(summaries: RowSummaries, twins: npt.NDArray[np.int64]) -> None:
    """Give sites that were left out the rows of their twins."""
    mine, theirs = twins[:, 0], twins[:, 1]
    row, index = np.nonzero(~summaries.is_computed()[:, mine])
    for array in summaries.arrays():
        array[row, mine[index]] = array[row, theirs[index]]


class RepeatedSteps:
    """Summarises tensors into one block of rows, and remembers for every batch shape what they were like.

    The tensors of a decode step are those of the step before with other values. Then a call of the kernel
    needs its address and its output row, and nothing else is checked. Between two calls a model reads
    megabytes of weights, so what a call needs is out of the caches unless other sites have just used it, too:
    all tensors of one form share one piece of work.

    Args:
        out: Where the summaries go.
        pending: Takes what a GPU only begins to compute.
    """

    def __init__(self, out: RowSummaries, pending: Pending) -> None:
        self._out, self._pending = out, pending
        self._sites = out.l2.shape[1]
        self._shapes: dict[tuple[int, int, int], list[tuple[Any, ...] | None]] = {}
        self._forms: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}
        self._known: list[tuple[Any, ...] | None] = []
        self._segment = Segment(0, 0, 0)
        self._slot = 0

    def begin(self, segment: Segment, padded: int) -> None:
        """A step begins whose observed rows are one stretch."""
        shape = (segment.first, segment.count, padded)
        known = self._shapes.get(shape)
        if known is None:
            if len(self._shapes) >= KNOWN_SHAPES:
                self._shapes.clear()
                self._forms.clear()
            known = self._shapes[shape] = [None] * self._sites  # there are no more sources than sites
        self._known, self._segment, self._slot = known, segment, segment.out * self._sites

    def see(self, source: int, tensor: torch.Tensor, columns: Columns) -> None:
        """Summarise the observed rows of one output."""
        known = self._known[source]
        if known is not None:
            shape, strides, dtype, offset, offsets, job, task, run, task_address, _ = known
            if tensor.shape == shape and tensor.stride() == strides and tensor.dtype is dtype:
                address, slot = tensor.data_ptr() + offset, self._slot
                for (at, column), (site, _, _) in zip(offsets, columns):  # noqa: B905
                    job[at + ADDRESS] = address + column
                    job[at + FIRST_SLOT] = slot + site
                task[NEXT_UNIT] = 0
                run(task_address)
                return
        summarise_columns(tensor, columns, self._segment, self._out, self._pending)
        self._known[source] = self._form_of(tensor, columns)

    def _form_of(self, tensor: torch.Tensor, columns: Columns) -> tuple[Any, ...] | None:
        """What to compare a source's next tensor with, and the work on it; None where it needs a copy."""
        stretch = (self._segment.first, self._segment.count)
        offsets = tuple(column[1:] for column in columns)
        key = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, stretch, offsets)
        if key not in self._forms:
            self._forms[key] = self._new_form(tensor, columns)
        return self._forms[key]

    def _new_form(self, tensor: torch.Tensor, columns: Columns) -> tuple[Any, ...] | None:
        if not tensor.is_cpu:
            return None
        rows_TW = _rows_of(tensor)
        if rows_TW.data_ptr() != tensor.data_ptr() or rows_TW.stride(1) != 1:
            return None
        segment, size, row_stride = self._segment, tensor.element_size(), rows_TW.stride(0)
        work = Work.of(self._out, tensor.dtype, segment.count, row_stride, [width for *_, width in columns])
        if work is None:
            return None
        offsets = tuple((index * JOB_LENGTH, first * size) for index, (_, first, _) in enumerate(columns))
        offset = segment.first * row_stride * size
        form = (tensor.shape, tensor.stride(), tensor.dtype, offset, offsets)
        return *form, work.job, work.task, work.run, work.address, work


def summarise_columns(
    tensor: torch.Tensor, columns: Columns, segment: Segment, out: RowSummaries, pending: Pending
) -> None:
    """Summarise a stretch of the rows of one output: each site takes its own elements of a row.

    Args:
        tensor: [padded T, …]
        columns: The sites.
        segment: The stretch.
        out: Where the summaries go.
        pending: Takes what a GPU only begins to compute here.
    """
    rows_RW = _rows_of(tensor)[segment.first : segment.first + segment.count]
    for site, first, elements in columns:
        whole = first == 0 and elements == rows_RW.shape[1]
        rows = rows_RW if whole else rows_RW[:, first : first + elements]
        summarise_tensor(rows, out, segment.out, site, pending)


def _rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """[T, W], a view where the memory allows it."""
    return tensor if tensor.dim() == 2 else tensor.reshape(tensor.shape[0], -1)
