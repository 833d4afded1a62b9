"""Output files: checked before any work, private (mode 0600), whole under their name or not there at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Self

from .errors import OutputFailed
from .trace import parts_folder


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A private file to write to; it takes the name `path` when the context ends without an error.

    What a link leads to is replaced, not the link.

    Raises:
        OSError: As the disk says; nothing is left behind.
    """
    target = path.resolve()
    with _unfinished(target) as unfinished:
        yield unfinished
        unfinished.replace(target)


@contextmanager
def create_file(path: Path) -> Iterator[Path]:
    """As `replace_file`, but a file that has the name by then stays.

    Raises:
        FileExistsError: There is one.
        OSError: As the disk says; nothing is left behind.
    """
    target = path.resolve()
    with _unfinished(target) as unfinished:
        yield unfinished
        try:
            os.link(unfinished, target)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            unfinished.rename(target)


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """An empty private file beside `target`, removed when the context ends."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        # Created with its permissions before anything private is in it.
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def report_disk_errors(path: Path) -> Iterator[None]:
    """Turns what the disk says while `path` is written into an error for people.

    Raises:
        OutputFailed: The file cannot be written (disk full, permissions).
    """
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OutputFailed(
            f"{path} could not be written: {why}", "free space or choose another place"
        ) from None


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that may hold prompts: mode 0600, whole or not at all.

    Raises:
        OutputFailed: The file cannot be written (disk full, permissions).
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with report_disk_errors(path), replace_file(path) as unfinished:
        unfinished.write_bytes(data)


def append_private(path: Path, chunks: Iterable[bytes]) -> None:
    """Add lines to a file that may hold prompts, created with mode 0600: all of them, or nothing.

    Args:
        chunks: Lines with their ends, cut anywhere. A last line of the file that lacks its end gets it first.

    Raises:
        OutputFailed: The file cannot be written (disk full, permissions).
    """
    with (
        report_disk_errors(path),
        os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file,
    ):
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            chunks = chain([b"\n"], chunks)
        try:
            for chunk in chunks:
                if file.write(chunk) != len(chunk):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(end)
            if not end:
                path.unlink(missing_ok=True)
            raise


def check_output(path: Path, force: bool) -> None:
    """Check, before any work, that an output can be written.

    Raises:
        OutputFailed: It exists and `force` is off, or its folder does not exist or is not writable.
    """
    if path.exists() and not force:
        raise OutputFailed(f"{path} exists already", "choose another name, or overwrite it with --force")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OutputFailed(f"{folder} is not a folder", f"create it: mkdir -p {folder}")
    if not os.access(folder, os.W_OK):
        raise OutputFailed(f"{folder} is not writable", "choose another folder")


def check_output_file(path: Path, force: bool) -> None:
    """`check_output` for a file: a folder or a device is not replaced by force either.

    Raises:
        OutputFailed: As `check_output`, or something else than a file has that name.
    """
    if path.is_dir():
        raise OutputFailed(
            f"{path} exists and is not a file: it is a directory", "choose another name, for example in it"
        )
    if path.exists() and not path.is_file():
        raise OutputFailed(f"{path} exists and is not a file", "choose another name")
    check_output(path, force)


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
