"""Two recorded distributions side by side: margins, logit differences, KL over the top-K candidates.

Shapes: N rows, K candidates. A missing number is NaN here; a difference with a non-finite side is +inf, so
that it is never mistaken for a missing one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Lists = tuple[np.ndarray, np.ndarray]
"""int64[N] lengths (0: no list), and the items of all lists, one behind the other."""
NO_TOKEN = -1
_SMALLEST = 1e-12  # a rest bucket below this is rounding in the recorded logprobs


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
        first = known & (self.ids[:, 0] == tokens)  # mostly: the likeliest candidate came next
        found = np.where(first, self.logprobs[:, 0], np.float32(np.nan))
        rows = np.flatnonzero(known & ~first)
        if len(rows):
            hit = self.ids[rows] == tokens[rows, None]
            place = hit.argmax(axis=1)
            found[rows] = np.where(hit.any(axis=1), self.logprobs[rows, place], np.float32(np.nan))
        return found


@dataclass(frozen=True)
class Differences:
    """What lies between two distributions, row by row; NaN where it could not be told."""

    max_abs_logit: np.ndarray  # float32[N]
    max_rel_logit: np.ndarray  # float32[N]
    max_abs_logprob: np.ndarray  # float32[N]
    kl: np.ndarray  # float32[N], nats
    overlap: np.ndarray  # float32[N]: share of A's candidates that B lists too
    top1_equal: np.ndarray  # bool[N]
    both: np.ndarray  # bool[N]: both sides have candidates
    identical: np.ndarray  # bool[N]: the same candidates, and every number of theirs has the same bits


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


def differences(a: Candidates, b: Candidates) -> Differences:
    """Compare two distributions row by row."""
    n = len(a.ids)
    both = a.has_ids & b.has_ids
    logits, logprobs = both & a.has_logits & b.has_logits, both & a.has_logprobs & b.has_logprobs
    result = Differences(
        max_abs_logit=np.where(logits, np.float32(0), np.float32(np.nan)),
        max_rel_logit=np.where(logits, np.float32(0), np.float32(np.nan)),
        max_abs_logprob=np.where(logprobs, np.float32(0), np.float32(np.nan)),
        kl=np.where(logprobs, np.float32(0), np.float32(np.nan)),
        overlap=np.where(both, np.float32(1), np.float32(np.nan)),
        top1_equal=np.ones(n, np.bool_),
        both=both,
        identical=both.copy(),
    )
    if a.ids.shape != b.ids.shape:
        rows = np.flatnonzero(both)
    else:
        unlike = (a.ids != b.ids) | _unlike(a.logits, b.logits) | _unlike(a.logprobs, b.logprobs)
        rows = np.flatnonzero(unlike.any(axis=1) & both)
    if not len(rows):
        return result
    result.identical[rows] = False
    ids_a, ids_b = a.ids[rows], b.ids[rows]
    place, shared = _places(ids_a, ids_b)
    count = shared.sum(axis=1)
    result.top1_equal[rows] = ids_a[:, 0] == ids_b[:, 0]
    result.overlap[rows] = count / np.maximum((ids_a != NO_TOKEN).sum(axis=1), 1)

    gap_a, gap_b = a.logits[rows], np.take_along_axis(b.logits[rows], place, axis=1)
    absolute, relative = _gaps(gap_a, gap_b, shared)
    known = logits[rows] & (count > 0)
    result.max_abs_logit[rows] = np.where(known, absolute, np.nan)
    result.max_rel_logit[rows] = np.where(known, relative, np.nan)

    log_a, log_b = a.logprobs[rows], np.take_along_axis(b.logprobs[rows], place, axis=1)
    absolute, _ = _gaps(log_a, log_b, shared)
    known = logprobs[rows] & (count > 0)
    result.max_abs_logprob[rows] = np.where(known, absolute, np.nan)
    result.kl[rows] = np.where(logprobs[rows], _kl(log_a, log_b, shared), np.nan)
    return result


def _unlike(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Differing bits: NaN equals the same NaN."""
    unlike: np.ndarray = x.view(np.uint32) != y.view(np.uint32)
    return unlike


def _places(ids_a: np.ndarray, ids_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each of A's candidates its index in B's list, and whether it is there: int64[N, K], bool[N, K]."""
    n, k = ids_a.shape
    if ids_a.shape == ids_b.shape:
        place = np.broadcast_to(np.arange(k), (n, k)).copy()
        shared = ids_a == ids_b
        moved = np.flatnonzero(~shared.all(axis=1))
    else:
        place, shared = np.zeros((n, k), np.int64), np.zeros((n, k), np.bool_)
        moved = np.arange(n)
    if len(moved):
        equal = ids_a[moved][:, :, None] == ids_b[moved][:, None, :]
        place[moved], shared[moved] = equal.argmax(axis=2), equal.any(axis=2)
    return place, shared & (ids_a != NO_TOKEN)


def _gaps(x: np.ndarray, y: np.ndarray, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest |x − y| and |x − y| / max(|x|, |y|) over the shared candidates of each row."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = np.abs(x - y)
        relative = gap / np.maximum(np.abs(x), np.abs(y))
    equal = (x == y) | (np.isnan(x) & np.isnan(y)) | ~shared
    for values in (gap, relative):
        values[np.isnan(values)] = np.inf
        values[equal] = 0
    return gap.max(axis=1, initial=0), relative.max(axis=1, initial=0)


def _kl(log_a: np.ndarray, log_b: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """KL(A‖B) over the shared candidates and one bucket for everything else, float64[N]."""
    log_a, log_b = log_a.astype(np.float64), log_b.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        p, q = np.where(shared, np.exp(log_a), 0), np.where(shared, np.exp(log_b), 0)
        terms = np.where(p > 0, p * (log_a - log_b), 0)
        rest_p, rest_q = np.maximum(1 - p.sum(axis=1), _SMALLEST), np.maximum(1 - q.sum(axis=1), _SMALLEST)
        kl = terms.sum(axis=1) + rest_p * np.log(rest_p / rest_q)
    return np.where(np.isnan(kl), np.inf, np.maximum(kl, 0))
