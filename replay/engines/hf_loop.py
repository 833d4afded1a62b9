"""The decode loop of the `hf` engine: one batch from its prompts to its last token.

Axes: B sequences in the batch, T columns of a forward pass, V vocabulary. Batches are static: their
size stays until the last recorded sequence has ended; ended ones and neighbours run on beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...schemas.trace import Mode
from ..capture.summarise import RowSummaries
from ..capture.taps import Segment, StepBlock, Taps
from ..plan import Batch, PlannedSequence
from .base import ExecutionShape, Finished, Rows, SamplerRecord, TopK
from .hf_distribution import top_k_of_rows

if TYPE_CHECKING:
    from .hf import HfEngine

BLOCK = 64
"""Decode rows that are handed over together."""
SCORING_ROWS = 64
"""Rows of logits that are summarised together in golden-prefill: bounds the copies at 64 × V."""


class _Live:
    """One sequence while it runs, and its rows that were not handed over yet."""

    def __init__(self, engine: HfEngine, plan: PlannedSequence, batch_row: int) -> None:
        self.plan = plan
        self.batch_row = batch_row
        self.tokens = list(plan.prompt)
        self.computed = 0
        """Tokens in the KV cache."""
        self.ended = False
        self.sampler = engine.sampler_for(plan)
        self.stop = engine.stop_rule_for(plan)
        self.begin_rows(0, 0, 0)

    def begin_rows(self, first_position: int, capacity: int, n_sites: int) -> None:
        """Start a new block of rows."""
        self.first_position = first_position
        self.token_ids: list[int] = []
        self.topk: list[TopK | None] = []
        self.samplers: list[SamplerRecord | None] = []
        self.shapes: list[ExecutionShape | None] = []
        self.kept: dict[int, list[tuple[int, bytes]]] = {}
        self.summaries = RowSummaries.empty(capacity, n_sites) if n_sites else None

    def add_row(self, token: int, shape: ExecutionShape | None) -> None:
        """A row whose distribution is not known yet."""
        self.token_ids.append(token)
        self.topk.append(None)
        self.samplers.append(None)
        self.shapes.append(shape)

    def rows(self, forced: bool) -> Rows:
        """The block as it is handed over."""
        count = len(self.token_ids)
        return Rows(
            sequence=self.plan.sequence,
            first_position=self.first_position,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            forced=forced,
            topk=self.topk,
            samplers=self.samplers,
            shapes=self.shapes,
            summaries=self.summaries,
            tensors=[self.kept.get(row, []) for row in range(count)] if self.kept else [],
        )


class BatchRun:
    """One batch on its way through the model."""

    def __init__(self, engine: HfEngine, batch: Batch, mode: Mode, taps: Taps | None) -> None:
        self._engine = engine
        self._taps = taps
        self._forced = mode != "free"
        self._n_sites = len(taps.sites) if taps else 0
        self._live = [_Live(engine, plan, row) for row, plan in enumerate(batch.sequences)]
        self._recorded = [live for live in self._live if live.plan.recorded]
        self._right = engine.settings["padding_side"].resolved == "right"
        self._chunk = int(engine.settings["prefill_chunk"].resolved)
        self._keeps = self._keep if engine.keep_positions is not None else None
        self._block: StepBlock | None = None
        self._block_steps = 0

    def generate(self) -> Iterator[Rows | Finished]:
        """Prefill, then one token a step on the decode path."""
        cache = self._new_cache()
        mask_BT, logits_BV = self._prefill([live.plan.prompt for live in self._live], cache)
        while True:
            fed = self._choose(logits_BV)
            for live in self._recorded:
                if not live.ended:
                    yield from self._after_choice(live)
            if all(live.ended for live in self._recorded):
                return
            if self._block_steps == BLOCK:
                for live in self._recorded:
                    if not live.ended:
                        yield self._take_block(live)
                self._block_steps = 0
            mask_BT = torch.cat([mask_BT, torch.ones_like(mask_BT[:, :1])], dim=1)
            logits_BV = self._step(fed, mask_BT, cache)

    def score(self) -> Iterator[Rows | Finished]:
        """One pass over prompt and golden tokens; every row has its distribution."""
        inputs = [(*live.plan.prompt, *(live.plan.golden or ())[:-1]) for live in self._live]
        self._prefill(inputs, self._new_cache(), score=True)
        for live in self._recorded:
            golden = list(live.plan.golden or ())
            yield live.rows(forced=True)
            if golden:
                live.begin_rows(len(live.plan.prompt) + len(golden) - 1, 0, 0)
                live.add_row(golden[-1], None)
                yield live.rows(forced=True)
            yield Finished(live.plan.sequence, "golden", self._engine.decode(golden))

    def _new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._engine.model.config)

    def _prefill(
        self, inputs: Sequence[Sequence[int]], cache: Any, score: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the prompts, in chunks of columns where that is set.

        Returns:
            The attention mask int64[B, T], and the logits [B, V] after each sequence's last token.
        """
        lengths = [len(ids) for ids in inputs]
        columns = max(lengths)
        first_column = [0 if self._right else columns - length for length in lengths]
        ids_BT = torch.full((len(inputs), columns), self._engine.pad, dtype=torch.int64)
        mask_BT = torch.zeros_like(ids_BT)
        for row, ids in enumerate(inputs):
            ids_BT[row, first_column[row] : first_column[row] + len(ids)] = torch.tensor(ids)
            mask_BT[row, first_column[row] : first_column[row] + len(ids)] = 1
        positions_BT = (mask_BT.cumsum(dim=1) - 1).clamp(min=0)
        ids_BT, mask_BT, positions_BT = (part.to(self._engine.device) for part in (ids_BT, mask_BT, positions_BT))
        for live, length in zip(self._live, lengths, strict=True):
            if live.plan.recorded:
                live.begin_rows(0, length, self._n_sites)
        last_logits: list[torch.Tensor | None] = [None] * len(inputs)
        width = self._chunk or columns
        for start in range(0, columns, width):
            end = min(start + width, columns)
            segments, spans = [], []
            for live, ids in zip(self._live, inputs, strict=True):
                first = max(first_column[live.batch_row], start)
                count = max(0, min(end, first_column[live.batch_row] + len(ids)) - first)
                spans.append((first - start, count))
                if live.plan.recorded and count:
                    shape = ExecutionShape(
                        batch_size=len(inputs),
                        batch_row=live.batch_row,
                        num_tokens=count,
                        padded_tokens=end - start - count,
                        cached_tokens=live.computed,
                    )
                    if live.summaries is not None:
                        segments.append(Segment(live.batch_row, first - start, count, live.summaries, live.computed))
                    for token in ids[live.computed : live.computed + count]:
                        live.add_row(token, shape)
                live.computed += count
            last_columns = [span[0] + span[1] - 1 for span in spans]
            ending = [row for row, live in enumerate(self._live) if live.computed == lengths[row] and spans[row][1]]
            kept_columns = sorted({last_columns[row] for row in ending}) or [end - start - 1]
            with self._observing_long_pass(segments, len(inputs), end - start):
                output = self._engine.model(
                    input_ids=ids_BT[:, start:end],
                    attention_mask=mask_BT[:, :end],
                    position_ids=positions_BT[:, start:end],
                    cache=cache,
                    use_cache=True,
                    logits_to_keep=0 if score else torch.tensor(kept_columns, device=self._engine.device),
                )
            for row in ending:
                column = last_columns[row] if score else kept_columns.index(last_columns[row])
                last_logits[row] = output.logits[row, column]
            if score:
                self._score_chunk(output.logits, spans)
        return mask_BT, torch.stack([logits for logits in last_logits if logits is not None])

    def _score_chunk(self, logits_BTV: torch.Tensor, spans: list[tuple[int, int]]) -> None:
        for live in self._recorded:
            first, count = spans[live.batch_row]
            filled = live.computed - count
            for start in range(0, count, SCORING_ROWS):
                rows_RV = logits_BTV[live.batch_row, first + start : first + min(start + SCORING_ROWS, count)]
                found = top_k_of_rows(rows_RV, self._engine.topk)
                live.topk[filled + start : filled + start + len(found)] = found

    def _choose(self, logits_BV: torch.Tensor) -> list[int]:
        """Choose every sequence's next token; complete the row it follows from.

        Returns:
            The token to feed to each row of the batch.
        """
        active = [live for live in self._recorded if not live.ended]
        rows = [live.batch_row for live in active]
        for live, topk in zip(active, top_k_of_rows(logits_BV[rows], self._engine.topk), strict=True):
            live.topk[-1] = topk
        fed = []
        for live in self._live:
            logits_V = logits_BV[live.batch_row]
            if not live.plan.recorded or live.ended:
                token = int(torch.argmax(logits_V))  # runs on so that the batch keeps its size
            else:
                chosen, live.samplers[-1] = live.sampler.choose(logits_V.float().cpu(), live.tokens)
                golden, step = live.plan.golden, len(live.tokens) - len(live.plan.prompt)
                token = chosen if golden is None else golden[step]
                live.tokens.append(token)
            fed.append(token)
        return fed

    def _after_choice(self, live: _Live) -> Iterator[Rows | Finished]:
        """Hand over the prompt after its prefill, and everything at the end of a sequence."""
        generated = live.tokens[len(live.plan.prompt) :]
        reason = live.stop.reason(generated)
        if live.first_position < len(live.plan.prompt):
            yield live.rows(self._forced)
            live.begin_rows(len(live.tokens) - 1, 0, 0)
        if reason:
            live.ended = True
            if live.token_ids:
                yield self._take_block(live)
            live.begin_rows(len(live.tokens) - 1, 0, 0)
            live.add_row(generated[-1], None)  # never fed to the model
            yield live.rows(self._forced)
            yield Finished(live.plan.sequence, reason, self._engine.decode(generated))

    def _take_block(self, live: _Live) -> Rows:
        """The decode rows of one sequence since its last hand-over."""
        if self._block is not None:
            live.summaries = self._block.of_row(live.batch_row, len(live.token_ids))
        rows = live.rows(self._forced)
        live.begin_rows(len(live.tokens) - 1, 0, 0)
        return rows

    def _step(self, fed: list[int], mask_BT: torch.Tensor, cache: Any) -> torch.Tensor:
        """One decode step of the whole batch → logits [B, V]."""
        device = self._engine.device
        for live, token in zip(self._live, fed, strict=True):
            if live.plan.recorded and not live.ended:
                live.add_row(token, ExecutionShape(len(fed), live.batch_row, 1, 0, live.computed))
        if self._taps is not None and not self._block_steps:
            # A new one each time: the rows of the last may still wait in the writer.
            self._block = StepBlock(BLOCK, len(self._live), self._n_sites)
        positions_B1 = torch.tensor([[live.computed] for live in self._live], device=device)
        with self._observing_step():
            output = self._engine.model(
                input_ids=torch.tensor([[token] for token in fed], device=device),
                attention_mask=mask_BT,
                position_ids=positions_B1,
                cache=cache,
                use_cache=True,
            )
        self._block_steps += 1
        for live in self._live:
            live.computed += 1
        logits_BV: torch.Tensor = output.logits[:, -1]
        return logits_BV

    def _observing_step(self) -> AbstractContextManager[None]:
        if self._taps is None or self._block is None:
            return nullcontext()
        return self._taps.step(self._block, self._block_steps, self._keeps)

    def _observing_long_pass(self, segments: list[Segment], batch: int, tokens: int) -> AbstractContextManager[None]:
        return nullcontext() if self._taps is None else self._taps.long_pass(segments, batch, tokens, self._keeps)

    def _keep(self, batch_row: int, row: int, site: int, values_W: torch.Tensor) -> None:
        live, wanted = self._live[batch_row], self._engine.keep_positions
        if wanted is not None and live.plan.recorded and not live.ended and live.first_position + row in wanted:
            raw = values_W.contiguous().view(torch.uint8).cpu().numpy().tobytes()
            live.kept.setdefault(row, []).append((site, raw))
