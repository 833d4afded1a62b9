"""The forward passes of a program's own loop: each is observed, its rows go to the trace.

It knows taps and the writer, not how the program calls its model. Axes: B sequences, T columns of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from ...schemas.errors import BadInput
from ...schemas.trace import TraceHeader
from ..capture.observed_passes import Segment, StepBlock
from ..capture.site_discovery import Axes
from ..capture.taps import Taps
from ..row_summaries.rows import RowSummaries
from ..trace_writer import TraceWriter
from .fed_sequences import FedSequence, NewRows
from .program_header import ProgramHeader

BLOCK = 64
"""Rows of a sequence that are handed over together; a killed program loses them and the writer's buffer."""


class ProgramPasses:
    """Observes pass after pass, of one request after another.

    Args:
        taps: On the model; the first pass shows them its sites.
        axes: How the program lays out its tensors, where it was stated.
    """

    def __init__(self, taps: Taps, axes: Axes | None, header: ProgramHeader, path: Path, force: bool) -> None:
        self._taps, self._axes, self._header = taps, axes, header
        self._path, self._force = path, force
        self._attached = ExitStack()
        self._block: StepBlock | None = None
        self._block_steps = 0
        self.writer: TraceWriter | None = None
        """None before the first pass, which shows how wide the trace is."""
        self.sequences: list[FedSequence] = []
        """Those of the running request; none before its first pass."""
        self.new_rows: list[NewRows] = []
        """What the last pass computed."""
        self.columns = 0
        """T of the last pass."""

    @contextmanager
    def forward_pass(self, ids_BT: list[list[int]], at_BT: Sequence[list[int] | None]) -> Iterator[None]:
        """One forward pass: observed while the context lasts, recorded when it ends well.

        Args:
            ids_BT: The token ids that it is fed.
            at_BT: Their positions, where they are stated.

        Raises:
            BadInput: The ids do not go on where the request stands, or the first pass shows no site.
            OutputFailed: The trace cannot be written.
        """
        batch, columns = len(ids_BT), len(ids_BT[0])
        if not self.sequences:
            self.sequences = self._header.sequences(batch)
        if batch != len(self.sequences):
            raise BadInput(
                f"a pass of {batch} sequences, after one of {len(self.sequences)}",
                "begin another request with tap.request(…) where the batch changes",
            )
        rows = [
            sequence.new_rows(ids, at, row, batch)
            for row, (sequence, ids, at) in enumerate(zip(self.sequences, ids_BT, at_BT, strict=True))
        ]
        for item in rows:
            if item.token_ids:
                item.sequence.set_next_token(item.token_ids[0])
        if any(sequence.pending >= BLOCK for sequence in self.sequences):
            self.hand_over()
        with self._observe(rows, columns):
            yield
        self.new_rows, self.columns = rows, columns

    def _observe(self, rows: list[NewRows], columns: int) -> AbstractContextManager[None]:
        if self.writer is None:
            return self._first(rows, columns)
        if columns == 1 and all(item.token_ids for item in rows):
            return self._step(rows)
        return self._long(rows, columns)

    def add_last(self, tokens: Sequence[int]) -> None:
        """The tokens that were chosen last and are never fed; they end the request."""
        self._close_block()
        for sequence, token in zip(self.sequences, tokens, strict=True):
            sequence.take_last(token, len(self._taps.sites))
        self.end_request()

    def end_request(self) -> None:
        """The next pass begins other sequences."""
        self.hand_over()
        self.sequences, self.new_rows = [], []

    def hand_over(self) -> None:
        """Every row so far goes to the writer."""
        self._close_block()
        if self.writer is None:
            return
        self.writer.update(self.header())
        for sequence in self.sequences:
            if sequence.pending:
                rows = sequence.rows()
                self._header.count_absent(rows)
                self.writer.append(sequence.info, rows)

    def header(self) -> TraceHeader:
        """The trace's header as far as it is known."""
        return self._header.header(self._taps, self.sequences)

    def detach(self) -> None:
        """Take the taps off the model."""
        self._attached.close()

    @contextmanager
    def _first(self, rows: list[NewRows], columns: int) -> Iterator[None]:
        spans = [(item.batch_row, item.first_column, len(item.token_ids)) for item in rows]
        with self._taps.first_pass(spans, len(rows), columns, self._axes) as first:
            yield
        if not self._taps.sites:
            reasons = "; ".join(self._taps.not_seen) or "none of its modules ran"
            raise BadInput(
                f"nothing can be observed in the first pass: {reasons}",
                "tap a module whose children do the work, uncompiled, with a sites pattern that they match",
            )
        self.writer = TraceWriter(self._path, self.header(), force=self._force)
        self._attached.enter_context(self._taps.attached())
        self._take(rows, list(first.summaries()), columns)

    @contextmanager
    def _long(self, rows: list[NewRows], columns: int) -> Iterator[None]:
        self._close_block()
        out = [RowSummaries.empty(len(item.token_ids), len(self._taps.sites)) for item in rows]
        segments = [
            Segment(item.batch_row, item.first_column, len(item.token_ids), summaries, 0)
            for item, summaries in zip(rows, out, strict=True)
            if item.token_ids
        ]
        with self._taps.long_pass(segments, len(rows), columns, None):
            yield
        self._take(rows, list(out), columns)

    @contextmanager
    def _step(self, rows: list[NewRows]) -> Iterator[None]:
        if self._block_steps == BLOCK:
            self._close_block()
        if self._block is None:
            self._block = StepBlock(BLOCK, len(rows), len(self._taps.sites))
        try:
            with self._taps.step(self._block, self._block_steps, None):
                yield
        except BaseException:
            self._close_block()  # a step that failed half-way must not lend its place to the next one
            raise
        self._block_steps += 1
        self._take(rows, [None] * len(rows), 1)

    def _take(self, rows: list[NewRows], summaries: Sequence[RowSummaries | None], columns: int) -> None:
        for item, own in zip(rows, summaries, strict=True):
            item.sequence.take(item, own, columns)

    def _close_block(self) -> None:
        """The summaries of the steps so far go to their sequences."""
        if self._block is not None and self._block_steps:
            for row, sequence in enumerate(self.sequences):
                sequence.take_summaries(self._block.of_row(row, self._block_steps))
        self._block, self._block_steps = None, 0
