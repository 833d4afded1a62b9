"""What is done with the observed tensors of one forward pass: which rows they hold, where summaries go.

Axes: B sequences in the batch, T columns of the pass, H heads, S sites, W elements of a row, R rows.
Every output is summarised when its module hands it over: while its values are in the CPU's cache, and
before a later operation can overwrite them. What a GPU summarises is enqueued then, and fetched later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from ..row_summaries.gpu_queue import Pending, RepeatedOnDevice
from ..row_summaries.summaries import RowSummaries
from ..row_summaries.summarise import RepeatedRows, summarise_tensor


class Layout(Enum):
    """Where the token axis of an output lies. Found once, with sizes that tell the axes apart."""

    BATCH_FIRST = "[B or 1, T, …]: 1 where all sequences share the rows (rotary tables)"
    HEADS_FIRST = "[B, H, T, D]: a norm of queries or keys behind the transpose"
    TIME_FIRST = "[T, B, …]: torch's recurrent and transformer modules, unless told otherwise"
    CHANNELS_FIRST = "[B or 1, W, T]: convolutions"
    TABLE = "[T, W]: rows that all sequences share (learned positions)"
    FLAT = "[B·T, …]: routers and experts"

    def sequences(self, shape: torch.Size, batch: int) -> int:
        """How many sequences have rows of their own in an output of this shape: B, or 1 for all."""
        if self is Layout.TABLE:
            return 1
        return shape[0] if self in (Layout.BATCH_FIRST, Layout.CHANNELS_FIRST) else batch


_MAY_BE_SHARED = (Layout.BATCH_FIRST, Layout.CHANNELS_FIRST, Layout.TABLE)


def layout_of(tensor: torch.Tensor, batch: int, tokens: int) -> Layout | None:
    """The layout of an output, or None where it has no row per token.

    Args:
        tensor: Output of a module.
        batch: B, different from all other sizes in the model.
        tokens: T, likewise. An output with a second axis of this size (attention weights) has rows that
            grow with the context; they are not observed.
    """
    shape = tensor.shape
    if not tensor.numel():
        return None
    if len(shape) >= 2 and shape[0] in (batch, 1) and shape[1] == tokens and tokens not in shape[2:]:
        return Layout.BATCH_FIRST
    if len(shape) == 4 and shape[0] == batch and shape[2] == tokens and tokens not in (shape[1], shape[3]):
        return Layout.HEADS_FIRST
    if len(shape) >= 3 and shape[:2] == (tokens, batch) and (tokens == 1 or tokens not in shape[2:]):
        return Layout.TIME_FIRST
    if len(shape) == 3 and shape[0] in (batch, 1) and shape[2] == tokens != shape[1]:
        return Layout.CHANNELS_FIRST
    if len(shape) >= 1 and shape[0] == batch * tokens and (tokens == 1 or tokens not in shape[1:]):
        return Layout.FLAT
    if len(shape) == 2 and shape[0] == tokens != shape[1]:
        return Layout.TABLE
    return None


@dataclass(frozen=True)
class RowShape:
    """How the rows of one site lie in its tensor."""

    layout: Layout
    width: int
    """W."""

    def of(self, tensor: torch.Tensor, batch: int, tokens: int) -> torch.Tensor | None:
        """The rows [B or 1, T, W] of an output, as a view where possible.

        Returns:
            None where this output has other axes than the one the site was discovered with, as when only
            some tokens went through the module.
        """
        shape = tensor.shape
        turned: tuple[int, int] | None = None
        if self.layout is Layout.FLAT:
            fits = len(shape) >= 1 and shape[0] == batch * tokens
        elif self.layout is Layout.TABLE:
            fits = len(shape) == 2 and shape[0] == tokens
        elif self.layout is Layout.BATCH_FIRST:
            fits = len(shape) >= 2 and shape[1] == tokens and shape[0] in (batch, 1)
        elif self.layout is Layout.TIME_FIRST:
            fits, turned = len(shape) >= 3 and shape[:2] == (tokens, batch), (0, 1)
        elif self.layout is Layout.CHANNELS_FIRST:
            fits, turned = len(shape) == 3 and shape[0] in (batch, 1) and shape[2] == tokens, (1, 2)
        else:
            fits, turned = len(shape) == 4 and shape[0] == batch and shape[2] == tokens, (1, 2)
        if not fits:
            return None
        sequences = self.layout.sequences(shape, batch)
        if tensor.numel() != sequences * tokens * self.width:
            return None
        tensor = tensor.detach()  # a program that trains has its own use for the graph
        return (tensor.transpose(*turned) if turned else tensor).reshape(sequences, tokens, self.width)


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
        chosen = slice(batch_row, steps * self.batch, self.batch)
        whole = self.summaries
        return RowSummaries(
            whole.row_hash[chosen], whole.l2[chosen], whole.absmax[chosen], whole.sketch[chosen]
        )


class LongPass:
    """A pass of T > 1 columns: summarised tensor by tensor, before anything can overwrite it."""

    def __init__(
        self, segments: list[Segment], batch: int, tokens: int, rows: Sequence[RowShape], keep: Keep | None
    ) -> None:
        self._segments, self._batch, self._tokens, self._rows, self._keep = (
            segments,
            batch,
            tokens,
            rows,
            keep,
        )
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
        self._again = block.repeated.again
        self._looked_at: set[int] = set()
        self._kept: set[int] = set()

    def see(self, site: int, tensor: torch.Tensor) -> None:
        """Summarise one output; a module that runs more often than it was discovered to is not followed."""
        if not self._again(site, tensor, self._first):
            self._see_closely(site, tensor)
        if self._keep is not None and site not in self._kept:
            self._kept.add(site)
            self._keep_rows(site, tensor)

    def _see_closely(self, site: int, tensor: torch.Tensor) -> None:
        if site in self._looked_at:
            return
        self._looked_at.add(site)
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
        if tensor.is_cpu or not self._block.on_device.see(site, tensor, shape.width, self._first, times):
            self._block.repeated.first(site, tensor, shape.width, self._first)

    def _keep_rows(self, site: int, tensor: torch.Tensor) -> None:
        rows_BTW = self._rows[site].of(tensor, self._block.batch, 1)
        if rows_BTW is not None and self._keep is not None:
            for row in range(self._block.batch):
                self._keep(row, self._step, site, rows_BTW[row if rows_BTW.shape[0] > 1 else 0])

    def end(self) -> None:
        """Give every sequence the rows that serve the whole batch. (A GPU gave them already, and overwrites
        what is copied here.)"""
        first, batch = self._first, self._block.batch
        for site in self._block.shared:
            _copy_site(
                self._block.summaries, slice(first, first + 1), site, slice(first + 1, first + batch), site
            )


def _copy_site(out: RowSummaries, from_rows: slice, from_site: int, to_rows: slice, to_site: int) -> None:
    for array in (out.row_hash, out.l2, out.absmax, out.sketch):
        array[to_rows, to_site] = array[from_rows, from_site]
