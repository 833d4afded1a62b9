"""The runs of experiments on a result: each one `rip replay` in a process of its own, its trace kept.

A trace is named after the command that wrote it: what was run once is not run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...diverge.present.format import duration
from ...schemas.errors import OutputFailed
from ...schemas.findings.experiments import Run, RunFailed
from ...schemas.jsontext import sha256_of
from ..lanes.isolated import run_isolated
from ..progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...schemas.findings.statement import Command
    from ...schemas.trace import TraceHeader

_SHOWN = 12
"""Characters of a digest in a name."""


@dataclass
class Runs:
    """What was run of the experiments of one result.

    Attributes:
        folder: Absolute; of the traces and logs.
        run_in: Absolute; where the commands run.
        header_b: Of B, whose runs tell how long one takes.
        digest_b: Of B's header: a trace of another comparison is no trace of this one.
        settings: `--set` texts that no trace holds, as they may be secret.
        again: Run again what was run before.
    """

    folder: Path
    run_in: Path
    header_b: TraceHeader
    digest_b: str
    progress: Progress
    settings: Sequence[str] = ()
    again: bool = False
    number: int = 0
    """Of the run that is made, for people."""
    expected: int = 1
    """Runs that are expected in all."""
    _done: dict[Path, RunFailed | None] = field(default_factory=dict)

    def trace(self, command: Command) -> Path:
        """Where the trace of a command is, or will be."""
        arguments = self._arguments(command, "")
        digest = sha256_of([arguments, (command.unset or []), self.digest_b])[:_SHOWN]
        named = [str(one.value) if one.of == "mode" else one.name for one in command.changes]
        words = "-".join(named[:2]) or "as-B"
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in words)
        return self.folder / f"{safe}-{digest}.parquet"

    def is_done(self, command: Command) -> bool:
        """It needs no run."""
        trace = self.trace(command)
        return trace.is_file() and (not self.again or trace in self._done)

    def make(self, command: Command, run: Run, label: str) -> Path | RunFailed:
        """Run a command, or take what it wrote before.

        Args:
            label: What is run, for people.

        Raises:
            KeyboardInterrupt: The user stopped it; what was run before is kept.
            OutputFailed: There is no room for the trace.
        """
        trace = self.trace(command)
        if self.is_done(command):
            return trace
        if (failed := self._done.get(trace)) is not None:
            return failed
        self.number += 1
        many = f"run {self.number} of {max(self.expected, self.number)}: " if self.expected > 1 else ""
        self.progress.stage(
            f"{many}{label}", detail=f"about {duration(self.header_b.seconds_again(command.repeats))}"
        )
        log = trace.with_suffix(".log")
        trace.unlink(missing_ok=True)
        arguments = [*self._arguments(command, str(trace)), "--force"]
        error = run_isolated(arguments, log, self.run_in, (command.unset or []))
        if error is not None and error.disk_full:
            raise OutputFailed(
                error.message, "free space and run the same command again: finished runs are kept"
            )
        if error is None and trace.is_file():
            self._done[trace] = None
            return trace
        failure = RunFailed(run=run, message="it wrote no trace" if error is None else error.message)
        self._done[trace] = failure
        return failure

    def _arguments(self, command: Command, out: str) -> list[str]:
        """What follows `rip`."""
        arguments = list(command.argv[1:])
        at = arguments.index("-o")
        settings = [word for pair in self.settings for word in ("--set", pair)]
        return [*arguments[:at], *settings, "-o", out, *arguments[at + 2 :]]
