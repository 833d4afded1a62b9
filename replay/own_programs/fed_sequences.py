"""The sequences that a program's own loop feeds to its model: their tokens, positions, and rows so far.

It knows token ids, positions and logits, not the model. Axes: B sequences in the batch, T columns of a pass,
R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.errors import BadInput
from ..row_summaries.rows import ExecutionShape, Rows, RowSummaries, TopK
from ..row_summaries.token_distribution import top_k_and_next, with_next
from ..trace_writer import SequenceInfo

if TYPE_CHECKING:
    import torch

SURE = 8
"""A sliding window is recognised by this many equal tokens or more: fewer may be equal by chance."""

PADDING = -1
"""Position of a column that holds no token of the sequence."""


@dataclass(frozen=True)
class NewRows:
    """Where a pass computes new rows of one sequence.

    Attributes:
        first_column: The first column with a token that was not recorded before.
        token_ids: The new tokens, from that column on.
        shape: The pass, as the sequence sees it.
    """

    sequence: FedSequence
    batch_row: int
    first_column: int
    token_ids: list[int]
    shape: ExecutionShape


class FedSequence:
    """One sequence: what was fed of it, and the rows that were not handed over yet.

    Args:
        index: Its index in the trace.
        prompt: Its prompt, where the program named it; else what the first pass feeds.
    """

    def __init__(self, index: int, request_id: str, sample: int, prompt: list[int] | None) -> None:
        self.index, self.request_id, self.sample = index, request_id, sample
        self.prompt = prompt
        self.tokens: list[int] = []
        """Every token that has a row."""
        self._columns = 0
        """T of the last pass."""
        self._open_V: torch.Tensor | None = None
        """The logits after the last row, while the token that follows them is not known."""
        self._begin_rows()

    def _begin_rows(self) -> None:
        self._topk: list[TopK | None] = []
        self._shapes: list[ExecutionShape | None] = []
        self._summaries: list[RowSummaries] = []

    @property
    def pending(self) -> int:
        """Rows that were not handed over yet."""
        return len(self._topk)

    @property
    def info(self) -> SequenceInfo:
        """What is the same in all its rows."""
        return SequenceInfo(self.request_id, self.sample, len(self.prompt or ()))

    def new_rows(self, ids: list[int], positions: list[int] | None, batch_row: int, batch: int) -> NewRows:
        """Which of the fed tokens are new.

        Args:
            ids: Token ids of all columns.
            positions: Their positions in the sequence, `PADDING` where there is none; None where the
                program does not state them.
            batch_row: The row of the pass that they stand in.
            batch: B.

        Raises:
            BadInput: Positions that do not count up, leave a gap, or hold a different token than before.
        """
        if positions is None:
            fed = range(len(ids))
            first = len(ids) - self._new_among(ids)
            computed = 0 if first else len(self.tokens)
        else:
            fed, computed = self._columns_by_position(ids, positions)
            first = min(fed.start + len(self.tokens) - computed, fed.stop)
        new = ids[first : fed.stop]
        self._check_prompt(new)
        shape = ExecutionShape(batch, batch_row, len(fed), len(ids) - len(fed), computed)
        return NewRows(self, batch_row, first, new, shape)

    def _new_among(self, ids: list[int]) -> int:
        """How many of the fed tokens were not fed before, in a program that states no positions.

        A loop with a KV cache feeds new tokens only; one without feeds the whole sequence again, or the last
        part of it that the model has room for.
        """
        known, count = len(self.tokens), len(ids)
        if 0 < known < count and ids[:known] == self.tokens:
            return count - known
        if count == self._columns > SURE and known >= count and ids[:-1] == self.tokens[1 - count :]:
            return 1
        return count

    def _columns_by_position(self, ids: list[int], positions: list[int]) -> tuple[range, int]:
        """The columns that are no padding, and the position of the first of them."""
        columns = [column for column, position in enumerate(positions) if position != PADDING]
        known = len(self.tokens)
        if not columns:
            return range(0), known
        fed, start = range(columns[0], columns[0] + len(columns)), positions[columns[0]]
        if columns != list(fed) or any(positions[column] - start != column - fed.start for column in fed):
            shown = ", ".join(map(str, positions[:6])) + (", …" if len(positions) > 6 else "")
            raise BadInput(
                f"{self.request_id}: the positions {shown} do not count up by one",
                f"give each token its position in its sequence, and {PADDING} to padding",
            )
        if not 0 <= start <= known:
            raise BadInput(
                f"{self.request_id}: position {start} was fed, but position {known} never was",
                "feed a sequence from its first token on; begin another request with tap.request(…)",
            )
        known_ids = self.tokens[start : start + len(fed)]
        if ids[fed.start : fed.start + len(known_ids)] != known_ids:
            raise BadInput(
                f"{self.request_id}: a position from {start} on holds a different token than before",
                "begin another request, or another sample of this one, with tap.request(…)",
            )
        return fed, start

    def _check_prompt(self, new: list[int]) -> None:
        if self.prompt is None:
            return
        known = len(self.tokens)
        expected = self.prompt[known : known + len(new)]
        if new[: len(expected)] != expected:
            raise BadInput(
                f"{self.request_id}: the tokens fed are not those of the prompt that was named",
                "name the prompt as the model sees it, special tokens included, or leave it out",
            )

    def take(self, new: NewRows, summaries: RowSummaries | None, columns: int) -> None:
        """The rows of a pass that has ended.

        Args:
            new: What `new_rows` returned.
            summaries: Their summaries; None where they follow later, together with those of other passes.
            columns: T.
        """
        if self.prompt is None and new.token_ids:
            self.prompt = new.token_ids
        self._columns = columns
        self.tokens += new.token_ids
        self._topk += [None] * len(new.token_ids)
        self._shapes += [new.shape] * len(new.token_ids)
        if summaries is not None:
            self._summaries.append(summaries)

    def take_summaries(self, summaries: RowSummaries) -> None:
        """The summaries that followed later."""
        self._summaries.append(summaries)

    def take_last(self, token: int, sites: int) -> None:
        """A token that was chosen and is never fed."""
        self.set_next_token(token)
        self.tokens.append(token)
        self._topk.append(None)
        self._shapes.append(None)
        self._summaries.append(RowSummaries.empty(1, sites))

    def set_logits(self, logits_RV: torch.Tensor, k: int) -> None:
        """The next-token distributions of the last R rows."""
        count = len(logits_RV)
        following = self.tokens[len(self.tokens) - count + 1 :]
        self._topk[-count:] = top_k_and_next(logits_RV, following, k)
        self._open_V = logits_RV[-1].clone()

    def set_next_token(self, token: int) -> None:
        """The token that follows the last row."""
        topk = self._topk[-1] if self._topk else None
        if self._open_V is not None and topk is not None and token < len(self._open_V):
            self._topk[-1] = with_next(topk, self._open_V, token)
        self._open_V = None

    def rows(self) -> Rows:
        """The pending rows, as they are handed over to the writer."""
        count = self.pending
        first = len(self.tokens) - count
        rows = Rows(
            sequence=self.index,
            first_position=first,
            token_ids=np.array(self.tokens[first:], dtype=np.int32),
            forced=False,
            topk=self._topk,
            samplers=[None] * count,
            shapes=self._shapes,
            summaries=RowSummaries.concatenate(self._summaries),
        )
        self._begin_rows()
        return rows
