"""Sending a batch: its sequences together, what arrives of each handed on, and nothing lost when one fails.

What a request says and what an answer means is the engine's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...plan import Batch, PlannedSequence
from ..base import Finished, Rows
from .answer import Answer

if TYPE_CHECKING:
    from .server import ServerEngine


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
                for kept in _drained(event, arrived):
                    yield kept
                raise event.error
            yield event
            waiting -= isinstance(event, Finished)
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
    try:
        async for event in engine.answer(plan, mode, observe):
            answer.add(event)
            if plan.recorded and not observe and answer.is_due() and (rows := answer.take()):
                arrived.put_nowait(rows)
        if answer.end is None:
            raise EngineFailed("the answer has no end", "see the log of the server")
        if not plan.recorded:
            return
        if observe:
            for rows in await engine.observed(answer):
                arrived.put_nowait(rows)
        elif rows := answer.take(whole=True):
            arrived.put_nowait(rows)
        arrived.put_nowait(answer.finished())
    except (Exception, asyncio.CancelledError) as error:  # handed to the one who waits
        if plan.recorded and answer.generated and (rows := answer.take()):
            arrived.put_nowait(rows)
        partial = answer.broken_off() if plan.recorded else None
        if isinstance(error, asyncio.CancelledError):
            gone = EngineFailed(f"{plan.request_id}: the request was given up", "run the command again")
            arrived.put_nowait(_Failure(gone, partial))
            raise
        arrived.put_nowait(_Failure(engine.explained(error, plan), partial))


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


def _drained(failure: _Failure, arrived: asyncio.Queue[Rows | Finished | _Failure]) -> list[Rows | Finished]:
    """What arrived and was not handed over yet."""
    waiting: list[Rows | Finished | _Failure] = [failure]
    while not arrived.empty():
        waiting.append(arrived.get_nowait())
    events = [event.partial if isinstance(event, _Failure) else event for event in waiting]
    return [event for event in events if event is not None]


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
