"""Room for the rows and logits of several steps: filled by the worker, handed over for writing, used again.

Axes: T token rows of a step, W elements of a row, S sites, R observed rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...row_summaries.gpu_queue import Pending
from ...row_summaries.rows import SLOT_BYTES, RowSummaries, TopK
from ...row_summaries.summarise import (
    ADDRESS,
    FIRST_SLOT,
    JOB_LENGTH,
    NEXT_UNIT,
    KernelCall,
    summarise_tensor,
)
from ...row_summaries.token_distribution import top_k_of_rows
from ..part_file import REQUEST, ROW_FIELDS, Distributions, Part, TappedRequest
from .step import NOBODY, Segment, Step

STORE_BYTES = 24 << 20
"""Logits that a block of rows can keep without asking for more memory."""


@dataclass(frozen=True, eq=False)
class KeptLogits:
    """Raw logits of some rows, as they were before the sampler worked on them in place.

    Attributes:
        rows: The output row of each.
        logits_RV: A copy of their own, perhaps still being made on a device.
        ready: When it is made; None on the CPU.
    """

    rows: Sequence[int]
    logits_RV: torch.Tensor
    ready: torch.cuda.Event | None

    def nbytes(self) -> int:
        """Bytes of the copy."""
        return self.logits_RV.numel() * self.logits_RV.element_size()

    def distributions(self, k: int) -> list[TopK]:
        """Hash, log-sum-exp and the K most likely ids of each row; K = 0: only the hash."""
        if self.ready is not None:
            self.ready.synchronize()
        logits_RV = self.logits_RV.cpu()
        if k:
            return top_k_of_rows(logits_RV, k)
        summaries = RowSummaries.empty(len(self.rows), 1)
        summarise_tensor(logits_RV, summaries, 0, 0)
        none = np.zeros(0, np.float32)
        return [
            TopK(np.zeros(0, np.int32), none, none, None, digest.tobytes())
            for digest in summaries.digests()[:, 0]
        ]


class LogitsStore:
    """Keeps raw logits on the way to their distributions, in memory that is used again and again.

    Fresh memory for every step would have to be mapped page by page: that takes longer than the copy.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._used = 0
        self.kept: list[KeptLogits] = []

    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(kept.nbytes() for kept in self.kept)

    def keep(self, logits_RV: torch.Tensor, rows: Sequence[int | None]) -> None:
        """Keep the rows of logits that belong to an output row, as they are now."""
        chosen = [index for index, row in enumerate(rows) if row is not None]
        wanted = logits_RV if len(chosen) == len(rows) else logits_RV[chosen]
        copy, ready = self._room_for(wanted).copy_(wanted), None
        if copy.is_cuda:
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self.kept.append(KeptLogits([row for row in rows if row is not None], copy, ready))

    def clear(self) -> None:
        """Nothing is kept any more."""
        self.kept, self._used = [], 0

    def _room_for(self, wanted: torch.Tensor) -> torch.Tensor:
        count, memory = len(wanted), self._memory
        alike = memory is not None and (memory.shape[1:], memory.dtype) == (wanted.shape[1:], wanted.dtype)
        if not alike and not self._used:
            most = max(1, STORE_BYTES // (wanted.shape[1] * wanted.element_size()))
            memory = self._memory = torch.empty_like(wanted[:1]).new_empty((most, wanted.shape[1]))
            alike = True
        if memory is None or not alike or self._used + count > len(memory):
            return torch.empty_like(wanted)
        self._used += count
        return memory[self._used - count : self._used]


def collect(kept: Iterable[KeptLogits], row_in_part: Sequence[int], k: int) -> Distributions:
    """Distributions of kept logits, as a part holds them.

    Args:
        row_in_part: Of each output row.
    """
    rows: list[int] = []
    items: list[TopK] = []
    for logits in kept:
        rows += [row_in_part[row] for row in logits.rows]
        items += logits.distributions(k)
    if not items:
        return Distributions.none()
    return Distributions(
        np.array(rows, np.int32),
        np.stack([item.ids for item in items]).astype(np.int32),
        np.stack([item.logits for item in items if item.logits is not None]).astype(np.float32),
        np.stack([item.logprobs for item in items]).astype(np.float32),
        np.array([np.nan if item.logsumexp is None else item.logsumexp for item in items], np.float64),
        np.frombuffer(b"".join(item.logits_hash or bytes(16) for item in items), np.uint64).reshape(-1, 2),
    )


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

    def copy_to_host(self) -> None:
        """Have everything that devices know on the host: then `part` may run on another thread."""
        self.pending.settle()
        for step in self._steps:
            step.copy_to_host()

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
        work = KernelCall.of(
            self._out, tensor.dtype, segment.count, row_stride, [width for *_, width in columns]
        )
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
    """
    rows_RW = _rows_of(tensor)[segment.first : segment.first + segment.count]
    for site, first, elements in columns:
        whole = first == 0 and elements == rows_RW.shape[1]
        rows = rows_RW if whole else rows_RW[:, first : first + elements]
        summarise_tensor(rows, out, segment.out, site, pending)


def _rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """[T, W], a view where the memory allows it."""
    return tensor if tensor.dim() == 2 else tensor.reshape(tensor.shape[0], -1)
