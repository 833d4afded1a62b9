"""Running the configurations of a search: each one `rip replay` in a process of its own, its trace kept.

A process a run is what makes runs independent: nothing that one of them set (threads, precision, environment)
reaches the next.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import NothingCompared, OutputFailed
from ...schemas.files import write_private
from ...schemas.narrow import NarrowObservation, RunFailure
from ..lanes.isolated import run_isolated
from .mixtures import Mixture, RunOptions
from .resume import RESULT

if TYPE_CHECKING:
    from ...schemas.narrow import NarrowLevel
    from .resume import Ledger
    from .search import On

_COMPARING = ".comparing"


class Runs:
    """The run function of a search: makes a run, or remembers it.

    Args:
        mixture: The two lanes.
        options: What all runs share.
        folder: Where traces, logs and the result go.
        ledger: The runs so far; every new run goes into it, and it is written after every run.
        level: What counts as a divergence.
        on_run: Called with every new run that has ended: configuration, number and result.
    """

    def __init__(
        self,
        mixture: Mixture,
        options: RunOptions,
        folder: Path,
        ledger: Ledger,
        level: NarrowLevel,
        on_run: Callable[[On, int, NarrowObservation], None],
    ) -> None:
        self._mixture, self._options, self._folder = mixture, options, folder
        self._ledger, self._level, self._on_run = ledger, level, on_run

    def __call__(self, on: On, index: int) -> bool | None:
        """Whether the configuration's run of that number diverges from the reference; None: it failed.

        Raises:
            KeyboardInterrupt: The user stopped it.
            OutputFailed: The result cannot be written, or a trace had no room.
        """
        observation = self._ledger.known(on, index)
        if observation is None:
            observation = self._make(on, index)
            self._ledger.add(on, observation)
            write_private(self._folder / RESULT, self._ledger.document().to_json())
            self._on_run(on, index, observation)
        return observation.diverges.get(self._level)

    def log(self, on: On, index: int) -> Path:
        """Where a run's messages go."""
        return self._ledger.trace(on, index).with_suffix(".log")

    def _make(self, on: On, index: int) -> NarrowObservation:
        trace, log, started = self._ledger.trace(on, index), self.log(on, index), time.perf_counter()
        command = self._mixture.command(on, self._options, str(trace))
        trace.unlink(missing_ok=True)
        error = run_isolated(replace(command, lane=self._ledger.name(on), force=True).arguments(), log)
        seconds = round(time.perf_counter() - started, 1)
        if error is not None and error.disk_full:
            raise OutputFailed(
                error.message, "free space and run the same command again: finished runs are kept"
            )
        if error is not None or not trace.is_file():
            failure = RunFailure(kind="no trace")
            if error is not None:
                failure = RunFailure(kind="replay failed", message=error.message)
            return NarrowObservation(failure=failure, seconds=seconds)
        reference = self._ledger.trace(frozenset(), 0)
        if trace == reference:
            same = {"token": False, "bitwise": False}
            return NarrowObservation(trace=trace.name, diverges=same, seconds=seconds)  # type: ignore[arg-type]
        return self._compare(reference, trace, seconds)

    def _compare(self, reference: Path, trace: Path, seconds: float) -> NarrowObservation:
        from ...diverge.compare import diverge
        from .noise import judge

        result = self._folder / _COMPARING
        try:
            verdict = diverge(reference, trace, result, force=True)
        except NothingCompared as error:
            failure = RunFailure(kind="nothing compared", message=error.message)
            return NarrowObservation(trace=trace.name, failure=failure, seconds=seconds)
        finally:
            shutil.rmtree(result, ignore_errors=True)
        diverges, first = judge(verdict)
        return NarrowObservation(trace=trace.name, diverges=diverges, first=first, seconds=seconds)
