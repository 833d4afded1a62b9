"""Running the configurations of a search: each one `rip replay` in a process of its own, its trace kept.

A process a run is what makes runs independent: nothing that one of them set (threads, precision, environment)
reaches the next.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...commands.exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_INTERRUPTED, EXIT_NOTHING_COMPARED
from ...schemas.errors import NothingCompared, OutputFailed
from ...schemas.files import write_private
from ...schemas.narrow import NarrowObservation
from .mixtures import Command, Mixture
from .resume import RESULT

if TYPE_CHECKING:
    from ...schemas.narrow import NarrowLevel
    from .ledger import Ledger
    from .search import On

_COMPARING = ".comparing"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Why a run fails that says nothing about its settings."""
_STOP_S = 30.0
"""Seconds that an interrupted run has to keep its rows and to stop its server."""


class Runs:
    """The run function of a search: makes a run, or remembers it.

    Args:
        mixture: The two lanes.
        options: Words of every `rip replay`: requests, capture, and so on.
        folder: Where traces, logs and the result go.
        ledger: What was run already; every new run goes into it, and it is written after every run.
        level: What counts as a divergence.
        done: Told about every new run that has ended: configuration, run, and what came of it.
    """

    def __init__(
        self,
        mixture: Mixture,
        options: list[str],
        folder: Path,
        ledger: Ledger,
        level: NarrowLevel,
        done: Callable[[On, int, NarrowObservation], None],
    ) -> None:
        self._mixture, self._options, self._folder = mixture, options, folder
        self._ledger, self._level, self._done = ledger, level, done

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
            self._done(on, index, observation)
        return observation.diverges.get(self._level)

    def log(self, on: On, index: int) -> Path:
        """Where a run's messages go."""
        return self._ledger.trace(on, index).with_suffix(".log")

    def _make(self, on: On, index: int) -> NarrowObservation:
        trace, log, started = self._ledger.trace(on, index), self.log(on, index), time.perf_counter()
        rest = [*self._options, "-o", str(trace), "--force", "--lane", self._ledger.name(on)]
        trace.unlink(missing_ok=True)
        why = _run(self._mixture.run(on, rest), log)
        seconds = round(time.perf_counter() - started, 1)
        if why is not None and any(os.strerror(number) in why for number in _NO_ROOM):
            raise OutputFailed(why, "free space and give the same command again: what was run is kept")
        if why is not None or not trace.is_file():
            return NarrowObservation(why=why or "it left no trace", seconds=seconds)
        reference = self._ledger.trace(frozenset(), 0)
        if trace == reference:
            same = {"token": False, "bitwise": False}
            return NarrowObservation(trace=trace.name, diverges=same, seconds=seconds)  # type: ignore[arg-type]
        return self._compare(reference, trace, seconds)

    def _compare(self, reference: Path, trace: Path, seconds: float) -> NarrowObservation:
        from ...diverge.compare import diverge
        from .judge import judge

        result = self._folder / _COMPARING
        try:
            verdict = diverge(reference, trace, result, force=True)
        except NothingCompared as error:
            return NarrowObservation(trace=trace.name, why=error.message, seconds=seconds)
        finally:
            shutil.rmtree(result, ignore_errors=True)
        diverges, where = judge(verdict)
        return NarrowObservation(trace=trace.name, diverges=diverges, where=where, seconds=seconds)


def _run(command: Command, log: Path) -> str | None:
    """Run it to its end; why it could not do its work, or None."""
    from ...replay.engines.http.started import end_with_parent

    # Not straight into the log: a run that finds its disk full must still be able to say so.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command.process(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches it once, from here
            preexec_fn=end_with_parent(),
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            _stop(process)
            raise
        finally:
            if process.poll() is None:
                process.kill()
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
            write_private(log, said)
    # Whether the answer was the expected one, or could be compared with it at all, is no matter here.
    if code in (EXIT_HOLDS, EXIT_FAILS, EXIT_NOTHING_COMPARED):
        return None
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return _reason(code, said)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let a run keep what it has and stop its server."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _reason(code: int, said: str) -> str:
    """What a failed run said last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line.removeprefix("rip: ") for line in lines if line.startswith("rip: ")]
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return (told or lines or [f"ended with code {code}"])[-1]
