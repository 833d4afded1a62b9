"""Opening files that anybody may have made: no waiting for a pipe that nobody writes, no devices."""

from __future__ import annotations

import errno
import os
import select
import stat
from io import FileIO
from pathlib import Path

PIPE_WAIT_S = 10.0
"""How long a pipe may stay silent before the first byte (`<(zcat requests.jsonl.gz)` takes a moment)."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Without O_NONBLOCK, opening a pipe waits for a writer; on a regular file the flag has no effect."""


def open_regular(path: Path) -> FileIO:
    """Open a file for reading, unbuffered; symlinks are followed.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, _FLAGS)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise _wrong_kind(path, kind)
    return FileIO(descriptor, "rb")


def open_stream(path: Path) -> FileIO:
    """As `open_regular`, or a pipe into which somebody writes.

    Raises:
        OSError: It cannot be opened, is neither, or the pipe stays silent for `PIPE_WAIT_S`.
    """
    descriptor = os.open(path, _FLAGS)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind):
        if select.select([descriptor], [], [], PIPE_WAIT_S)[0]:
            os.set_blocking(descriptor, True)
            return FileIO(descriptor, "rb")
        os.close(descriptor)
        raise OSError(errno.EPIPE, "a pipe into which no program writes", str(path))
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise _wrong_kind(path, kind)
    return FileIO(descriptor, "rb")


def read_text(path: Path) -> str:
    """The text of a file or pipe in UTF-8.

    Raises:
        OSError: As `open_stream`.
        UnicodeDecodeError: It is none.
    """
    with open_stream(path) as file:
        return file.readall().decode("utf-8")


def check_regular(path: Path) -> None:
    """For a reader that opens the file itself.

    Raises:
        OSError: There is none, or it is not a regular file.
    """
    kind = os.stat(path).st_mode
    if not stat.S_ISREG(kind):
        raise _wrong_kind(path, kind)


def _wrong_kind(path: Path, kind: int) -> OSError:
    if stat.S_ISDIR(kind):
        return IsADirectoryError(errno.EISDIR, "a directory, not a file", str(path))
    return OSError(errno.EINVAL, "not a regular file", str(path))
