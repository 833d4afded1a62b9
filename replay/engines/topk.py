"""Distributions and forced tokens as engines return them, brought into the form of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..request.batches import PlannedSequence
from ..row_summaries.rows import TopK


def sorted_topk(
    ids: Sequence[int], logprobs: Sequence[float], k: int, next_logprob: float | None = None
) -> TopK:
    """A distribution in the order of a trace and cut to K: servers add the chosen token where it is not among
    the K most likely.

    Args:
        ids: [n], in any order.
        logprobs: [n], nats.
        k: K.
        next_logprob: Of the token that was chosen from it or forced, nats; None where it is not known.
    """
    id_array = np.asarray(ids, dtype=np.int32)
    values = np.asarray(logprobs, dtype=np.float32)
    order = np.lexsort((id_array, -values))[:k]
    return TopK(id_array[order], None, values[order], None, None, next_logprob)


def unforced_tokens(plan: PlannedSequence, generated: Sequence[Any]) -> str | None:
    """How generated tokens differ from those that were to be forced; None: they are those."""
    golden = plan.golden or ()
    for step, (wanted, token) in enumerate(zip(golden, generated, strict=False)):
        if wanted != token:
            return f"step {step} generated token {token} where {wanted} was to be forced"
    if len(generated) != len(golden):
        return f"{len(generated)} tokens were generated where {len(golden)} were to be forced"
    return None
