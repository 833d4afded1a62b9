"""The raw next-token distribution at a position: exact top-K, log-sum-exp and logits hash.

Axes: R rows, V vocabulary, K kept. Every value of a row follows from that row's logits alone: not from
the batch it came in, nor from the number of threads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..engines.base import TopK
from .summarise import RowSummaries, summarise_tensor


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
    values_RV = logits_RV.float()
    k = min(k, values_RV.shape[-1])
    # torch.topk breaks ties at will; the K-th value is well defined, so take all ids that reach it.
    threshold_R1 = torch.topk(values_RV, k, dim=-1).values[:, -1:].cpu().numpy()
    rows = values_RV.cpu().numpy()
    reach_RV = (rows >= threshold_R1) | np.isnan(rows)
    result = []
    for row, values_V in enumerate(rows):
        ids = np.flatnonzero(reach_RV[row])
        logits = values_V[ids]
        order = np.lexsort((ids, -logits, ~np.isnan(logits)))[:k]
        kept = logits[order]
        logsumexp = _logsumexp(values_V)
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


def with_next(topk: TopK, logits_V: torch.Tensor, token: int) -> TopK:
    """The same distribution with the raw log-probability of the token that follows it.

    Args:
        topk: The distribution.
        logits_V: Its raw logits.
        token: The token id, chosen or forced.
    """
    assert topk.logsumexp is not None
    with np.errstate(invalid="ignore"):
        logprob = np.float32(np.float64(float(logits_V[token])) - topk.logsumexp)
    return replace(topk, next_logprob=float(logprob))


def _logsumexp(values_V: np.ndarray[Any, Any]) -> float:
    """log Σ exp in float64. numpy adds in one fixed order; torch's order depends on its threads."""
    largest = float(values_V.max())
    if not np.isfinite(largest):
        return largest
    return largest + float(np.log(np.exp(values_V.astype(np.float64) - largest).sum()))
