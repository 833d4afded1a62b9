"""Writing what an engine hands over as a trace, without the request side of a replay."""

from __future__ import annotations

from pathlib import Path

from fakes.traces import header
from rip.replay.engines.base import Engine, Finished
from rip.replay.request.batches import Batch
from rip.replay.row_summaries.row_hash_and_sketch import ROW_HASH_NAME, SKETCH_NAME
from rip.replay.trace_writer import SequenceInfo, TraceWriter
from rip.schemas.trace import Mode


def record(engine: Engine, batch: Batch, path: Path, mode: Mode = "free") -> Path:
    """Run one batch and write its trace."""
    plans = {plan.sequence: plan for plan in batch.sequences if plan.recorded}
    about = header(
        engine.sites,
        [plan.request_id for plan in plans.values()],
        mode=mode,
        row_hash=ROW_HASH_NAME,
        sketch=SKETCH_NAME if engine.sites else "",
    )
    writer = TraceWriter(path, about)
    for event in engine.run(batch, mode, bool(engine.sites)):
        if not isinstance(event, Finished):
            plan = plans[event.sequence]
            writer.append(SequenceInfo(plan.request_id, plan.sample, len(plan.prompt)), event)
    return writer.finish(about)
