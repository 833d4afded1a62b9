"""Summarising the tensors of one forward pass, output by output, into the summaries of its sequences.

Every output is summarised when its module hands it over: while its values are in the CPU's cache, and
before a later operation can overwrite them. What a GPU summarises is enqueued then, and fetched later.
Axes: B sequences in the batch, T columns of the pass, S sites, W elements of a row, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..row_summaries.gpu_queue import Pending, RepeatedOnDevice
from ..row_summaries.rows import RowSummaries
from ..row_summaries.summarise import RepeatedRows, summarise_tensor
from .modules import Layout, RowShape

_MAY_BE_SHARED = (Layout.BATCH_FIRST, Layout.CHANNELS_FIRST, Layout.TABLE)


@dataclass(frozen=True)
class Segment:
    """Which rows of a forward pass belong to one recorded sequence, and where their summaries go.

    Attributes:
        batch_row: Index into B.
        first_column: First column of T that is not padding.
        count: Number of rows.
        out: Summaries of this sequence's rows.
        first_row: Row of `out` that the first of them fills.
    """

    batch_row: int
    first_column: int
    count: int
    out: RowSummaries
    first_row: int


Keep = Callable[[int, int, int, torch.Tensor], None]
"""Called with (batch row, first row of the block, site, rows [R, W]) where rows themselves are kept."""


class StepBlock:
    """Room for the summaries of several decode steps of a whole batch: row `step · B + batch row`."""

    def __init__(self, steps: int, batch: int, sites: int) -> None:
        self.batch = batch
        self.summaries = RowSummaries.empty(steps * batch, sites)
        self.repeated = RepeatedRows(self.summaries)
        self.on_device = RepeatedOnDevice(self.summaries)
        self.shared: set[int] = set()
        """Sites with one row that serves the whole batch."""

    def of_row(self, batch_row: int, steps: int) -> RowSummaries:
        """The first `steps` rows of one sequence, as views."""
        self.on_device.settle()
        return self.summaries.at(slice(batch_row, steps * self.batch, self.batch))


class LongPass:
    """A pass of T > 1 columns: summarised tensor by tensor, before anything can overwrite it."""

    def __init__(
        self, segments: list[Segment], batch: int, tokens: int, rows: Sequence[RowShape], keep: Keep | None
    ) -> None:
        self._segments, self._batch, self._tokens = segments, batch, tokens
        self._rows, self._keep = rows, keep
        self._seen: set[int] = set()
        self._pending = Pending()
        self._previous: tuple[torch.Tensor, int, int] | None = None

    def see(self, site: int, tensor: torch.Tensor) -> None:
        """Summarise one output; a module that runs more often than it was discovered to is not followed."""
        if site in self._seen:
            return
        self._seen.add(site)
        previous, source = self._previous, None
        # A module that hands on its last child's tensor (mlp → down_proj): same rows, same summaries.
        if previous is not None and previous[0] is tensor and previous[1] == tensor._version:
            # Those of a GPU are not here yet: it makes them once more.
            source = previous[2] if tensor.is_cpu else None
        rows_BTW = None
        if source is None or self._keep is not None:
            rows_BTW = self._rows[site].of(tensor, self._batch, self._tokens)
            if rows_BTW is None:
                return
        for segment in self._segments:
            if source is not None:
                filled = slice(segment.first_row, segment.first_row + segment.count)
                _copy_site(segment.out, filled, source, filled, site)
            if rows_BTW is None:
                continue
            row = segment.batch_row if rows_BTW.shape[0] > 1 else 0
            rows_RW = rows_BTW[row, segment.first_column : segment.first_column + segment.count]
            if source is None:
                summarise_tensor(rows_RW, segment.out, segment.first_row, site, self._pending)
            if self._keep is not None:
                self._keep(segment.batch_row, segment.first_row, site, rows_RW)
        self._previous = (tensor, tensor._version, site)

    def end(self) -> None:
        """Everything was summarised on the way, by the CPU."""
        self._pending.settle()


class StepPass:
    """A decode step (T = 1) of the whole batch: summarised output by output, like the step before."""

    def __init__(self, block: StepBlock, step: int, rows: Sequence[RowShape], keep: Keep | None) -> None:
        self._block, self._step, self._rows, self._keep = block, step, rows, keep
        self._first = step * block.batch
        self._summarise_like_last = block.repeated.summarise_like_last
        self._examined: set[int] = set()
        self._kept: set[int] = set()

    def see(self, site: int, tensor: torch.Tensor) -> None:
        """Summarise one output; a module that runs more often than it was discovered to is not followed."""
        if not self._summarise_like_last(site, tensor, self._first):
            self._see_first(site, tensor)
        if self._keep is not None and site not in self._kept:
            self._kept.add(site)
            self._keep_rows(site, tensor)

    def _see_first(self, site: int, tensor: torch.Tensor) -> None:
        if site in self._examined:
            return
        self._examined.add(site)
        batch, shape = self._block.batch, self._rows[site]
        times = 1
        if tensor.numel() != batch * shape.width:
            if shape.layout not in _MAY_BE_SHARED or tensor.numel() != shape.width:
                return  # only some tokens went through this module
            times = batch
            self._block.shared.add(site)
        else:
            self._block.shared.discard(site)
        # With T = 1 every layout has its rows in batch order; only the shape may say otherwise.
        first = self._first
        if tensor.is_cpu or not self._block.on_device.summarise(site, tensor, shape.width, first, times):
            self._block.repeated.summarise_first(site, tensor, shape.width, first)

    def _keep_rows(self, site: int, tensor: torch.Tensor) -> None:
        rows_BTW = self._rows[site].of(tensor, self._block.batch, 1)
        if rows_BTW is not None and self._keep is not None:
            for row in range(self._block.batch):
                self._keep(row, self._step, site, rows_BTW[row if rows_BTW.shape[0] > 1 else 0])

    def end(self) -> None:
        """Give every sequence the rows that serve the whole batch. (A GPU has done so already, and overwrites
        what is copied here.)"""
        first, batch = self._first, self._block.batch
        for site in self._block.shared:
            _copy_site(
                self._block.summaries, slice(first, first + 1), site, slice(first + 1, first + batch), site
            )


def _copy_site(out: RowSummaries, from_rows: slice, from_site: int, to_rows: slice, to_site: int) -> None:
    for array in out.arrays():
        array[to_rows, to_site] = array[from_rows, from_site]
