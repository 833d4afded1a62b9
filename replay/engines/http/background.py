"""An event loop in a thread of its own, for callers that wait in plain functions."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


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
        """The items as they come. Leaving the iteration early cancels what produces them."""
        handed: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for item in items:
                    handed.put(("item", item))
            except Exception as error:  # raised again where it is waited for
                handed.put(("error", error))
            else:
                handed.put(("end", None))
            finally:
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
        finally:
            if not future.done():
                future.cancel()
                stopped.wait(5.0)  # until its connections are closed

    def close(self) -> None:
        """End the loop. May be called twice."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()
