"""Token rows of a batch: which of them are observed, and how a step's tensors become their summaries.

vLLM lays the tokens of a batch out flat. Axes: T token rows of a step (padding behind them), W elements of a
row, S sites, R observed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...row_summaries.gpu_queue import Pending
from ...row_summaries.summaries import RowSummaries
from ...row_summaries.summarise import ADDRESS, FIRST_SLOT, JOB_LENGTH, NEXT_UNIT, Work, summarise_tensor

if TYPE_CHECKING:
    import torch

NOBODY = -1
"""Request number of a row that lies between observed ones and is dropped."""

SPAN_ROWS = 64
"""Up to so many rows are summarised in one go although some between them are not observed: that is cheaper
than a call for every stretch."""

KNOWN_SHAPES = 16
"""Batch shapes whose tensors are remembered."""


@dataclass(frozen=True)
class StepInputs:
    """One forward pass, as a model runner prepared it. All lists are in the order of its batch.

    Attributes:
        request_ids: vLLM's ids.
        counts: Tokens of each request in this pass.
        drafts: How many of them are drafts of speculative decoding.
        token_ids: [T], the ids fed: a copy of its own, perhaps on a device.
        positions: [T], likewise; None where they do not count tokens.
        computed: Tokens of each request that were in the KV cache before, where `positions` do not tell.
        padded: Rows of the pass, padding included.
    """

    request_ids: Sequence[str]
    counts: Sequence[int]
    drafts: Sequence[int]
    token_ids: torch.Tensor
    positions: torch.Tensor | None
    computed: Sequence[int]
    padded: int


@dataclass(frozen=True)
class Segment:
    """Token rows `first … first + count − 1` of a step go to rows `out …` of the summaries."""

    first: int
    count: int
    out: int


def segments_of(
    inputs: StepInputs, numbers: Sequence[int], first_out: int
) -> tuple[list[Segment], np.ndarray[Any, Any]]:
    """Which rows of a step are observed.

    Args:
        inputs: The step.
        numbers: The number of each request of the batch, NOBODY where it is not observed.
        first_out: Output row of the first one.

    Returns:
        The stretches, and the batch rows int32[R]: which request of the batch each output row belongs to,
        NOBODY where it is to be dropped.
    """
    ends = np.cumsum(inputs.counts)
    stretches: list[tuple[int, int]] = []
    for row, number in enumerate(numbers):
        first, end = int(ends[row]) - inputs.counts[row], int(ends[row])
        if number == NOBODY or first == end:
            continue
        if stretches and stretches[-1][1] == first:
            stretches[-1] = (stretches[-1][0], end)
        else:
            stretches.append((first, end))
    if len(stretches) > 1 and stretches[-1][1] - stretches[0][0] <= SPAN_ROWS:
        stretches = [(stretches[0][0], stretches[-1][1])]
    owners = np.repeat(np.arange(len(numbers), dtype=np.int32), inputs.counts)
    owners[np.asarray(numbers, np.int32)[owners] == NOBODY] = NOBODY
    segments, kept = [], []
    for first, end in stretches:
        segments.append(Segment(first, end - first, first_out))
        kept.append(owners[first:end])
        first_out += end - first
    return segments, np.concatenate(kept) if kept else np.zeros(0, np.int32)


Columns = tuple[tuple[int, int, int], ...]
"""The sites within a row: (site, first element, elements)."""


class RepeatedSteps:
    """Summarises tensors into one block of rows, and remembers for every batch shape what they were like.

    The tensors of a decode step are those of the step before with other values. Then a call of the kernel
    needs its address and its output row, and nothing else is looked at. Between two calls a model reads
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
            shape, strides, dtype, offset, places, job, task, run, task_address, _ = known
            if tensor.shape == shape and tensor.stride() == strides and tensor.dtype is dtype:
                address, slot = tensor.data_ptr() + offset, self._slot
                for (at, column), (site, _, _) in zip(places, columns):  # noqa: B905
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
        places = tuple(column[1:] for column in columns)
        key = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, stretch, places)
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
        places = tuple((index * JOB_LENGTH, first * size) for index, (_, first, _) in enumerate(columns))
        offset = segment.first * row_stride * size
        form = (tensor.shape, tensor.stride(), tensor.dtype, offset, places)
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
