"""The folder that one rank writes: made private, bounded, written by a thread of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ....schemas.files import replace_file
from ..part_file import Part, write_part
from ..rank_folder import SITES, STATE, boot_id, padded_state

MOST_WAITING_BYTES = 512 << 20
"""Parts that may wait for the disk. More would take the memory that serving needs."""

CLOSE_SECONDS = 5.0
"""Longest time that the end of the process waits for the disk."""


class Stopped(Exception):
    """The observation has to end; the message says why."""


class RankFolder:
    """One rank's files. Every method but the constructor may be called from the worker's thread alone.

    Args:
        parent: RIP_TAP.
        rank: This process's rank in its engine.
        facts: What `state.json` says of it besides its state.
        most_bytes: Bound of the folder.
        failed: Called, from the writing thread, with the reason why nothing more can be written, in words
            and as the error that it is.

    Raises:
        OSError: The folder cannot be made.
    """

    def __init__(
        self,
        parent: Path,
        rank: int,
        facts: Mapping[str, Any],
        most_bytes: int,
        failed: Callable[[str, Exception], None],
    ) -> None:
        _make_private(parent)
        self.path = parent / f"{boot_id()}-{os.getpid()}-rank{rank}"
        self.path.mkdir(mode=0o700)
        self._facts = {**facts, "boot_id": boot_id(), "pid": os.getpid(), "started": time.time()}
        self._state = os.open(self.path / STATE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.write_state("starting")
        self._most_bytes = most_bytes
        self._failed = failed
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Part], int, Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._written: dict[Path, int] = {}
        self._thread = threading.Thread(target=self._write_all, name="rip-tap", daemon=True)
        self._thread.start()

    def write_state(self, state: str, why: str = "", error: Exception | None = None) -> None:
        """Put `starting`, `ready`, `failed` or `closed` into `state.json`, in place.

        Args:
            why: In words.
            error: What it is because of.

        Raises:
            OSError: As the disk says; the file's own bytes are already allocated.
        """
        about = error and {"kind": type(error).__name__, "message": str(error)}
        os.pwrite(self._state, padded_state({**self._facts, "state": state, "why": why, "error": about}), 0)

    def write_sites(self, text: str) -> None:
        """Write `sites.json`.

        Raises:
            OSError: As the disk says.
        """
        with replace_file(self.path / SITES) as unfinished:
            unfinished.write_text(text, encoding="utf-8")

    def put(self, part: Callable[[], Part], size: int, written: Callable[[], None]) -> None:
        """Have a part made and written soon.

        Args:
            part: Makes it, on the writing thread. What it uses must not change any more.
            size: Bytes that it holds until then.
            written: Called, on that thread, when what it used may change again.

        Raises:
            Stopped: The thread does not keep up.
        """
        with self._lock:
            if self._waiting_bytes + size > MOST_WAITING_BYTES and self._waiting_bytes:
                raise Stopped(
                    f"more is observed than can be written to {self.path} in time "
                    "(RIP_TAP_SITES and RIP_TAP_TOPK=0 observe less)"
                )
            self._waiting_bytes += size
        self._waiting.put((part, size, written))

    def close(self) -> None:
        """Write what waits, within a few seconds."""
        self._waiting.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _write_all(self) -> None:
        _stay_out_of_the_way()
        for number, (make, size, written) in enumerate(iter(self._waiting.get, None)):
            try:
                part = make()
                self._make_room(part.nbytes())
                path, bytes_written = write_part(self.path, number, part)
                self._written[path] = bytes_written
                written()
            except Exception as error:  # whatever it is, the worker serves
                self._failed(_reason_of(error, self.path), error)
                return
            with self._lock:
                self._waiting_bytes -= size

    def _make_room(self, size: int) -> None:
        """Stopped where so many more bytes would exceed the bound. Parts that were removed count no more."""
        if sum(self._written.values()) + size <= self._most_bytes:
            return
        self._written = {path: known for path, known in self._written.items() if path.exists()}
        if sum(self._written.values()) + size > self._most_bytes:
            raise Stopped(
                f"{self.path} has reached its bound of {self._most_bytes >> 20} MB (RIP_TAP_MAX_MB)"
            )


def _stay_out_of_the_way() -> None:
    """Let this thread run beside the worker's own, and alone.

    vLLM binds a worker to cores of its own, which new threads inherit. And a thread that uses torch gets as
    many OpenMP threads to help it as the worker has: they would fight for the same cores.
    """
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with contextlib.suppress(AttributeError, OSError, TypeError):  # not everywhere is it a global symbol
        ctypes.CDLL(None).omp_set_num_threads(1)  # of this thread only


def _reason_of(error: Exception, folder: Path) -> str:
    if isinstance(error, OSError):
        return f"{folder} could not be written: {error.strerror or error}"
    return str(error) if isinstance(error, Stopped) else f"{type(error).__name__}: {error}"


def _make_private(folder: Path) -> None:
    """Make a folder, and those it lies in, for their owner only. One that is there is left as it is."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
