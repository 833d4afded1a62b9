"""Opening files of folders that anybody may have written: regular files only, so that nothing can block."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

SMALL_BYTES = 256 * 1024 * 1024
"""The largest tokenizer files have some tens of megabytes; what is beyond is not read into memory."""


def open_regular(path: Path) -> FileIO:
    """Open a file for reading, unbuffered; symlinks are followed, a pipe or a device is never waited for.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer; on a regular file the flag has no effect.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return FileIO(descriptor, "rb")


def read_small(path: Path) -> bytes:
    """All bytes of a configuration, template or tokenizer file.

    Raises:
        OSError: As `open_regular`, or larger than `SMALL_BYTES`.
    """
    with open_regular(path) as file:
        content = file.read(SMALL_BYTES + 1)  # a raw read may return less than there is
        while content and len(content) <= SMALL_BYTES and (more := file.read(SMALL_BYTES + 1 - len(content))):
            content += more
    if len(content) > SMALL_BYTES:
        raise OSError(errno.EFBIG, f"larger than {SMALL_BYTES >> 20} MiB", str(path))
    return content
