"""Calling DuckDB so that Ctrl-C ends it."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb

T = TypeVar("T")


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Do `work`, which calls DuckDB, so that Ctrl-C ends it: DuckDB itself handles no signal while it runs.

    The work runs in a second thread; a KeyboardInterrupt here stops the connection and then goes on.
    """
    results: list[T] = []
    faults: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as fault:  # raised again in the thread that waits
            faults.append(fault)
        finally:
            ended.set()

    # Ctrl-C waits until the thread runs and this one can handle it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            threading.Thread(target=run, daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ended.wait()
    except KeyboardInterrupt:
        while not ended.is_set():  # once is not enough: an interrupt before DuckDB starts is lost
            connection.interrupt()
            ended.wait(0.02)
        raise
    if faults:
        raise faults[0]
    return results[0]
