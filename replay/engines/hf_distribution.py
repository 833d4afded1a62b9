"""The raw next-token distribution at a position: exact top-K, log-sum-exp and logits hash.

Axes: R rows, V vocabulary, K kept.
"""

from __future__ import annotations

import numpy as np
import torch

from ..capture.summarise import RowSummaries, summarise_tensor
from .base import TopK


def top_k_of_rows(logits_RV: torch.Tensor, k: int) -> list[TopK]:
    """Summarise raw logits.

    Args:
        logits_RV: Raw logits in the model's own dtype, on any device.
        k: K, at least 1; cut to V.

    Returns:
        One `TopK` a row. Equal logits are ordered by ascending token id, on every device.
    """
    summaries = RowSummaries.empty(logits_RV.shape[0], 1)
    summarise_tensor(logits_RV, summaries, 0, 0)
    values_RV = logits_RV.detach().float()
    logsumexp_R = torch.logsumexp(values_RV.double(), dim=-1).cpu().numpy()
    k = min(k, values_RV.shape[-1])
    # torch.topk breaks ties at will; the K-th value is well defined, so take all ids that reach it.
    threshold_R1 = torch.topk(values_RV, k, dim=-1).values[:, -1:]
    # NaN compares false everywhere; a row of NaN keeps its first K ids.
    reach_RV = ~(values_RV < threshold_R1)
    result = []
    for row in range(values_RV.shape[0]):
        ids = reach_RV[row].nonzero()[:, 0].cpu().numpy()
        logits = values_RV[row].cpu().numpy()[ids]
        order = np.lexsort((ids, -logits))[:k]
        kept = logits[order]
        lse = float(logsumexp_R[row])
        result.append(
            TopK(
                ids=ids[order].astype(np.int32),
                logits=kept,
                logprobs=(kept.astype(np.float64) - lse).astype(np.float32),
                logsumexp=lse,
                logits_hash=summaries.digests()[row, 0].tobytes(),
            )
        )
    return result
