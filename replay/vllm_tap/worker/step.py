"""One forward pass some of whose rows are observed: its row table, and which rows its logits belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files.part import ROW_FIELDS
from .step_summaries import NOBODY, Segment, StepInputs

if TYPE_CHECKING:
    import torch


class Step:
    """One forward pass some of whose rows are observed.

    Args:
        number: Of the pass.
        inputs: What the runner prepared.
        numbers: The number of each request of the batch, or NOBODY.
        segments: The observed stretches of its token rows.
        owners: int32[R], batch row of each observed row, or NOBODY.
    """

    def __init__(
        self,
        number: int,
        inputs: StepInputs,
        numbers: Sequence[int],
        segments: Sequence[Segment],
        owners: np.ndarray[Any, Any],
    ) -> None:
        self.number, self.inputs, self.numbers = number, inputs, numbers
        self.segments, self.owners = segments, owners
        self.output: torch.Tensor | None = None
        """[T, W], what the model returned, while logits are computed from it."""

    def land(self) -> None:
        """Bring to the host what a device knows. Then `table` needs no device any more."""
        inputs = self.inputs
        self._token_ids = inputs.token_ids.cpu().numpy()
        self._positions = None if inputs.positions is None else inputs.positions.cpu().numpy()

    def table(self) -> np.ndarray[Any, Any]:
        """The row table of a step that has landed: int32[R, len(ROW_FIELDS)]. May run on any thread."""
        inputs, owners = self.inputs, self.owners
        table = np.zeros((len(owners), len(ROW_FIELDS)), np.int32)
        tokens = np.concatenate([np.arange(item.first, item.first + item.count) for item in self.segments])
        firsts = np.cumsum([0, *inputs.counts[:-1]])
        if self._positions is None:
            computed = np.asarray(inputs.computed, np.int32)
        else:
            computed = self._positions[firsts].astype(np.int32)
        table[:, 0] = np.where(owners == NOBODY, NOBODY, np.asarray(self.numbers, np.int32)[owners])
        table[:, 1] = computed[owners] + tokens - firsts[owners]
        table[:, 2] = self._token_ids[tokens]
        table[:, 3] = self.number
        table[:, 4] = len(inputs.request_ids)
        table[:, 5] = owners
        table[:, 6] = np.asarray(inputs.counts, np.int32)[owners]
        table[:, 7] = inputs.padded - sum(inputs.counts)
        table[:, 8] = computed[owners]
        return table

    def rows_of_logits(self, hidden: torch.Tensor) -> list[int | None]:
        """Which output row each row of logits belongs to; None: to one that is not observed.

        Args:
            hidden: What the logits were computed from: the rows to sample, gathered, or a stretch of the
                model's output (a prompt being scored).
        """
        output = self.output
        if output is not None and hidden.untyped_storage().data_ptr() == output.untyped_storage().data_ptr():
            offset = hidden.storage_offset() - output.storage_offset()
            first = offset // output.stride(0)
            tokens = list(range(first, first + hidden.shape[0]))
        else:
            ends = np.cumsum(self.inputs.counts)
            tokens = [
                int(end) - 1 - back
                for end, drafts in zip(ends, self.inputs.drafts, strict=True)
                for back in range(drafts, -1, -1)
            ]
            if len(tokens) != hidden.shape[0]:
                return []
        return [self._row_of_token(token) for token in tokens]

    def _row_of_token(self, token: int) -> int | None:
        before = 0
        for segment in self.segments:
            if segment.first <= token < segment.first + segment.count:
                at = token - segment.first
                return segment.out + at if self.owners[before + at] != NOBODY else None
            before += segment.count
        return None
