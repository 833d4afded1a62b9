"""One writer an output: a lock beside the file that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Self

from .errors import OutputFailed
from .trace import parts_folder


class OutputLock:
    """The right to write `path`, its parts included, until `release` or the end of the process.

    The file `.NAME.lock` carries it. A dead process leaves that file behind, but not the lock on it. filelock
    would replace `_lock_file` alone (it never removes the file), and takes a tenth of a second to import.

    Args:
        path: Final name of the trace.
        force: Whether parts that an unfinished run left may be overwritten.

    Raises:
        OutputFailed: Another process writes `path`; parts are there and `force` is off; or the lock cannot
            be made.
    """

    def __init__(self, path: Path, force: bool) -> None:
        self._file = path.with_name(f".{path.name}.lock")
        try:
            self._descriptor: int | None = _lock_file(self._file)
        except BlockingIOError:
            raise OutputFailed(
                f"another rip is writing {path}", "choose another name, or wait until that run has ended"
            ) from None
        except OSError as error:
            raise OutputFailed(
                f"{path} could not be written: {self._file}: {error.strerror or error}",
                "write the trace to another folder",
            ) from None
        parts = parts_folder(path)
        if parts.exists() and not force:
            self.release()
            raise OutputFailed(
                f"{parts} holds what an unfinished run recorded",
                "choose another name, or overwrite it with --force",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.release()

    def release(self) -> None:
        """Give the right up. May be called more than once."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # the folder may be gone
                self._file.unlink(missing_ok=True)  # while it is still locked: the next one sees the change
            os.close(self._descriptor)
            self._descriptor = None


def _lock_file(file: Path) -> int:
    """A descriptor of `file` that holds its lock. BlockingIOError: another process holds it."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
        except FileNotFoundError:
            pass  # the holder before removed it between our two calls
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
