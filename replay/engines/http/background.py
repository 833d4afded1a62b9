"""An event loop in a thread of its own, for callers that wait in plain functions.

anyio's portal does not fit: its cancellation repeats at every await, and what is interrupted still has to
hand over what it received.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

LAST_S = 5.0
"""Longest time that what was interrupted has to hand over what it has, and to close its connections."""


class BackgroundLoop:
    """Runs coroutines for a thread that has no loop. It ends with `close`, and with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rip-http", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine and wait for it; it is cancelled where the waiting is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items as they come. Leaving the iteration early cancels what produces them.

        Where the waiting is interrupted, so is what produces them, and the items that it still has come
        before the interruption goes on.
        """
        handed: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for item in items:
                    handed.put(("item", item))
            except Exception as error:  # raised again where it is waited for
                handed.put(("error", error))
            finally:
                handed.put(("end", None))
                stopped.set()

        stopped = threading.Event()
        future = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                kind, value = handed.get()
                if kind == "error":
                    raise value
                if kind == "end":
                    return
                yield value
        except KeyboardInterrupt:
            future.cancel()
            yield from _last(handed)
            raise
        finally:
            if not stopped.is_set():
                future.cancel()
                stopped.wait(LAST_S)  # until its connections are closed

    def close(self) -> None:
        """End the loop. May be called twice."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()


def _last(handed: queue.SimpleQueue[tuple[str, Any]]) -> Iterator[Any]:
    """The items that still come of something that was interrupted, until it ends or takes too long."""
    until = time.monotonic() + LAST_S
    while True:
        try:
            kind, value = handed.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return
        if kind != "item":
            return
        yield value
