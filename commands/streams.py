"""Standard output and error whose reader may go away (`| head`) without changing what a command does."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO


class _Patient:
    """A text stream that drops what nobody reads any more.

    The command goes on to its end: files are written, and the exit code stays the verdict. Ending at the
    first unread line would turn "the claim does not hold" into whatever a closed pipe means.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def outlive_readers() -> None:
    """From now on, closed pipes are no errors, and neither are streams that were closed from the start."""
    for name in ("stdout", "stderr"):
        # Python has None where the shell closed the stream (`>&-`).
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        setattr(sys, name, _Patient(stream))
