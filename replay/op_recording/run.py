"""One sequence run again on the `hf` engine: its row hashes, ops of one pass, rows kept and rows put in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from ...schemas.errors import BadInput
from ...schemas.rerun import Ask, OpTrace, SideRun
from ...schemas.trace import Mode
from ..capture.taps import standing_in
from ..engines.base import Finished
from ..engines.hf.engine import HfEngine
from ..request.batches import Batch
from ..row_summaries.trace_rows import Rows
from .location import PassPlace, place_of
from .ops import ModuleStack, OpRecorder, kernel_hints
from .site_rows import SiteRows


def run_side(engine: HfEngine, batch: Batch, mode: Mode, sequence: int, ask: Ask) -> SideRun:
    """Run a batch from its beginning, and tell of one of its sequences.

    Args:
        engine: Opened with its sites.
        batch: What is run; the sequences' golden tokens are forced in golden modes.
        mode: How.
        sequence: The sequence, by its index in the trace.
        ask: What to do beside running.

    Raises:
        BadInput: The engine observes no sites, the sequence is not in the batch, or it has no such position.
        EngineFailed: The model fails.
    """
    if engine.taps is None:
        raise BadInput("zoom needs the sites of the model", "open the engine with sites")
    row = next((row for row, plan in enumerate(batch.sequences) if plan.sequence == sequence), None)
    if row is None:
        raise BadInput(f"sequence {sequence} is not in this batch", "give a recorded one of the batch")
    plan = batch.sequences[row]
    stop = len(plan.prompt) + plan.most_tokens - 1  # the last token is never fed
    if ask.position is not None and not 0 <= ask.position < stop:
        raise BadInput(
            f"position {ask.position}: {plan.request_id} computes positions 0 to {stop - 1}",
            "choose one of them",
        )
    watch = PassOps(engine, [row], ask.position, re.compile(ask.scope))
    rows = SiteRows(engine.taps, stop, ask.keep_from, ask.heal)
    hashes: list[tuple[bytes, ...]] = []
    logits: list[bytes | None] = []
    tokens: list[int] = []
    engine.reset()
    with rows.watched(), watch.followed(rows.begin):
        for event in engine.run(batch, mode, observe=True):
            if isinstance(event, Finished) or event.sequence != sequence:
                continue
            hashes += _hashes(event, len(engine.sites))
            logits += [None if topk is None else topk.logits_hash for topk in event.topk]
            tokens += event.token_ids.tolist()
    return SideRun(
        sites=tuple(engine.sites),
        row_hashes=tuple(hashes),
        logits_hashes=tuple(logits),
        tokens=tuple(tokens),
        ops=watch.traces.get(row),
        kept=rows.kept(),
        healed=frozenset(rows.healed),
    )


class PassOps:
    """Records the ops of the passes that compute one position of some sequences of a batch.

    Args:
        engine: An opened engine.
        rows: The sequences' rows in the batch.
        position: The position; None records nothing.
        scope: Pattern for paths of modules.
    """

    def __init__(
        self, engine: HfEngine, rows: Sequence[int], position: int | None, scope: re.Pattern[str]
    ) -> None:
        assert engine.taps is not None
        self._model, self._taps, self._base = engine.model, engine.taps, engine.taps.base
        self._rows, self._position, self._scope = rows, position, scope
        self._stack = ModuleStack(self._model, self._base)
        self.traces: dict[int, OpTrace] = {}
        """By row. Rows of one pass share their ops."""
        self.left_out = 0
        """Bytes of tensors that were not kept."""

    @contextmanager
    def followed(self, begin: Callable[[PassPlace | None], None] | None = None) -> Iterator[None]:
        """Passes are followed inside this context; `begin` is told where the first row lies in each."""

        def stand_in(call: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                places = [place_of(kwargs, row) for row in self._rows]
                if begin is not None:
                    begin(places[0])
                wanted = [
                    place
                    for place in places
                    if place is not None
                    and self._position in place.column_of
                    and place.row not in self.traces
                ]
                return self._recorded(wanted, call, *args, **kwargs) if wanted else call(*args, **kwargs)

            return forward

        with ExitStack() as stack:
            if self._position is not None:
                stack.enter_context(self._stack.followed())
            stack.enter_context(standing_in({self._model: stand_in}))
            yield

    def _recorded(
        self, places: Sequence[PassPlace], call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        assert self._position is not None
        self._stack.begin()
        recorder = OpRecorder(self._model, self._base, self._stack, self._scope)
        with recorder, self._taps.aside(_disable_current_modes):
            output = call(*args, **kwargs)
        self.left_out += recorder.left_out
        ops, hints = tuple(recorder.ops), kernel_hints()
        for place in places:
            self.traces[place.row] = OpTrace(
                position=self._position,
                batch_size=place.batch,
                batch_row=place.row,
                tokens=place.tokens,
                total=place.total,
                fed=place.fed_up_to(self._position),
                seen=place.seen_up_to(self._position),
                hints=hints,
                ops=ops,
            )
        return output


def _hashes(rows: Rows, sites: int) -> list[tuple[bytes, ...]]:
    """Row hashes of each row; empty bytes where a site was not computed."""
    count = len(rows.token_ids)
    if rows.summaries is None:
        return [(b"",) * sites] * count
    found = rows.summaries.digests()[:count]
    return [tuple(_or_nothing(digest.tobytes()) for digest in row) for row in found]


def _or_nothing(digest: bytes) -> bytes:
    return digest if any(digest) else b""
