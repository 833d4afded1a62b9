"""Running a plan: every launch is a `rip replay` in a process of its own, and nothing finished runs twice."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...schemas.choices import CaptureLevel, Mode
from ...schemas.command_line import ReplayCommand
from ...schemas.errors import ErrorReport, OutputFailed
from ...schemas.matrix import Cell, Run
from ...schemas.plan import Plan
from ..lanes.isolated import run_isolated
from ..progress import Progress
from .cells import Configuration, PlannedCell
from .inputs import neighbour_file, request_file
from .store import Store

if TYPE_CHECKING:
    from ...schemas.trace import TraceHeader


@dataclass(frozen=True)
class Launch:
    """One run that is to be made.

    Attributes:
        number: From 1: launches of one configuration.
        arguments: What follows `rip`, output included.
        shown: The same without output and without values that may be secrets.
        trace: Where it writes.
    """

    configuration: Configuration
    number: int
    arguments: Sequence[str]
    shown: Sequence[str]
    trace: Path
    log: Path

    @property
    def key(self) -> tuple[str, int]:
        """What the ledger calls it."""
        return self.configuration.key, self.number


@dataclass(frozen=True)
class Ended:
    """A launch that has ended.

    Attributes:
        error: None: it did its work.
        attempt: Above 1: its machine was lost before.
    """

    launch: Launch
    error: ErrorReport | None
    started: datetime
    seconds: float
    host: str
    node: str | None = None
    attempt: int = 1


class Executor(Protocol):
    """Where launches run."""

    def run(self, launches: Sequence[Launch], progress: Progress) -> Iterator[Ended]:
        """Run them, and give each as it ends; in their order where one runs at a time."""


class LocalExecutor:
    """One launch after the other, on this machine."""

    def run(self, launches: Sequence[Launch], progress: Progress) -> Iterator[Ended]:
        """Run them in their order.

        Raises:
            KeyboardInterrupt: The user stopped it.
        """
        for launch in launches:
            started, clock = datetime.now(UTC), time.perf_counter()
            error = run_isolated(launch.arguments, launch.log)
            yield Ended(launch, error, started, time.perf_counter() - clock, platform.node())


def wanted_launches(cells: Sequence[PlannedCell]) -> list[tuple[int, Configuration]]:
    """(number, configuration) of all launches: A1 B1 of every cell, then A2 B2; shared ones once."""
    found: dict[tuple[str, int], tuple[int, Configuration]] = {}
    for number in range(1, max(cell.rounds for cell in cells) + 1):
        for cell in cells:
            for launch, side in cell.runs():
                if launch == number:
                    found.setdefault((side.key, launch), (launch, side))
    return list(found.values())


def execute(
    plan: Plan,
    cells: Sequence[PlannedCell],
    store: Store,
    frozen: Path,
    executor: Executor,
    progress: Progress,
    compare: Callable[[PlannedCell, Store], Cell],
) -> None:
    """Run what is not run yet, and compare each cell as soon as its runs are there.

    Args:
        frozen: The plan's requests.
        compare: Makes a finished cell.

    Raises:
        OutputFailed: There is no room for a trace.
        KeyboardInterrupt: The user stopped it; what is finished is kept.
    """
    waiting = [cell for cell in cells if cell.id not in store.cells]
    launches = [
        _launch(plan, store, frozen, number, side)
        for number, side in wanted_launches(waiting or cells)
        if waiting and (side.key, number) not in store.runs
    ]
    known = {launch.key: index for index, launch in enumerate(launches, start=1)}
    waiting = _compare_ready(waiting, store, progress, compare)
    if launches:
        progress.stage(_name(launches[0], 1, len(launches)), 0, len(launches))
    started = time.perf_counter()
    for done, ended in enumerate(executor.run(launches, progress), start=1):
        store.add(_record(ended, store))
        waiting = _compare_ready(waiting, store, progress, compare)
        if done < len(launches):
            left = (time.perf_counter() - started) / done * (len(launches) - done)
            following = _name(launches[known[ended.launch.key] % len(launches)], done + 1, len(launches))
            progress.stage(following, done, len(launches), f"about {left / 60:.0f} min left")


def _compare_ready(
    waiting: Sequence[PlannedCell],
    store: Store,
    progress: Progress,
    compare: Callable[[PlannedCell, Store], Cell],
) -> list[PlannedCell]:
    """Compare the cells whose runs have all ended.

    Returns:
        The others.
    """
    left = []
    for cell in waiting:
        if all((side.key, number) in store.runs for number, side in cell.runs()):
            store.add(compare(cell, store))
        else:
            left.append(cell)
    return left


def _name(launch: Launch, number: int, total: int) -> str:
    return f"run {number} of {total}: lane {launch.configuration.lane}, launch {launch.number}"


def _launch(plan: Plan, store: Store, frozen: Path, number: int, side: Configuration) -> Launch:
    key = side.key
    trace = store.unfinished(key, number)
    command = replay_command(side, frozen, plan.mode, plan.capture)
    shown = replace(command, settings=_without_secrets(command.settings))
    return Launch(
        side,
        number,
        replace(command, out=str(trace), force=True).arguments(),
        shown.arguments(),
        trace,
        store.log(key, number),
    )


def replay_command(
    side: Configuration, frozen: Path, mode: Mode = "free", capture: CaptureLevel | None = None
) -> ReplayCommand:
    """The `rip replay` of a configuration, without output."""
    lane = side.request
    neighbours = lane.neighbours if side.beside is None else str(neighbour_file(side.beside, frozen))
    return ReplayCommand(
        str(request_file(side, frozen)),
        lane=side.lane,
        model=lane.model,
        engine=side.engine,
        url=lane.url,
        api_key_env=lane.api_key_env,
        python=lane.python,
        tap=None if lane.tap is None else str(lane.tap),
        mode=mode,
        neighbours=neighbours,
        repeat=side.repeat,
        settings=[(name, value) for name, _, value in (pair.partition("=") for pair in lane.settings)],
        capture=capture,
        # A plan may vary the model: that it differs from the envelopes' is then part of the experiment.
        allow_drift=True,
    )


def _without_secrets(settings: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    from ...schemas.lane import NOT_KEPT, may_be_secret

    return [(name, NOT_KEPT if may_be_secret(name) else value) for name, value in settings]


def _record(ended: Ended, store: Store) -> Run:
    """The ledger's line of a launch; its trace gets its name.

    Raises:
        OutputFailed: There was no room for it.
    """
    launch, error = ended.launch, ended.error
    if error is not None and error.disk_full:
        raise OutputFailed(error.message, "free space and run the same command again: finished runs are kept")
    facts: dict[str, object] = {}
    if error is None and launch.trace.is_file():
        header, facts["header"] = _header(launch.trace)
        if header.fingerprint is not None:
            facts["environment"] = header.fingerprint.root_digest
            facts["claimed"] = header.fingerprint.is_claimed
        facts["trace"] = store.keep_trace(launch.trace)
    elif error is None:
        facts["error"] = "it ended without a trace"
    else:
        facts["error"] = error.message
        launch.trace.unlink(missing_ok=True)
    return Run(
        key=launch.configuration.key,
        launch=launch.number,
        attempt=ended.attempt,
        command=list(launch.shown),
        started=ended.started.isoformat(timespec="seconds"),
        seconds=round(ended.seconds, 2),
        host=ended.host,
        node=ended.node,
        **facts,  # type: ignore[arg-type]
    )


def _header(trace: Path) -> tuple[TraceHeader, str]:
    from ...diverge.reading.load import open_trace

    opened = open_trace(trace)
    return opened.header, opened.header_sha256
