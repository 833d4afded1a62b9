"""One sequence of a running batch: its tokens so far, and its rows that were not handed over yet.

It knows nothing of the model; decode_loop.py fills it.
"""

from __future__ import annotations

import numpy as np

from ...request.batches import PlannedSequence
from ...row_summaries.rows import ExecutionShape, Rows, RowSummaries, SamplerRecord, TopK
from .sampling import Sampler, StopRule


class Live:
    """One sequence while it runs.

    Args:
        plan: What is to be run.
        batch_row: Its row in the batch.
        sampler: Chooses its tokens.
        stop: Decides when it ends.
    """

    def __init__(self, plan: PlannedSequence, batch_row: int, sampler: Sampler, stop: StopRule) -> None:
        self.plan = plan
        self.batch_row = batch_row
        self.sampler = sampler
        self.stop = stop
        self.tokens = list(plan.prompt)
        """Prompt and everything generated so far."""
        self.computed = 0
        """Tokens in the KV cache."""
        self.ended = False
        self.begin_rows(0)

    def begin_rows(self, first_position: int, capacity: int = 0, n_sites: int = 0) -> None:
        """Start a new block of rows, with room for `capacity × n_sites` summaries."""
        self.first_position = first_position
        self.token_ids: list[int] = []
        self.topk: list[TopK | None] = []
        self.samplers: list[SamplerRecord | None] = []
        self.shapes: list[ExecutionShape | None] = []
        self.kept: dict[int, list[tuple[int, bytes]]] = {}
        """Row of the block → kept rows as (site, raw bytes)."""
        self.summaries = RowSummaries.empty(capacity, n_sites) if capacity and n_sites else None

    def add_row(self, token: int, shape: ExecutionShape | None) -> None:
        """A row whose distribution is not known yet."""
        self.token_ids.append(token)
        self.topk.append(None)
        self.samplers.append(None)
        self.shapes.append(shape)

    def rows(self, forced: bool) -> Rows:
        """The block as it is handed over."""
        return Rows(
            sequence=self.plan.sequence,
            first_position=self.first_position,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            forced=forced,
            topk=self.topk,
            samplers=self.samplers,
            shapes=self.shapes,
            summaries=self.summaries,
            tensors=[self.kept.get(row, []) for row in range(len(self.token_ids))] if self.kept else [],
        )
