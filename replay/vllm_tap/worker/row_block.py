"""Room for the rows of several steps: filled by the worker, handed over to be written, and used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...row_summaries.gpu_queue import Pending
from ...row_summaries.summaries import RowSummaries
from ..files.part import ROW_FIELDS, SUMMARIES, Part, TappedRequest
from .kept_logits import LogitsStore, collect
from .step import Step
from .step_summaries import NOBODY, RepeatedSteps

SUMMARY_BYTES = 88
"""Of one row at one site."""


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
        return self.summaries.l2.size * SUMMARY_BYTES + self.logits.nbytes()

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
        summaries = _of_rows(self.summaries, slice(0, self.used))
        _fill(summaries, self._twins)
        kept = table[:, 0] != NOBODY
        following = collect(self.logits.kept, (np.cumsum(kept) - 1).tolist(), topk)
        if not kept.all():
            table, summaries = table[kept], _of_rows(summaries, kept)
        return Part(requests, ended, table, summaries, following)

    def clear(self) -> None:
        """Make room again."""
        self.summaries.row_hash[: self.used] = 0
        self._steps, self.numbers, self.used = [], set(), 0
        self.logits.clear()


def _fill(summaries: RowSummaries, twins: npt.NDArray[np.int64]) -> None:
    """Give sites that were left out the rows of their twins."""
    mine, theirs = twins[:, 0], twins[:, 1]
    row, index = np.nonzero(~summaries.row_hash[:, mine].any(axis=-1))
    for name in SUMMARIES:
        array = getattr(summaries, name)
        array[row, mine[index]] = array[row, theirs[index]]


def _of_rows(
    summaries: RowSummaries, rows: slice | np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> RowSummaries:
    return RowSummaries(*(getattr(summaries, name)[rows] for name in SUMMARIES))
