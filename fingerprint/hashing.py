"""Files to SHA-256 digests: one streaming read a file, several files at once, read-only, with progress."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..schemas.errors import BadInput
from .context import Progress, Stopped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .cache import DigestCache

BLOCK_BYTES = 4 * 1024 * 1024
MAX_WORKERS = 4
"""More readers than this only make a disk seek; SHA-256 itself runs without the interpreter lock."""
CACHE_FROM_BYTES = 1024 * 1024
"""Smaller files are read in less time than a look-up is worth."""


@dataclass(frozen=True)
class FileDigest:
    """What is known of one file's bytes."""

    sha256: str
    size: int
    cached: bool
    """The digest was computed by an earlier run over this very state of the file."""


class _Meter:
    """Adds up bytes from several threads and passes the sum on."""

    def __init__(self, total: int, report: Progress | None) -> None:
        self._total, self._report = total, report
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        if self._report is None:
            return
        with self._lock:
            self._done += count
            self._report(self._done, self._total)


def hash_files(
    paths: Sequence[Path],
    progress: Progress | None = None,
    cache: DigestCache | None = None,
    stop: threading.Event | None = None,
) -> dict[Path, FileDigest]:
    """SHA-256 of every file, largest first, at most four at a time.

    Args:
        paths: Files; symlinks are followed.
        progress: Called with bytes done and bytes in all (cached files count in neither).
        cache: Digests of earlier runs; it is asked and told, but not saved.
        stop: When set, reading ends within one block.

    Raises:
        BadInput: A file cannot be read, or changed while it was read.
        Stopped: `stop` was set.
    """
    stop = stop or threading.Event()
    states = {path: _state(path) for path in paths}
    results: dict[Path, FileDigest] = {}
    for path, state in states.items():
        known = cache.get(state) if cache is not None else None
        if known is not None:
            results[path] = FileDigest(known, state.st_size, cached=True)
    unread = sorted(
        (path for path in states if path not in results), key=lambda path: (-states[path].st_size, path)
    )
    meter = _Meter(sum(states[path].st_size for path in unread), progress)
    with ThreadPoolExecutor(min(MAX_WORKERS, os.cpu_count() or 1), thread_name_prefix="rip-hash") as pool:
        futures = {path: pool.submit(_hash_file, path, meter, stop) for path in unread}
        try:
            for path, future in futures.items():
                sha256, state = future.result()
                results[path] = FileDigest(sha256, state.st_size, cached=False)
                if cache is not None and state.st_size >= CACHE_FROM_BYTES:
                    cache.put(state, sha256)
        except BaseException:
            stop.set()  # without it, leaving the pool would wait for all the other files
            raise
    return {path: results[path] for path in paths}


def _state(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None


def _hash_file(path: Path, meter: _Meter, stop: threading.Event) -> tuple[str, os.stat_result]:
    digest = hashlib.sha256()
    block = bytearray(BLOCK_BYTES)
    view = memoryview(block)
    try:
        with path.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            while count := file.readinto(block):
                if stop.is_set():
                    raise Stopped
                digest.update(view[:count])
                meter.add(count)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise _unreadable(path, error) from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise BadInput(f"{path} changed while it was read", "wait until nothing writes to it, then try again")
    return digest.hexdigest(), after


def _unreadable(path: Path, error: OSError) -> BadInput:
    return BadInput(
        f"{path} could not be read: {error.strerror}", "check that the file is there and readable"
    )
