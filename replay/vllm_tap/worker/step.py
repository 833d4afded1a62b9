"""One forward pass of a vLLM worker: which of its token rows are observed, and where they and its logits go.

vLLM lays the tokens of a batch out flat. Axes: T token rows of a step (padding behind them), R observed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..part_file import ROW_FIELDS

if TYPE_CHECKING:
    import torch

NOBODY = -1
"""Request number of a row that lies between observed ones and is dropped."""

SPAN_ROWS = 64
"""Up to so many rows are summarised in one go although some between them are not observed: that is cheaper
than a call for every stretch."""


@dataclass(frozen=True)
class StepInputs:
    """One forward pass, as a model runner prepared it. All lists are in the order of its batch.

    Attributes:
        request_ids: vLLM's ids.
        counts: Tokens of each request in this pass.
        drafts: How many of them are drafts of speculative decoding.
        token_ids: [T], the ids fed: a copy of its own, perhaps on a device.
        positions: [T], likewise; None where they do not count tokens.
        computed: Tokens of each request that were in the KV cache before, where there are no `positions`.
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


@dataclass(eq=False)
class Step:
    """One forward pass some of whose rows are observed.

    Attributes:
        number: Of the pass.
        inputs: What the runner prepared.
        numbers: The number of each request of the batch, or NOBODY.
        segments: The observed stretches of its token rows.
        owners: int32[R], batch row of each observed row, or NOBODY.
        output: [T, W], what the model returned, while logits are computed from it.
    """

    number: int
    inputs: StepInputs
    numbers: Sequence[int]
    segments: Sequence[Segment]
    owners: np.ndarray[Any, Any]
    output: torch.Tensor | None = None

    def copy_to_host(self) -> None:
        """Bring to the host what a device knows. Then `table` needs no device any more."""
        inputs = self.inputs
        self._token_ids = inputs.token_ids.cpu().numpy()
        self._positions = None if inputs.positions is None else inputs.positions.cpu().numpy()

    def table(self) -> np.ndarray[Any, Any]:
        """The row table of a step that has landed: int32[R, len(ROW_FIELDS)]. May run on any thread."""
        inputs, owners = self.inputs, self.owners
        tokens = np.concatenate([np.arange(item.first, item.first + item.count) for item in self.segments])
        firsts = np.cumsum([0, *inputs.counts[:-1]])
        if self._positions is None:
            computed = np.asarray(inputs.computed, np.int32)
        else:
            computed = self._positions[firsts].astype(np.int32)
        columns = {
            "request": np.where(owners == NOBODY, NOBODY, np.asarray(self.numbers, np.int32)[owners]),
            "position": computed[owners] + tokens - firsts[owners],
            "token_id": self._token_ids[tokens],
            "step": self.number,
            "batch_size": len(inputs.request_ids),
            "batch_row": owners,
            "num_tokens": np.asarray(inputs.counts, np.int32)[owners],
            "padded_tokens": inputs.padded - sum(inputs.counts),
            "cached_tokens": computed[owners],
        }
        table = np.empty((len(owners), len(ROW_FIELDS)), np.int32)
        for index, name in enumerate(ROW_FIELDS):
            table[:, index] = columns[name]
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
