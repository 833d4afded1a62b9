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

MOST_OUTPUT = 8 << 20
"""Bytes that are read of any program; a node of 16 GPUs says some 100 kB."""
_BLOCK = 1 << 16
_LOOK_EVERY_S = 0.1
"""How often the stop signal is looked at while a program says nothing."""


@dataclass(frozen=True)
class Output:
    """What a program printed, whole or until it was given up."""

    text: str
    trouble: str | None
    """Why the output may be incomplete, in words; None: the program ended well."""


class Running:
    """A program at work. It reads nothing, and what it prints on standard error is dropped.

    A program that cannot be killed at once (its driver hangs in the kernel) is left behind: nobody waits.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble: str | None = None
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=None if environ is None else dict(environ),
            )
        except (OSError, ValueError) as error:
            self._trouble = f"it could not be started: {error}"

    def result(self, deadline: float, stop: threading.Event) -> Output:
        """Wait for the end of the program, but not beyond `deadline` (of `time.monotonic`) or `stop`."""
        if self._process is None:
            return Output("", self._trouble)
        read, trouble = self._read(self._process, deadline, stop)
        if trouble is None:
            trouble = self._ending(self._process, deadline)
        else:
            self._process.kill()
        self._close(self._process)
        return Output(read.decode("utf-8", errors="replace"), trouble)

    @staticmethod
    def _read(
        process: subprocess.Popen[bytes], deadline: float, stop: threading.Event
    ) -> tuple[bytes, str | None]:
        assert process.stdout is not None
        source, read = process.stdout.fileno(), bytearray()
        while len(read) < MOST_OUTPUT:
            left = deadline - time.monotonic()
            # What is printed already counts also after the deadline: it may have been read late.
            if select.select([source], [], [], max(0.0, min(left, _LOOK_EVERY_S)))[0]:
                block = os.read(source, _BLOCK)
                if not block:
                    return bytes(read), None
                read += block
            elif left <= 0:
                return bytes(read), "no answer in time"
            elif stop.is_set():
                return bytes(read), "it was given up"
        return bytes(read), f"it printed more than {MOST_OUTPUT >> 20} MiB"

    @staticmethod
    def _ending(process: subprocess.Popen[bytes], deadline: float) -> str | None:
        try:
            code = process.wait(max(_LOOK_EVERY_S, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return "no end in time"
        if code == 0:
            return None
        return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None:
            process.stdout.close()
        try:
            process.wait(_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            process.returncode = -9  # given up: without a code, Popen would warn about it and wait later


def run(
    command: Sequence[str], limit_s: float, stop: threading.Event, environ: Mapping[str, str] | None = None
) -> Output:
    """Run a program to its end, at most for `limit_s` seconds."""
    return Running(command, environ).result(time.monotonic() + limit_s, stop)
