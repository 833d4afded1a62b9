"""Workers that feed inputs to readers, within limits, and the parent that survives what kills them."""

from __future__ import annotations

import math
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fuzz.kinds import Kind, inputs
from rip.replay.engines.http.server_process import end_with_parent
from rip.schemas.errors import RipError

MOST_SECONDS = 2.0
"""Of computing, for one input."""
DEADLY_SECONDS = 10.0
"""After them the kernel ends a worker that a C library keeps from ending the input itself."""
MOST_MEMORY = 1 << 30
"""Beyond what a worker has when it begins."""
KEPT_PER_FAULT = 3
"""Inputs that are kept of findings with one and the same place."""
_INPUTS, _REFUSED, _ACCEPTED, _FINDINGS, _NEXT = range(5)


@dataclass(frozen=True)
class Task:
    """The inputs of one kind that one worker feeds: every `of`-th number from `first` below `stop`."""

    kind: Kind
    first: int
    stop: int
    of: int


@dataclass(frozen=True)
class Feeding:
    """What all workers of a run share.

    Attributes:
        tasks: In the order in which they are taken.
        tallies: Their counts.
        seed: Of every input, with its kind and number.
        found: Where findings are kept.
        until: The moment of `time.perf_counter` at which the feeding ends.
    """

    tasks: Sequence[Task]
    tallies: Tallies
    seed: int
    found: Path
    until: float = math.inf


@dataclass(frozen=True)
class Row:
    """What a kind came to."""

    kind: str
    inputs: int
    refused: int
    accepted: int
    findings: int
    slowest: float
    """Seconds of computing."""


class TooSlow(BaseException):
    """An input took more than `MOST_SECONDS`."""


class Tallies:
    """Counts of every task in memory that parent and workers share, so that no end of a worker loses any."""

    def __init__(self, tasks: int) -> None:
        context = get_context("fork")
        self.counts = context.RawArray("q", 5 * tasks)
        self.slowest = context.RawArray("d", tasks)

    def add(self, task: int, what: int) -> None:
        self.counts[5 * task + what] += 1

    def get(self, task: int, what: int) -> int:
        return int(self.counts[5 * task + what])

    def set_next(self, task: int, number: int) -> None:
        self.counts[5 * task + _NEXT] = number


def feed(number: int, feeding: Feeding) -> None:
    """Feed a task's inputs from where it stands to its end; each is accepted, refused, or a finding."""
    task, tallies, found = feeding.tasks[number], feeding.tallies, feeding.found
    start = max(task.first, tallies.get(number, _NEXT))
    folder = Path(tempfile.mkdtemp(dir=found, prefix="."))
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    try:
        for at, content in inputs(task.kind, feeding.seed, range(start, task.stop, task.of), folder):
            if time.perf_counter() > feeding.until:
                return
            tallies.set_next(number, at + task.of)
            began = time.process_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
            signal.setitimer(signal.ITIMER_PROF, DEADLY_SECONDS)
            try:
                task.kind.read(content, folder)
                outcome = _ACCEPTED
            except RipError:
                outcome = _REFUSED
            except (Exception, TooSlow):
                outcome = _FINDINGS
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                keep(found, task.kind, at, content, traceback.format_exc())
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                signal.setitimer(signal.ITIMER_PROF, 0)
            tallies.add(number, outcome)
            tallies.add(number, _INPUTS)
            took = time.process_time() - began
            tallies.slowest[number] = max(tallies.slowest[number], took)
    finally:
        signal.signal(signal.SIGVTALRM, before)


def keep(found: Path, kind: Kind, number: int, content: bytes, why: str) -> None:
    """Write a finding's input and traceback beside each other, a few of each place in the code."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    places = [line for line in lines if line.startswith('File "')]
    place = (places[-1:] or [""])[0] + lines[-1].split(":")[0]
    name = f"{kind.name.split(',')[0].replace(' ', '-')}-{hash_of(place)}"
    if len(list(found.glob(f"{name}-*.input"))) < KEPT_PER_FAULT:
        (found / f"{name}-{number}.input").write_bytes(content)
        (found / f"{name}-{number}.txt").write_text(why, "utf-8", "backslashreplace")


def hash_of(text: str) -> str:
    """A short name for a text."""
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]


def run(tasks: Sequence[Task], workers: int, seed: int, found: Path, until: float = math.inf) -> list[Row]:
    """Feed all tasks by several processes, `until` this moment of `time.perf_counter` at most.

    A worker that dies is a finding at its input, and another goes on.
    """
    context = get_context("fork")
    feeding = Feeding(tasks, Tallies(len(tasks)), seed, found, until)
    turn = context.Value("i", 0)
    running: dict[Any, Any] = {}
    doing = context.RawArray("i", [-1] * workers)
    todo: list[list[int]] = [[] for _ in range(workers)]
    while True:
        for worker in range(workers):
            process = running.get(worker)
            if process is not None and process.is_alive():
                continue
            if process is not None and process.exitcode == 0:
                continue
            if process is not None:
                _take_death(doing[worker], process.exitcode, feeding)
                todo[worker] = [doing[worker]]
            arguments = (worker, list(todo[worker]), turn, doing, feeding)
            running[worker] = context.Process(target=_work, args=arguments, daemon=True)
            running[worker].start()
        if all(not process.is_alive() and process.exitcode == 0 for process in running.values()):
            return rows(tasks, feeding.tallies)
        time.sleep(0.05)


def rows(tasks: Sequence[Task], tallies: Tallies) -> list[Row]:
    """What each kind came to, in the order of the tasks."""
    found: dict[str, Row] = {}
    for number, task in enumerate(tasks):
        name = task.kind.name
        old = found.get(name, Row(name, 0, 0, 0, 0, 0.0))
        counts = (tallies.get(number, what) for what in (_INPUTS, _REFUSED, _ACCEPTED, _FINDINGS))
        now = (
            a + b for a, b in zip((old.inputs, old.refused, old.accepted, old.findings), counts, strict=True)
        )
        found[name] = Row(name, *now, max(old.slowest, tallies.slowest[number]))
    return list(found.values())


def _work(
    worker: int,
    todo: list[int],
    turn: Any,
    doing: Any,
    feeding: Feeding,
) -> None:
    """One worker: what it left unfinished when it died, then the next task that nobody took."""
    if end := end_with_parent():
        end()
    with open("/proc/self/statm") as about:
        pages = int(about.read().split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        number = todo.pop() if todo else -1
        if number < 0:
            with turn.get_lock():
                number, turn.value = turn.value, turn.value + 1
        if number >= len(feeding.tasks):
            return
        doing[worker] = number
        feed(number, feeding)


def _take_death(number: int, exit_code: int, feeding: Feeding) -> None:
    """Keep the input at which a worker ended."""
    task, tallies, found = feeding.tasks[number], feeding.tallies, feeding.found
    at = tallies.get(number, _NEXT) - task.of
    tallies.add(number, _INPUTS)
    tallies.add(number, _FINDINGS)
    for _, content in inputs(task.kind, feeding.seed, range(at, at + 1), found):
        keep(found, task.kind, at, content, f"the worker ended: exit code {exit_code}")


def _too_slow(number: int, frame: FrameType | None) -> NoReturn:
    raise TooSlow
