"""The raw next-token distribution at a position: exact top-K, log-sum-exp and logits hash.

Axes: R rows, V vocabulary, K kept. Every value of a row follows from that row's logits alone: not from
its batch, nor from the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .rows import RowSummaries, TopK
from .summarise import summarise_tensor

if TYPE_CHECKING:
    import torch


ROWS_TOGETHER = 64
"""Rows of logits of a long pass that are summarised together: bounds the copies at 64 × V."""

COLUMN_HEIGHT = 64
"""Values of a row that are reduced to their maximum first, to find the largest."""


def top_k_of_rows(logits_RV: torch.Tensor, k: int) -> list[TopK]:
    """Summarise raw logits.

    Args:
        logits_RV: Raw logits in the model's own dtype, on any device.
        k: K, at least 1; cut to V.

    Returns:
        One `TopK` a row, ordered by logit descending; NaN ranks first, as it does for torch.argmax, so
        that a greedy choice is the first id. Equal logits are ordered by ascending token id. Where the
        log-sum-exp is not finite, log-probabilities are not either.
    """
    logits_RV = logits_RV.detach()
    summaries = RowSummaries.empty(logits_RV.shape[0], 1)
    summarise_tensor(logits_RV, summaries, 0, 0)
    hashes = summaries.digests()
    values_RV = logits_RV.float().cpu().numpy()
    k = min(k, values_RV.shape[1])
    terms_V = np.empty(values_RV.shape[1])  # fresh memory for every row would take longer than the sums
    result = []
    for row, (values_V, ids) in enumerate(zip(values_RV, _reaching_top(values_RV, k), strict=True)):
        logits = values_V[ids]
        order = np.lexsort((ids, -logits, ~np.isnan(logits)))[:k]
        kept = logits[order]
        logsumexp = _logsumexp(values_V, terms_V)
        with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, and that is the answer
            logprobs = (kept.astype(np.float64) - logsumexp).astype(np.float32)
        result.append(
            TopK(
                ids=ids[order].astype(np.int32),
                logits=kept,
                logprobs=logprobs,
                logsumexp=logsumexp,
                logits_hash=hashes[row, 0].tobytes(),
            )
        )
    return result


def top_k_and_next(logits_RV: torch.Tensor, following: Sequence[int], k: int) -> list[TopK]:
    """Summarise raw logits, with the token that follows each row.

    Args:
        logits_RV: As for `top_k_of_rows`.
        following: The token after each row; of the last rows it need not be known.
        k: K.
    """
    found: list[TopK] = []
    for start in range(0, len(logits_RV), ROWS_TOGETHER):
        found += top_k_of_rows(logits_RV[start : start + ROWS_TOGETHER], k)
    known = zip(found, logits_RV, following, strict=False)
    found[: len(following)] = [with_next(topk, logits_V, token) for topk, logits_V, token in known]
    return found


def with_next(topk: TopK, logits_V: torch.Tensor, token: int) -> TopK:
    """The same distribution with the raw log-probability of the token that follows it."""
    assert topk.logsumexp is not None
    with np.errstate(invalid="ignore"):
        logprob = np.float32(np.float64(float(logits_V[token])) - topk.logsumexp)
    return replace(topk, next_logprob=float(logprob))


def _reaching_top(values_RV: np.ndarray[Any, Any], k: int) -> Iterator[np.ndarray[Any, Any]]:
    """Of each row the ids that may be among its K largest values; NaN counts as the largest.

    The values stand in C columns. At least K of them reach the K-th largest of the columns' maxima, so a
    value below it is not among the K largest; and what reaches it stands in few columns. That is a third of
    the time of a partial sort, and ties come whole.
    """
    vocabulary = values_RV.shape[1]
    height = max(1, min(COLUMN_HEIGHT, vocabulary // (4 * k)))
    columns = vocabulary // height
    in_columns = columns * height
    rest = np.arange(in_columns, vocabulary)
    grid_RHC = values_RV[:, :in_columns].reshape(-1, height, columns)
    maxima_RC = grid_RHC.max(axis=1)
    bound_R = np.partition(maxima_RC, columns - k, axis=1)[:, columns - k]
    for grid_HC, maxima_C, bound, values_V in zip(grid_RHC, maxima_RC, bound_R, values_RV, strict=True):
        near = np.flatnonzero(~(maxima_C < bound))
        line, column = np.nonzero(~(grid_HC[:, near] < bound))
        yield np.concatenate([line * columns + near[column], rest[~(values_V[in_columns:] < bound)]])


def _logsumexp(values_V: np.ndarray[Any, Any], terms_V: np.ndarray[Any, Any]) -> float:
    """log Σ exp in float64. numpy adds in one fixed order; torch's order depends on its threads.

    Args:
        values_V: float32[V]
        terms_V: float64[V], overwritten.
    """
    largest = float(values_V.max())
    if not np.isfinite(largest):
        return largest
    np.subtract(values_V, largest, out=terms_V, dtype=np.float64)
    return largest + float(np.log(np.exp(terms_V, out=terms_V).sum()))
