"""Files to digests: one read feeds a file's SHA-256 and its tensors' digests, several files at once.

It gets the offsets of tensors and does not interpret them; files are opened read-only.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.choices import Strength
from ...schemas.errors import BadInput
from ...schemas.open_files import open_regular
from .tensor_digests import DIGEST_BYTES, Layout, TensorStream, groups_of, kind_of

if TYPE_CHECKING:
    from .digest_cache import DigestCache


Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while files are hashed; may be called from several threads."""


class Stopped(Exception):
    """Raised inside a reading whose result nobody waits for any more."""


@dataclass(frozen=True)
class ReadOptions:
    """How weights are to be read."""

    strength: Strength = "verified"
    fast: bool = False
    """Leave out the SHA-256 of weights files; their tensors are read all the same."""
    progress: Progress | None = None
    stop: threading.Event | None = None
    """When set, reading ends within one block."""


BLOCK_BYTES = 1024 * 1024
"""Small enough to stay in the processor's cache between the digests that are fed with it."""
MAX_WORKERS = 8
"""More readers than this wait for the disk; hashing itself runs without the interpreter lock."""
CACHE_FROM_BYTES = 1024 * 1024
"""Smaller files are read in less time than a look-up is worth."""


@dataclass(frozen=True)
class Job:
    """What is wanted of one file."""

    path: Path
    layout: Layout | None = None
    """Where its tensors lie; None: it is read as one piece."""
    sha256: bool = True


@dataclass(frozen=True)
class Reading:
    """What one file turned out to hold."""

    sha256: str | None
    """None where it was not asked for."""
    contents: tuple[bytes, ...]
    """Digests of its tensors' bytes, in the order of the layout (see `tensors`)."""
    sampled: tuple[bytes, ...]
    """The same of the windows of each tensor (see `tensors.py`)."""
    size: int
    cached: bool
    """The digests were computed by an earlier run over this very state of the file."""


def read_files(
    jobs: Sequence[Job],
    progress: Progress | None = None,
    cache: DigestCache | None = None,
    stop: threading.Event | None = None,
) -> dict[Path, Reading]:
    """Digests of every file, largest first, up to eight at a time. A byte is read at most once.

    Args:
        jobs: Files, each once; symlinks are followed.
        progress: Called with bytes done and bytes in all (cached ones count in neither).
        cache: Findings of earlier runs; every finished piece is kept in it at once.
        stop: When set, reading ends within one block.

    Raises:
        BadInput: A file cannot be read, or changed while it was read.
        Stopped: `stop` was set.
    """
    stop = stop or threading.Event()
    plans = [_Plan.of(job, cache) for job in jobs]
    pieces = sorted((piece for plan in plans for piece in plan.pieces), key=lambda piece: -piece.size)
    meter = _Meter(sum(piece.size for piece in pieces), progress)
    with ThreadPoolExecutor(min(MAX_WORKERS, usable_cores()), thread_name_prefix="rip-hash") as pool:
        futures = [pool.submit(piece.read, meter, stop) for piece in pieces]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()  # without it, leaving the pool would wait for all the other files
            raise
    return {plan.job.path: plan.reading() for plan in plans}


def sample_tensors(
    layouts: dict[Path, Layout], stop: threading.Event | None = None
) -> dict[Path, tuple[bytes, ...]]:
    """The digests over the windows of each tensor, reading these windows only. Errors as for `read_files`."""
    stop = stop or threading.Event()

    def sample(path: Path) -> tuple[bytes, ...]:
        layout = layouts[path]
        stream = TensorStream(layout.tensors, windows=True)
        with _reading(path, layout.state) as file:
            for begin, end in stream.ranges():
                for offset, block in _blocks(file, path, begin, end, stop):
                    stream.feed(offset, block)
        return tuple(stream.digests())

    with ThreadPoolExecutor(min(MAX_WORKERS, usable_cores()), thread_name_prefix="rip-hash") as pool:
        futures = {path: pool.submit(sample, path) for path in layouts}
        try:
            return {path: future.result() for path, future in futures.items()}
        except BaseException:
            stop.set()
            raise


def usable_cores() -> int:
    """The cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


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


@dataclass
class _Plan:
    """One file: what is known of it, and the pieces that are still to be read."""

    job: Job
    state: os.stat_result
    groups: list[slice]
    """Of the layout's tensors."""
    cache: DigestCache | None
    known: dict[str, str] = field(default_factory=dict)
    """Kind of finding → finding, in hex."""
    pieces: list[_Piece] = field(default_factory=list)
    cached: bool = True

    @classmethod
    def of(cls, job: Job, cache: DigestCache | None) -> _Plan:
        with report_unreadable(job.path):
            state = job.path.stat()
        if job.layout is not None and _identity(job.layout.state) != _identity(state):
            raise _changed(job.path)
        tensors = job.layout.tensors if job.layout is not None else ()
        plan = cls(job, state, list(groups_of(tensors)), cache)
        for kind, length in plan._wanted():
            known = cache.get(state, kind) if cache is not None else None
            if known is not None and len(known) == length:
                plan.known[kind] = known
        missing = [group for group in plan.groups if kind_of(group) not in plan.known]
        if job.sha256 and "sha256" not in plan.known:
            plan.pieces = [_Piece(plan, 0, state.st_size, missing, sha256=True)]
        else:
            plan.pieces = [
                _Piece(plan, tensors[group][0].begin, tensors[group][-1].end, [group], sha256=False)
                for group in missing
            ]
        plan.cached = not plan.pieces
        return plan

    def _wanted(self) -> Iterator[tuple[str, int]]:
        if self.job.sha256:
            yield "sha256", 64
        for group in self.groups:
            yield kind_of(group), (group.stop - group.start) * 4 * DIGEST_BYTES

    def learn(self, kind: str, found: str) -> None:
        self.known[kind] = found
        if self.cache is not None and self.state.st_size >= CACHE_FROM_BYTES:
            self.cache.put(self.state, kind, found)

    def reading(self) -> Reading:
        contents: list[bytes] = []
        sampled: list[bytes] = []
        for group in self.groups:
            found = bytes.fromhex(self.known[kind_of(group)])
            digests = [found[at : at + DIGEST_BYTES] for at in range(0, len(found), DIGEST_BYTES)]
            contents += digests[: len(digests) // 2]
            sampled += digests[len(digests) // 2 :]
        return Reading(
            self.known.get("sha256"), tuple(contents), tuple(sampled), self.state.st_size, self.cached
        )


@dataclass
class _Piece:
    """A range of a file that one thread reads in one go."""

    plan: _Plan
    begin: int
    end: int
    groups: list[slice]
    sha256: bool

    @property
    def size(self) -> int:
        return self.end - self.begin

    def read(self, meter: _Meter, stop: threading.Event) -> None:
        path, layout = self.plan.job.path, self.plan.job.layout
        digest = hashlib.sha256() if self.sha256 else None
        tensors = [tensor for group in self.groups for tensor in layout.tensors[group]] if layout else []
        streams = [TensorStream(tensors), TensorStream(tensors, windows=True)] if tensors else []
        with _reading(path, self.plan.state) as file:
            for offset, block in _blocks(file, path, self.begin, self.end, stop):
                if digest is not None:
                    digest.update(block)
                for stream in streams:
                    stream.feed(offset, block)
                meter.add(len(block))
        if digest is not None:
            self.plan.learn("sha256", digest.hexdigest())
        contents, sampled = [stream.digests() for stream in streams] if streams else ([], [])
        at = 0
        for group in self.groups:
            to = at + group.stop - group.start
            self.plan.learn(kind_of(group), b"".join([*contents[at:to], *sampled[at:to]]).hex())
            at = to


@contextmanager
def _reading(path: Path, state: os.stat_result) -> Iterator[FileIO]:
    """A file open for reading that is, before and after, in the state that was planned for."""
    with report_unreadable(path):
        file = open_regular(path)
    with file:
        _check_state(file, path, state)
        yield file
        _check_state(file, path, state)


def _check_state(file: FileIO, path: Path, state: os.stat_result) -> None:
    if _identity(os.fstat(file.fileno())) != _identity(state):
        raise _changed(path)


def _blocks(
    file: FileIO, path: Path, begin: int, end: int, stop: threading.Event
) -> Iterator[tuple[int, memoryview]]:
    """(offset, bytes) from `begin` to `end`; a block is valid until the next one is asked for."""
    buffer = memoryview(bytearray(min(BLOCK_BYTES, end - begin)))
    offset = begin
    with report_unreadable(path):
        file.seek(begin)
        while offset < end:
            if stop.is_set():
                raise Stopped
            count = file.readinto(buffer[: end - offset])
            if not count:
                raise _changed(path)
            yield offset, buffer[:count]
            offset += count


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _changed(path: Path) -> BadInput:
    return BadInput(f"{path} changed while it was read", "wait until nothing writes to it, then try again")


@contextmanager
def report_unreadable(path: Path) -> Iterator[None]:
    """Turns what the system says while `path` is read into an error for people.

    Raises:
        BadInput: The file cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{path} could not be read: {error.strerror}", "check that the file is there and readable"
        ) from None
