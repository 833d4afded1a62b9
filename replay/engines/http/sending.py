"""Sending a batch: its sequences together, what arrives of each passed on, and nothing lost when one fails.

What a request contains and what an answer means is the engine's business.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...request.batches import Batch, PlannedSequence
from ...row_summaries.rows import Rows
from ..base import Finished
from .answer_rows import Answer, Events

TAPS_READ_S = 2.0
"""Seconds between two readings of what was observed of an answer that goes on: taps write as often."""


class Answering(ABC):
    """What sending needs of a server engine, and what it gets of one that observes no sites."""

    @abstractmethod
    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request and yield what arrives; the last event is the `End`.

        Raises:
            EngineFailed: The server fails, or does not answer what was requested.
        """

    @abstractmethod
    def explained(self, error: Exception, plan: PlannedSequence) -> Exception:
        """An error of a sequence, with its request and the last error in the log of a dead server."""

    async def observed(self, answer: Answer) -> Rows | None:
        """The rows of a whole answer that were not taken yet, with what was observed inside the server.

        Raises:
            EngineFailed: What was observed cannot be read.
        """
        return answer.take(whole=True)

    async def observed_so_far(self, answer: Answer) -> Rows | None:
        """The next rows of an answer that goes on, as far as they were observed inside the server by now."""
        return None

    async def observed_at_last(self, answer: Answer) -> Rows | None:
        """The other rows of an answer that broke off, with what was observed of them. It does not fail."""
        return answer.take(whole=answer.end is not None)


@dataclass(frozen=True)
class _Failure:
    """A sequence met an error.

    Attributes:
        partial: What arrived before, where no rows keep it.
    """

    error: Exception
    partial: Finished | None


@dataclass(frozen=True)
class Sending:
    """One batch to be sent.

    Attributes:
        engine: Writes requests and reads answers.
        together: Send all sequences at once; else at the offsets at which they were recorded.
    """

    engine: Answering
    batch: Batch
    mode: Mode
    observe: bool
    together: bool

    async def events(self) -> AsyncIterator[Rows | Finished]:
        """Send all sequences and yield rows as they arrive (see `base.Engine.run`).

        Neighbours that still run when the last recorded sequence has ended are cancelled.

        Raises:
            EngineFailed: One of them failed; what had arrived of all was yielded before.
        """
        arrived: asyncio.Queue[Rows | Finished | _Failure] = asyncio.Queue()
        tasks = [
            asyncio.create_task(_Sequence(self, plan, arrived).attend(offset_s))
            for plan, offset_s in zip(self.batch.sequences, self._offsets(), strict=True)
        ]
        waiting = sum(plan.recorded for plan in self.batch.sequences)
        try:
            while waiting:
                event = await arrived.get()
                if isinstance(event, _Failure):
                    await _cancel(tasks)  # the others will not end either, and hand over what they have
                    for kept in _drained([event], arrived):
                        yield kept
                    raise event.error
                yield event
                waiting -= isinstance(event, Finished)
        except asyncio.CancelledError:
            await _cancel(tasks)  # likewise
            for kept in _drained([], arrived):
                yield kept
            raise
        finally:
            await _cancel(tasks)

    def _offsets(self) -> list[float]:
        """Seconds after the first one at which each sequence is sent."""
        if self.together:
            return [0.0] * len(self.batch.sequences)
        recorded = [
            plan.envelope.context.arrival_ms if plan.envelope and plan.envelope.context else None
            for plan in self.batch.sequences
        ]
        first = min((at for at in recorded if at is not None), default=0.0)
        return [0.0 if at is None else (at - first) / 1000 for at in recorded]


class _Sequence:
    """One sequence from sending to its end.

    Args:
        arrived: Gets its rows, and its end or failure.
    """

    def __init__(
        self, sending: Sending, plan: PlannedSequence, arrived: asyncio.Queue[Rows | Finished | _Failure]
    ) -> None:
        self._engine, self._plan, self._arrived = sending.engine, plan, arrived
        self._mode: Mode = sending.mode if plan.recorded else "free"
        self._observe = sending.observe and plan.recorded
        self._reading: asyncio.Task[None] | None = None
        """Of the taps, beside the stream, so that tokens are timed meanwhile."""

    async def attend(self, offset_s: float) -> None:
        """Send it after a while, and hand over what arrives."""
        if offset_s:
            await asyncio.sleep(offset_s)
        self._answer = Answer(self._plan, forced=self._mode != "free")
        self._read_at = time.monotonic()
        try:
            async with aclosing(self._engine.answer(self._plan, self._mode, self._observe)) as events:
                async for event in events:
                    self._answer.add(event)
                    if self._plan.recorded:
                        self._hand_over_due()
            if self._answer.end is None:
                raise EngineFailed("the answer has no end", "see the log of the server")
            if self._plan.recorded:
                await self._finish()
        except (Exception, asyncio.CancelledError) as error:  # handed to the one who waits
            await self._fail(error)

    def _hand_over_due(self) -> None:
        """Hand over rows of an answer that goes on, where it is time to."""
        if not self._observe:
            if self._answer.is_due():
                self._put(self._answer.take())
        elif time.monotonic() - self._read_at >= TAPS_READ_S and (
            self._reading is None or self._reading.done()
        ):
            self._read_at = time.monotonic()
            self._reading = asyncio.create_task(self._read_taps())

    async def _read_taps(self) -> None:
        try:
            self._put(await self._engine.observed_so_far(self._answer))
        except EngineFailed:
            return  # reported at the end, when everything should be there

    async def _finish(self) -> None:
        if self._reading is not None:
            await self._reading
        answer = self._answer
        self._put(await self._engine.observed(answer) if self._observe else answer.take(whole=True))
        self._arrived.put_nowait(answer.finished())

    async def _fail(self, error: BaseException) -> None:
        """Hand over what arrived before an error, and the error."""
        plan, answer = self._plan, self._answer
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        if plan.recorded and answer.generated:
            self._put(await self._engine.observed_at_last(answer) if self._observe else answer.take())
        partial = answer.broken_off() if plan.recorded else None
        if isinstance(error, Exception):
            self._arrived.put_nowait(_Failure(self._engine.explained(error, plan), partial))
            return
        cancelled = EngineFailed(f"{plan.request_id}: the request was cancelled", "run the command again")
        self._arrived.put_nowait(_Failure(cancelled, partial))
        raise error

    def _put(self, rows: Rows | None) -> None:
        if rows:
            self._arrived.put_nowait(rows)


def _drained(
    first: list[_Failure], arrived: asyncio.Queue[Rows | Finished | _Failure]
) -> list[Rows | Finished]:
    """What arrived and was not handed over yet."""
    waiting: list[Rows | Finished | _Failure] = [*first]
    while not arrived.empty():
        waiting.append(arrived.get_nowait())
    events = [event.partial if isinstance(event, _Failure) else event for event in waiting]
    return [event for event in events if event is not None]


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
