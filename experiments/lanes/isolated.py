"""One rip command in a process of its own: no thread, precision or environment setting reaches the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...schemas.errors import VARIABLE, ErrorReport, read_report
from ...schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_INTERRUPTED, EXIT_NOTHING_COMPARED
from ...schemas.files import write_private

_STOP_S = 30.0
"""Seconds that an interrupted run has to keep its rows and to stop its server."""
_DONE = (EXIT_HOLDS, EXIT_FAILS, EXIT_NOTHING_COMPARED)
"""The work was done; whether a recorded answer was reproduced is another matter."""


def isolated_command(arguments: Sequence[str]) -> list[str]:
    """Program and arguments. `-P`: nothing in the current folder can stand in for a package."""
    return [sys.executable, "-P", "-m", "rip", *arguments]


def run_isolated(
    arguments: Sequence[str], log: Path, folder: Path | None = None, unset: Sequence[str] = ()
) -> ErrorReport | None:
    """Run a command to its end.

    Args:
        arguments: What follows `rip`.
        log: Where its output goes.
        folder: Where it runs. [default: here]
        unset: Environment variables that it does not get.

    Returns:
        The error that ended it; None: it did its work.

    Raises:
        KeyboardInterrupt: The user stopped it.
        OutputFailed: The log cannot be written.
    """
    from ...replay.engines.http.server_process import end_with_parent

    kept = {name: value for name, value in os.environ.items() if name not in unset}
    # Not straight into the log: a run that finds its disk full must still be able to report it.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as report:
        process = subprocess.Popen(
            isolated_command(arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**kept, VARIABLE: str(report.fileno())},
            cwd=folder,
            pass_fds=(report.fileno(),),
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
            text = output.read().decode("utf-8", "replace")
            write_private(log, text)
        report.seek(0)
        content = report.read()
    if code in _DONE:
        return None
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return read_report(content) or _died(code, text)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let a run keep what it has and stop its server."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _died(code: int, output: str) -> ErrorReport:
    """The report of a process that could write none."""
    if code < 0:
        message = f"ended by {signal.Signals(-code).name}"
    else:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        message = lines[-1] if lines else f"ended with exit code {code}"
    return ErrorReport("died", message, "", disk_full=False)
