"""One sequence run again on the `hf` engine: its row hashes, ops of one pass, rows kept and rows patched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from ... import __version__
from ...schemas.errors import BadInput
from ...schemas.recorded_ops import Op, OpTrace, ZoomHeader, ZoomPass
from ...schemas.trace import Mode, TraceHeader
from ...schemas.zoom import Rerun, SideRun
from ..capture.modules import replace_calls
from ..engines.base import Finished
from ..engines.hf.engine import HfEngine
from ..request.batches import Batch
from ..row_summaries.rows import Rows
from .op_recorder import ModuleStack, OpRecorder, kernel_hints
from .row_patching import PassLocation, SiteRows, location_in_pass


def run_side(engine: HfEngine, batch: Batch, mode: Mode, sequence: int, request: Rerun) -> SideRun:
    """Run a batch from its beginning, and return what one of its sequences shows.

    Args:
        engine: Opened with its sites.
        batch: What is run; the sequences' golden tokens are forced in golden modes.
        mode: How.
        sequence: The sequence, by its index in the trace.
        request: What to do beside running.

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
    if request.position is not None and not 0 <= request.position < stop:
        raise BadInput(
            f"position {request.position}: {plan.request_id} computes positions 0 to {stop - 1}",
            "choose one of them",
        )
    watch = PassOps(engine, [row], request.position, re.compile(request.scope))
    rows = SiteRows(engine.taps, stop, request.keep_from, request.patch)
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
        patched=frozenset(rows.patched),
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
    def followed(self, begin: Callable[[PassLocation | None], None] | None = None) -> Iterator[None]:
        """Passes are followed inside this context; `begin` gets the location of the first row in each."""

        def replacement(call: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                locations = [location_in_pass(kwargs, row) for row in self._rows]
                if begin is not None:
                    begin(locations[0])
                wanted = [
                    location
                    for location in locations
                    if location is not None
                    and self._position in location.column_of
                    and location.row not in self.traces
                ]
                return self._recorded(wanted, call, *args, **kwargs) if wanted else call(*args, **kwargs)

            return forward

        with ExitStack() as stack:
            if self._position is not None:
                stack.enter_context(self._stack.followed())
            stack.enter_context(replace_calls({self._model: replacement}))
            yield

    def _recorded(
        self, locations: Sequence[PassLocation], call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        assert self._position is not None
        self._stack.begin()
        recorder = OpRecorder(self._model, self._base, self._stack, self._scope)
        with recorder, self._taps.observe_within(_disable_current_modes):
            output = call(*args, **kwargs)
        self.left_out += recorder.left_out
        ops, hints = tuple(recorder.ops), kernel_hints()
        for location in locations:
            self.traces[location.row] = OpTrace(
                position=self._position,
                batch_size=location.batch,
                batch_row=location.row,
                tokens=location.tokens,
                total=location.total,
                fed=location.query_columns_up_to(self._position),
                seen=location.key_columns_up_to(self._position),
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


def check_reached(position: int, longest: int) -> None:
    """Refuse a position that no sequence computes.

    Args:
        position: The position.
        longest: Tokens of the longest sequence, prompt included.

    Raises:
        BadInput: None does: the last token is never fed to the model.
    """
    if position >= longest - 1:
        raise BadInput(
            f"--zoom {position}: no request computes it: the longest has {longest} tokens with its prompt, "
            "and the last one is never fed to the model",
            f"choose a position from 0 to {longest - 2}" if longest > 1 else "generate more tokens",
        )


def check_modules(engine: HfEngine, scope: str, module: str | None = None) -> None:
    """Refuse a pattern that no module of a model matches.

    Args:
        engine: An opened engine with sites.
        scope: The pattern for the paths of modules.
        module: The one that the pattern is made of; None: the user wrote the pattern.

    Raises:
        BadInput: None does.
    """
    assert engine.taps is not None
    names = ModuleStack(engine.model, engine.taps.base).names
    if not any(re.search(scope, name) for name in names):
        deepest = max(names, key=lambda name: name.count("."))
        raise BadInput(
            f"--zoom: this model has no module {module or f'that matches {scope}'}",
            f"name one as the trace's sites do, such as {deepest}",
        )


class OpRecordingEngine:
    """Runs as the engine does. What it records of a run with taps off is nothing.

    Args:
        engine: An opened engine with sites.
        position: The position to look at, in every recorded sequence that computes it.
        scope: Pattern for the paths of modules whose ops are recorded.
    """

    def __init__(self, engine: HfEngine, position: int, scope: str) -> None:
        self._engine, self._position, self._scope = engine, position, re.compile(scope)
        self._found: list[tuple[str, int, OpTrace]] = []
        self._left_out = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """As the engine; the first run of a batch that observes is recorded."""
        rows = [row for row, plan in enumerate(batch.sequences) if plan.recorded]
        if not observe or not rows:
            yield from self._engine.run(batch, mode, observe)
            return
        watch = PassOps(self._engine, rows, self._position, self._scope)
        with watch.followed():
            yield from self._engine.run(batch, mode, observe)
        self._left_out += watch.left_out
        for row, trace in sorted(watch.traces.items()):
            plan = batch.sequences[row]
            self._found.append((plan.request_id, plan.sample, trace))

    def recorded(self, header: TraceHeader) -> tuple[ZoomHeader, list[tuple[Op, ...]]]:
        """What was recorded, ready to be written.

        Args:
            header: Of the trace that the run gave.
        """
        passes: list[tuple[Op, ...]] = []
        records = []
        for request_id, sample, trace in self._found:
            index = next((index for index, ops in enumerate(passes) if ops is trace.ops), len(passes))
            if index == len(passes):
                passes.append(trace.ops)
            records.append(ZoomPass.of(trace, index, request_id, sample))
        return (
            ZoomHeader(
                tool_version=__version__,
                created=header.created,
                engine=header.lane.engine,
                model=header.lane.model,
                settings={name: setting.resolved for name, setting in header.lane.settings.items()},
                scope=self._scope.pattern,
                passes=records,
                left_out_bytes=self._left_out,
            ),
            passes,
        )
