"""The top-K lists of rows as matrices: ids, logits, logprobs, the margin between the first two.

Shapes: N rows, K candidates. A missing number is NaN here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Lists = tuple[np.ndarray, np.ndarray]
"""int64[N] lengths (0: no list), and the items of all lists, one behind the other."""
NO_TOKEN = -1


@dataclass(frozen=True)
class Candidates:
    """The top-K of N rows, best first."""

    ids: np.ndarray  # int32[N, K]; NO_TOKEN where a row has fewer
    logits: np.ndarray  # float32[N, K]
    logprobs: np.ndarray  # float32[N, K]
    has_ids: np.ndarray  # bool[N]
    has_logits: np.ndarray  # bool[N]
    has_logprobs: np.ndarray  # bool[N]

    @classmethod
    def of_lists(cls, ids: Lists, logits: Lists, logprobs: Lists) -> Candidates:
        """From lists as Parquet has them: the length of each row's list, and all items."""
        width = int(ids[0].max(initial=0))
        matrices = [
            _padded(lists, fill, dtype, width)
            for lists, fill, dtype in (
                (ids, NO_TOKEN, np.int32),
                (logits, np.nan, np.float32),
                (logprobs, np.nan, np.float32),
            )
        ]
        has = [lists[0] > 0 for lists in (ids, logits, logprobs)]
        return cls(matrices[0], matrices[1], matrices[2], has[0], has[1] & has[0], has[2] & has[0])

    @classmethod
    def none(cls, count: int) -> Candidates:
        """Rows without candidates."""
        nothing = np.zeros(count, np.int64), np.empty(0, np.float32)
        return cls.of_lists(nothing, nothing, nothing)

    @classmethod
    def joined(cls, pieces: list[Candidates]) -> Candidates:
        """Rows one after the other; narrower pieces are filled up."""
        if len(pieces) < 2:
            return pieces[0] if pieces else cls.none(0)
        width = max(piece.ids.shape[1] for piece in pieces)
        fills = {"ids": NO_TOKEN, "logits": np.nan, "logprobs": np.nan}
        columns: dict[str, np.ndarray] = {}
        for name in cls.__dataclass_fields__:
            parts = [getattr(piece, name) for piece in pieces]
            if name in fills:
                parts = [
                    part
                    if part.shape[1] == width
                    else np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fills[name])
                    for part in parts
                ]
            columns[name] = np.concatenate(parts)
        return cls(**columns)

    def rows(self, first: int, stop: int) -> Candidates:
        """Some of the rows."""
        return Candidates(*(getattr(self, name)[first:stop] for name in self.__dataclass_fields__))

    def margins(self) -> np.ndarray:
        """float32[N]: top-1 minus top-2 raw logit, of logprobs where there are no logits."""
        if self.ids.shape[1] < 2:
            return np.full(len(self.ids), np.nan, np.float32)
        values = np.where(self.has_logits[:, None], self.logits[:, :2], self.logprobs[:, :2])
        with np.errstate(invalid="ignore"):
            return np.where(self.ids[:, 1] == NO_TOKEN, np.float32(np.nan), values[:, 0] - values[:, 1])

    def logprob_of(self, tokens: np.ndarray) -> np.ndarray:
        """float32[N]: log-probability of one token a row; NaN where it is not among the candidates."""
        if not self.ids.size:
            return np.full(len(tokens), np.nan, np.float32)
        known = self.has_ids & (tokens != NO_TOKEN)
        first = known & (self.ids[:, 0] == tokens)  # mostly: the likeliest candidate is next
        found = np.where(first, self.logprobs[:, 0], np.float32(np.nan))
        rows = np.flatnonzero(known & ~first)
        if len(rows):
            hit = self.ids[rows] == tokens[rows, None]
            rank = hit.argmax(axis=1)
            found[rows] = np.where(hit.any(axis=1), self.logprobs[rows, rank], np.float32(np.nan))
        return found


def _padded(lists: Lists, fill: float, dtype: type, width: int) -> np.ndarray:
    """Lists as a matrix [N, width], filled up at the right."""
    lengths, items = lists
    items = items.astype(dtype, copy=False)
    if len(items) == len(lengths) * width and np.all(lengths == width):
        return items.reshape(len(lengths), width)
    matrix: np.ndarray = np.full((len(lengths), width), fill, dtype)
    filled = lengths > 0
    if np.all(lengths[filled] == width):
        matrix[filled] = items.reshape(-1, width)
    else:
        longest = int(lengths.max(initial=0))
        wide: np.ndarray = np.full((len(lengths), longest), fill, dtype)
        wide[np.arange(longest) < lengths[:, None]] = items
        matrix[:, : min(longest, width)] = wide[:, :width]
    return matrix
