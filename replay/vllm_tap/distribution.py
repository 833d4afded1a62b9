"""Next-token distributions of observed rows: logits are kept, and worked out behind the worker's back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..row_summaries.distribution import top_k_of_rows
from ..row_summaries.reference import RowSummaries
from ..row_summaries.summarise import summarise_tensor
from ..row_summaries.trace_rows import TopK
from .parts import Distributions

STORE_BYTES = 24 << 20
"""Logits that a block of rows can keep without asking for more memory."""


@dataclass(frozen=True, eq=False)
class KeptLogits:
    """Raw logits of some rows, as they were before the sampler worked on them in place.

    Attributes:
        rows: The output row of each.
        logits_RV: A copy of their own, perhaps still being made on a device.
        ready: When it is made; None on the CPU.
    """

    rows: Sequence[int]
    logits_RV: torch.Tensor
    ready: torch.cuda.Event | None

    def nbytes(self) -> int:
        """Bytes of the copy."""
        return self.logits_RV.numel() * self.logits_RV.element_size()

    def distributions(self, k: int) -> list[TopK]:
        """Hash, log-sum-exp and the K most likely ids of each row; K = 0: only the hash."""
        if self.ready is not None:
            self.ready.synchronize()
        logits_RV = self.logits_RV.cpu()
        if k:
            return top_k_of_rows(logits_RV, k)
        summaries = RowSummaries.empty(len(self.rows), 1)
        summarise_tensor(logits_RV, summaries, 0, 0)
        none = np.zeros(0, np.float32)
        return [
            TopK(np.zeros(0, np.int32), none, none, None, digest.tobytes())
            for digest in summaries.digests()[:, 0]
        ]


class LogitsStore:
    """Keeps raw logits on the way to their distributions, in memory that is used again and again.

    Fresh memory for every step would have to be mapped page by page: that takes longer than the copy.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._used = 0
        self.kept: list[KeptLogits] = []

    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(kept.nbytes() for kept in self.kept)

    def keep(self, logits_RV: torch.Tensor, rows: Sequence[int | None]) -> None:
        """Keep the rows of logits that belong to an output row, as they are now."""
        chosen = [index for index, row in enumerate(rows) if row is not None]
        wanted = logits_RV if len(chosen) == len(rows) else logits_RV[chosen]
        copy, ready = self._room_for(wanted).copy_(wanted), None
        if copy.is_cuda:
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self.kept.append(KeptLogits([row for row in rows if row is not None], copy, ready))

    def clear(self) -> None:
        """Nothing is kept any more."""
        self.kept, self._used = [], 0

    def _room_for(self, wanted: torch.Tensor) -> torch.Tensor:
        count, memory = len(wanted), self._memory
        alike = memory is not None and (memory.shape[1:], memory.dtype) == (wanted.shape[1:], wanted.dtype)
        if not alike and not self._used:
            most = max(1, STORE_BYTES // (wanted.shape[1] * wanted.element_size()))
            memory = self._memory = torch.empty_like(wanted[:1]).new_empty((most, wanted.shape[1]))
            alike = True
        if memory is None or not alike or self._used + count > len(memory):
            return torch.empty_like(wanted)
        self._used += count
        return memory[self._used - count : self._used]


def collect(kept: Iterable[KeptLogits], place: Sequence[int], k: int) -> Distributions:
    """Distributions of kept logits, as a part holds them.

    Args:
        kept: The logits.
        place: For each output row its row in the part.
        k: K.
    """
    rows: list[int] = []
    items: list[TopK] = []
    for logits in kept:
        rows += [place[row] for row in logits.rows]
        items += logits.distributions(k)
    if not items:
        return Distributions.none()
    return Distributions(
        np.array(rows, np.int32),
        np.stack([item.ids for item in items]).astype(np.int32),
        np.stack([item.logits for item in items if item.logits is not None]).astype(np.float32),
        np.stack([item.logprobs for item in items]).astype(np.float32),
        np.array([np.nan if item.logsumexp is None else item.logsumexp for item in items], np.float64),
        np.frombuffer(b"".join(item.logits_hash or bytes(16) for item in items), np.uint64).reshape(-1, 2),
    )
