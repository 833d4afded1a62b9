"""Sending a batch: its sequences together, what arrives of each handed on, and nothing lost when one fails.

What a request says and what an answer means is the engine's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...request.batches import Batch, PlannedSequence
from ...row_summaries.trace_rows import Rows
from ..base import Finished
from .answer import Answer, Event

if TYPE_CHECKING:
    from .server import ServerEngine

LOOKED_S = 2.0
"""Seconds from one look at what was observed of an answer that goes on to the next: taps write as often."""


@dataclass(frozen=True)
class _Failure:
    """A sequence met an error.

    Attributes:
        partial: What came before, where no rows keep it.
    """

    error: Exception
    partial: Finished | None


async def send(
    engine: ServerEngine, batch: Batch, mode: Mode, observe: bool
) -> AsyncIterator[Rows | Finished]:
    """Send all sequences of a batch and hand over rows as they arrive (see `base.Engine.run`).

    Neighbours that still run when the last recorded sequence has ended are cancelled.

    Raises:
        EngineFailed: One of them failed; what had arrived of all was handed over before.
    """
    arrived: asyncio.Queue[Rows | Finished | _Failure] = asyncio.Queue()
    offsets = _arrival_offsets(batch, engine.setting("arrival") == "together")
    tasks = [
        asyncio.create_task(_attend(engine, plan, offset, mode, observe, arrived))
        for plan, offset in zip(batch.sequences, offsets, strict=True)
    ]
    waiting = sum(plan.recorded for plan in batch.sequences)
    try:
        while waiting:
            event = await arrived.get()
            if isinstance(event, _Failure):
                await _end(tasks)  # the others will have no end either, and tell now what they have
                for kept in _drained([event], arrived):
                    yield kept
                raise event.error
            yield event
            waiting -= isinstance(event, Finished)
    except asyncio.CancelledError:
        await _end(tasks)  # likewise
        for kept in _drained([], arrived):
            yield kept
        raise
    finally:
        await _end(tasks)


async def _attend(
    engine: ServerEngine,
    plan: PlannedSequence,
    offset_s: float,
    mode: Mode,
    observe: bool,
    arrived: asyncio.Queue[Rows | Finished | _Failure],
) -> None:
    """One sequence from sending to its end."""
    if offset_s:
        await asyncio.sleep(offset_s)
    mode, observe = (mode, observe) if plan.recorded else ("free", False)
    answer = Answer(plan, forced=mode != "free")
    looking: asyncio.Task[None] | None = None
    looked_at = time.monotonic()
    try:
        async with _closing(engine.answer(plan, mode, observe)) as events:
            async for event in events:
                answer.add(event)
                if not plan.recorded:
                    continue
                if not observe:
                    if answer.is_due() and (rows := answer.take()):
                        arrived.put_nowait(rows)
                elif time.monotonic() - looked_at >= LOOKED_S and (looking is None or looking.done()):
                    looked_at = time.monotonic()
                    looking = asyncio.create_task(
                        _look(engine, answer, arrived)
                    )  # tokens are timed meanwhile
        if answer.end is None:
            raise EngineFailed("the answer has no end", "see the log of the server")
        if not plan.recorded:
            return
        if looking is not None:
            await looking
        if rows := await engine.observed(answer) if observe else answer.take(whole=True):
            arrived.put_nowait(rows)
        arrived.put_nowait(answer.finished())
    except (Exception, asyncio.CancelledError) as error:  # handed to the one who waits
        if looking is not None:
            await asyncio.gather(looking, return_exceptions=True)
        if plan.recorded and answer.generated:
            rows = await engine.observed_at_last(answer) if observe else answer.take()
            if rows:
                arrived.put_nowait(rows)
        partial = answer.broken_off() if plan.recorded else None
        if isinstance(error, asyncio.CancelledError):
            gone = EngineFailed(f"{plan.request_id}: the request was given up", "run the command again")
            arrived.put_nowait(_Failure(gone, partial))
            raise
        arrived.put_nowait(_Failure(engine.explained(error, plan), partial))


async def _look(
    engine: ServerEngine, answer: Answer, arrived: asyncio.Queue[Rows | Finished | _Failure]
) -> None:
    """Hand over what was observed by now of an answer that goes on."""
    try:
        rows = await engine.observed_so_far(answer)
    except EngineFailed:  # told at the end, when everything should be there
        return
    if rows:
        arrived.put_nowait(rows)


@asynccontextmanager
async def _closing(events: AsyncIterator[Event]) -> AsyncIterator[AsyncIterator[Event]]:
    """Events whose connection is closed when the context ends, however it ends."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def _arrival_offsets(batch: Batch, together: bool) -> list[float]:
    """Seconds after the first one at which each sequence is sent."""
    if together:
        return [0.0] * len(batch.sequences)
    recorded = [
        plan.envelope.context.arrival_ms if plan.envelope and plan.envelope.context else None
        for plan in batch.sequences
    ]
    first = min((at for at in recorded if at is not None), default=0.0)
    return [0.0 if at is None else (at - first) / 1000 for at in recorded]


def _drained(
    first: list[_Failure], arrived: asyncio.Queue[Rows | Finished | _Failure]
) -> list[Rows | Finished]:
    """What arrived and was not handed over yet."""
    waiting: list[Rows | Finished | _Failure] = [*first]
    while not arrived.empty():
        waiting.append(arrived.get_nowait())
    events = [event.partial if isinstance(event, _Failure) else event for event in waiting]
    return [event for event in events if event is not None]


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
