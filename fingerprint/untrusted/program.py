"""Running another program with a limit on its time and on its output: it knows nothing of what it runs."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

MAX_OUTPUT = 8 << 20
"""Bytes that are read of any program; a node of 16 GPUs prints some 100 kB."""
_BLOCK = 1 << 16
_POLL_S = 0.1
"""How often the stop signal is checked while a program prints nothing."""


@dataclass(frozen=True)
class Failure:
    """Why the output of a program may be incomplete."""

    reason: str
    timed_out: bool = False
    signal: int | None = None
    """The signal that ended it."""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Output:
    """What a program printed, whole or until it was ended."""

    text: str
    failure: Failure | None
    """None: the program ended well."""


class Running:
    """A running program. It reads nothing, and what it prints on standard error is dropped.

    A program that cannot be killed at once (its driver hangs in the kernel) is left behind: nobody waits.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: Failure | None = None
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=None if environ is None else dict(environ),
            )
        except (OSError, ValueError) as error:
            self._failure = Failure(f"it could not be started: {error}")

    def result(self, deadline: float, stop: threading.Event) -> Output:
        """Wait for the end of the program, but not beyond `deadline` (of `time.monotonic`) or `stop`."""
        if self._process is None:
            return Output("", self._failure)
        read, failure = self._read(self._process, deadline, stop)
        if failure is None:
            failure = self._ending(self._process, deadline)
        else:
            self._process.kill()
        self._close(self._process)
        return Output(read.decode("utf-8", errors="replace"), failure)

    @staticmethod
    def _read(
        process: subprocess.Popen[bytes], deadline: float, stop: threading.Event
    ) -> tuple[bytes, Failure | None]:
        assert process.stdout is not None
        source, read = process.stdout.fileno(), bytearray()
        while len(read) < MAX_OUTPUT:
            left = deadline - time.monotonic()
            # What is printed already counts also after the deadline: it may have been read late.
            if select.select([source], [], [], max(0.0, min(left, _POLL_S)))[0]:
                block = os.read(source, _BLOCK)
                if not block:
                    return bytes(read), None
                read += block
            elif left <= 0:
                return bytes(read), Failure("no answer in time", timed_out=True)
            elif stop.is_set():
                return bytes(read), Failure("it was given up")
        return bytes(read), Failure(f"it printed more than {MAX_OUTPUT >> 20} MiB")

    @staticmethod
    def _ending(process: subprocess.Popen[bytes], deadline: float) -> Failure | None:
        try:
            code = process.wait(max(_POLL_S, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return Failure("no end in time", timed_out=True)
        if code == 0:
            return None
        if code < 0:
            return Failure(f"it was ended by signal {-code}", signal=-code)
        return Failure(f"it ended with exit code {code}")

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None:
            process.stdout.close()
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            process.returncode = -9  # given up: without a code, Popen would warn about it and wait later


def run(
    command: Sequence[str], limit_s: float, stop: threading.Event, environ: Mapping[str, str] | None = None
) -> Output:
    """Run a program to its end, at most for `limit_s` seconds."""
    return Running(command, environ).result(time.monotonic() + limit_s, stop)
