"""An engine that records, while a replay runs on it, the ops of the passes that compute one position."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ... import __version__
from ...schemas.errors import BadInput
from ...schemas.recorded_ops import Op, OpTrace, ZoomHeader, ZoomPass
from ...schemas.trace import Mode, TraceHeader
from ..engines.base import Finished
from ..engines.hf.engine import HfEngine
from ..request.batches import Batch
from ..row_summaries.rows import Rows
from .op_recorder import ModuleStack
from .rerun import PassOps


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


def check_modules(engine: HfEngine, scope: str, description: str) -> None:
    """Refuse a pattern that no module of a model matches.

    Args:
        engine: An opened engine with sites.
        scope: The pattern for the paths of modules.
        description: The pattern in words, for the error.

    Raises:
        BadInput: None does.
    """
    assert engine.taps is not None
    names = ModuleStack(engine.model, engine.taps.base).names
    if not any(re.search(scope, name) for name in names):
        deepest = max(names, key=lambda name: name.count("."))
        raise BadInput(
            f"--zoom: this model has no module {description}",
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
