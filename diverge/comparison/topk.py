"""Two recorded distributions side by side: margins, logit differences, KL over the top-K candidates.

Shapes: N rows, K candidates. A missing number is NaN here; a difference with a non-finite side is +inf, so
that it is never mistaken for a missing one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..reading.load import NO_TOKEN, Candidates

_SMALLEST = 1e-12  # a rest bucket below this is rounding in the recorded logprobs


@dataclass(frozen=True)
class Differences:
    """What lies between two distributions, row by row; NaN where not known."""

    max_abs_logit: np.ndarray  # float32[N]
    max_rel_logit: np.ndarray  # float32[N]
    max_abs_logprob: np.ndarray  # float32[N]
    kl: np.ndarray  # float32[N], nats
    overlap: np.ndarray  # float32[N]: share of A's candidates that B lists too
    top1_equal: np.ndarray  # bool[N]
    both: np.ndarray  # bool[N]: both sides have candidates
    identical: np.ndarray  # bool[N]: the same candidates, and every number of theirs has the same bits


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
    index, shared = _match(ids_a, ids_b)
    count = shared.sum(axis=1)
    result.top1_equal[rows] = ids_a[:, 0] == ids_b[:, 0]
    result.overlap[rows] = count / np.maximum((ids_a != NO_TOKEN).sum(axis=1), 1)

    gap_a, gap_b = a.logits[rows], np.take_along_axis(b.logits[rows], index, axis=1)
    absolute, relative = _gaps(gap_a, gap_b, shared)
    known = logits[rows] & (count > 0)
    result.max_abs_logit[rows] = np.where(known, absolute, np.nan)
    result.max_rel_logit[rows] = np.where(known, relative, np.nan)

    log_a, log_b = a.logprobs[rows], np.take_along_axis(b.logprobs[rows], index, axis=1)
    absolute, _ = _gaps(log_a, log_b, shared)
    known = logprobs[rows] & (count > 0)
    result.max_abs_logprob[rows] = np.where(known, absolute, np.nan)
    result.kl[rows] = np.where(logprobs[rows], _kl(log_a, log_b, shared), np.nan)
    return result


def _unlike(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Differing bits: NaN equals the same NaN."""
    unlike: np.ndarray = x.view(np.uint32) != y.view(np.uint32)
    return unlike


def _match(ids_a: np.ndarray, ids_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each of A's candidates its index in B's list, and whether it is there: int64[N, K], bool[N, K]."""
    n, k = ids_a.shape
    if ids_a.shape == ids_b.shape:
        index = np.broadcast_to(np.arange(k), (n, k)).copy()
        shared = ids_a == ids_b
        moved = np.flatnonzero(~shared.all(axis=1))
    else:
        index, shared = np.zeros((n, k), np.int64), np.zeros((n, k), np.bool_)
        moved = np.arange(n)
    if len(moved):
        equal = ids_a[moved][:, :, None] == ids_b[moved][:, None, :]
        index[moved], shared[moved] = equal.argmax(axis=2), equal.any(axis=2)
    return index, shared & (ids_a != NO_TOKEN)


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
