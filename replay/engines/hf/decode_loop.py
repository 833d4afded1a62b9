"""The decode loop of the `hf` engine: one batch from its prompts to its last token.

Axes: B sequences in the batch, T columns of a forward pass, V vocabulary. Batches are static: their
size stays until the last recorded sequence has ended; ended ones and neighbours run on beside it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ....schemas.errors import BadInput
from ....schemas.lane import Setting
from ....schemas.trace import Mode
from ...capture.observed_passes import Segment, StepBlock
from ...capture.taps import Taps
from ...request.batches import Batch, PlannedSequence
from ...row_summaries.rows import ExecutionShape, Rows
from ...row_summaries.token_distribution import top_k_and_next, top_k_of_rows, with_next
from ..base import Finished
from .model import Forward
from .padding import StateCheck, lay_out
from .sampling import Live

if TYPE_CHECKING:
    from .sampling import Sampler, StopRule

BLOCK = 64
"""Decode steps whose rows are handed over together; what a killed run loses beside the writer's buffer. A
count and not a time, so that a repeated run hands over the same rows in the same order.
"""


class Host(Protocol):
    """What the loop needs of the engine that it runs in."""

    model: Any
    device: torch.device
    settings: dict[str, Setting]
    context_length: int
    topk: int
    pad: int
    """A token id for padding."""
    keep_positions: range | None
    state_check: StateCheck

    def sampler_for(self, sequence: PlannedSequence) -> Sampler:
        """What chooses the tokens of a sequence."""

    def stop_rule_for(self, sequence: PlannedSequence) -> StopRule:
        """When a sequence ends."""

    def decode(self, tokens: list[int]) -> str:
        """Text of generated tokens."""


class BatchRun:
    """One batch on its way through the model."""

    def __init__(self, engine: Host, batch: Batch, mode: Mode, taps: Taps | None) -> None:
        self._engine = engine
        self._taps = taps
        self._forced = mode != "free"
        self._n_sites = len(taps.sites) if taps else 0
        self._live = [
            Live(plan, row, engine.sampler_for(plan), engine.stop_rule_for(plan))
            for row, plan in enumerate(batch.sequences)
        ]
        self._recorded = [live for live in self._live if live.plan.recorded]
        self._right = engine.settings["padding_side"].resolved == "right"
        self._chunk = int(engine.settings["prefill_chunk"].resolved)
        self._keeps = self._keep if engine.keep_positions is not None else None
        self._forward = Forward(engine.model)
        self._block: StepBlock | None = None
        self._block_steps = 0

    def generate(self) -> Iterator[Rows | Finished]:
        """Prefill, then one token a step on the decode path.

        Raises:
            BadInput: Golden tokens are to be forced and there is none, or the batch cannot be padded.
            EngineFailed: The model fails.
        """
        for live in self._recorded:
            if live.plan.golden == ():
                raise BadInput(
                    f"{live.plan.request_id}: no recorded token to force",
                    "record its answer again, or leave it out",
                )
        mask_BT, logits_BV = yield from self._prefill([live.plan.prompt for live in self._live])
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
            logits_BV = self._step(fed, mask_BT)

    def score(self) -> Iterator[Rows | Finished]:
        """One pass over prompt and golden tokens; every row has its distribution.

        Raises:
            BadInput: The batch cannot be padded.
            EngineFailed: The model fails.
        """
        inputs = [(*live.plan.prompt, *(live.plan.golden or ())[:-1]) for live in self._live]
        yield from self._prefill(inputs, score=True)
        for live in self._recorded:
            golden = list(live.plan.golden or ())
            if golden:
                live.begin_rows(len(live.plan.prompt) + len(golden) - 1)
                live.add_row(golden[-1], None)
                yield live.rows(forced=True)
            yield Finished(live.plan.sequence, "golden", self._engine.decode(golden))

    def _prefill(
        self, inputs: Sequence[Sequence[int]], score: bool = False
    ) -> Generator[Rows, None, tuple[torch.Tensor, torch.Tensor]]:
        """Run the prompts, in chunks of columns where that is set.

        Yields:
            The rows of each chunk, but for a prompt's last ones when not scoring: those wait for the
            choice of the first token.

        Raises:
            BadInput: The batch cannot be padded on that side.
            EngineFailed: The model fails.

        Returns:
            The attention mask int64[B, T], and the logits [B, V] after each sequence's last token.
        """
        lengths = [len(ids) for ids in inputs]
        self._check_state(inputs)
        engine = self._engine
        laid = lay_out(inputs, self._right, engine.pad, engine.context_length, engine.device)
        columns = laid.ids_BT.shape[1]
        last_logits: list[torch.Tensor] = [torch.empty(0)] * len(inputs)
        width = self._chunk or columns
        for start in range(0, columns, width):
            end = min(start + width, columns)
            segments, spans = [], []
            for live, ids in zip(self._live, inputs, strict=True):
                first = max(laid.first[live.batch_row], start)
                count = max(0, min(end, laid.first[live.batch_row] + len(ids)) - first)
                spans.append((first - start, count))
                if live.plan.recorded and count:
                    self._begin_chunk(live, ids[live.computed : live.computed + count], end - start)
                    if live.summaries is not None:
                        segments.append(Segment(live.batch_row, first - start, count, live.summaries, 0))
                live.computed += count
            last_columns = [first + count - 1 for first, count in spans]
            ending = [
                row for row, live in enumerate(self._live) if live.computed == lengths[row] and spans[row][1]
            ]
            # A chunk in which no prompt ends still has to give logits at one column; nobody reads them.
            kept_columns = sorted({last_columns[row] for row in ending}) or [end - start - 1]
            with (
                nullcontext()
                if self._taps is None
                else self._taps.long_pass(segments, len(inputs), end - start, self._keeps)
            ):
                logits_BKV = self._forward(
                    laid.ids_BT[:, start:end],
                    laid.mask_BT[:, :end],
                    laid.positions_BT[:, start:end],
                    None if score else kept_columns,
                )
            for row in ending:
                column = last_columns[row] if score else kept_columns.index(last_columns[row])
                last_logits[row] = logits_BKV[row, column]
            for live in self._recorded:
                first, count = spans[live.batch_row]
                if score:
                    self._score_rows(live, logits_BKV[live.batch_row, first : first + count])
                if count and (score or live.batch_row not in ending):
                    yield live.rows(self._forced)
        return laid.mask_BT, torch.stack(last_logits)

    def _begin_chunk(self, live: Live, tokens: Sequence[int], columns: int) -> None:
        """Begin the rows of those prompt tokens of a sequence that a pass of so many columns computes."""
        shape = ExecutionShape(
            batch_size=len(self._live),
            batch_row=live.batch_row,
            num_tokens=len(tokens),
            padded_tokens=columns - len(tokens),
            cached_tokens=live.computed,
        )
        live.begin_rows(live.computed, len(tokens), self._n_sites)
        for token in tokens:
            live.add_row(token, shape)

    def _check_state(self, inputs: Sequence[Sequence[int]]) -> None:
        """Refuse a batch whose sequences this model would not compute as it does alone.

        Raises:
            BadInput: Padding would enter a sliding window or a state, or a state is lost between chunks.
        """
        columns = max(len(ids) for ids in inputs)
        padded = any(len(ids) < columns for ids in inputs)
        if self._right and padded and not self._forward.allows_gaps:
            raise BadInput(
                "padding_side=right: the padding would enter this model's sliding window or state",
                "use --set padding_side=left, or batch_size=1",
            )
        if self._forward.attends_only:
            return
        check = self._engine.state_check
        if padded and not check.tolerates_padding:
            raise BadInput(
                "this model cannot be batched with prompts of unequal length: padding enters its state",
                "use --set batch_size=1 and no neighbours, or a set whose prompts have one length",
            )
        if 0 < self._chunk < columns and not check.tolerates_chunks:
            raise BadInput(
                "this model cannot compute a prompt in chunks: its state is lost between them",
                "leave out --set prefill_chunk",
            )

    def _score_rows(self, live: Live, logits_RV: torch.Tensor) -> None:
        """The distributions of the rows that the pass has just computed."""
        following = (*live.plan.prompt, *(live.plan.golden or ()))[live.first_position + 1 :]
        # Without golden tokens nothing follows the prompt.
        live.topk = [*top_k_and_next(logits_RV, following, self._engine.topk)]

    def _choose(self, logits_BV: torch.Tensor) -> list[int]:
        """Choose every sequence's next token; complete the row it follows from.

        Returns:
            The token to feed to each row of the batch.
        """
        active = [live for live in self._recorded if not live.ended]
        # Neighbours and ended sequences run on, so that the batch keeps its size.
        fed: list[int] = torch.argmax(logits_BV, dim=-1).tolist()
        found = top_k_of_rows(logits_BV[[live.batch_row for live in active]], self._engine.topk)
        for live, topk in zip(active, found, strict=True):
            logits_V = logits_BV[live.batch_row].float().cpu()
            chosen, live.samplers[-1] = live.sampler.choose(logits_V, live.tokens)
            golden, step = live.plan.golden, len(live.tokens) - len(live.plan.prompt)
            fed[live.batch_row] = chosen if golden is None else golden[step]
            live.topk[-1] = with_next(topk, logits_V, fed[live.batch_row])
            live.tokens.append(fed[live.batch_row])
        return fed

    def _after_choice(self, live: Live) -> Iterator[Rows | Finished]:
        """Hand over the prompt after its prefill, and everything at the end of a sequence."""
        generated = live.tokens[len(live.plan.prompt) :]
        reason = live.stop.reason(generated)
        if live.first_position < len(live.plan.prompt):
            yield live.rows(self._forced)
            live.begin_rows(len(live.tokens) - 1)
        if reason:
            live.ended = True
            if live.token_ids:
                yield self._take_block(live)
            live.add_row(generated[-1], None)  # never fed to the model
            yield live.rows(self._forced)
            yield Finished(live.plan.sequence, reason, self._engine.decode(generated))

    def _take_block(self, live: Live) -> Rows:
        """The decode rows of one sequence since its last hand-over."""
        if self._block is not None:
            live.summaries = self._block.of_row(live.batch_row, len(live.token_ids))
        rows = live.rows(self._forced)
        live.begin_rows(len(live.tokens) - 1)
        return rows

    def _step(self, fed: list[int], mask_BT: torch.Tensor) -> torch.Tensor:
        """One decode step of the whole batch → logits [B, V]."""
        device = self._engine.device
        for live, token in zip(self._live, fed, strict=True):
            if live.plan.recorded and not live.ended:
                live.add_row(token, ExecutionShape(len(fed), live.batch_row, 1, 0, live.computed))
        if self._taps is not None and not self._block_steps:
            # A new one each time: the rows of the last may still wait in the writer.
            self._block = StepBlock(BLOCK, len(self._live), self._n_sites)
        # What runs on after its end may leave the context, and must not fail there.
        last = self._engine.context_length - 1
        with (
            nullcontext()
            if self._taps is None or self._block is None
            else self._taps.step(self._block, self._block_steps, self._keeps)
        ):
            logits_B1V = self._forward(
                torch.tensor([[token] for token in fed], device=device),
                mask_BT,
                torch.tensor([[min(live.computed, last)] for live in self._live], device=device),
            )
        self._block_steps += 1
        for live in self._live:
            live.computed += 1
        return logits_B1V[:, -1]

    def _keep(self, batch_row: int, first_row: int, site: int, rows_RW: torch.Tensor) -> None:
        """Keep the raw bits of those rows whose position is wanted."""
        live, wanted = self._live[batch_row], self._engine.keep_positions
        if wanted is None or not live.plan.recorded or live.ended:
            return
        first = live.first_position + first_row
        for position in range(max(first, wanted.start), min(first + len(rows_RW), wanted.stop)):
            raw = rows_RW[position - first].contiguous().view(torch.uint8).cpu().numpy().tobytes()
            live.kept.setdefault(position - live.first_position, []).append((site, raw))
