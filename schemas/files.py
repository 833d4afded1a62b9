"""Output files: checked before any work, private (mode 0600), whole under their name or not there at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import OutputFailed


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


def append_private(path: Path, line: bytes) -> None:
    """Add a line to a file that may hold prompts, created with mode 0600: the whole line, or nothing.

    Args:
        line: With its end. A last line of the file that lacks its end gets it first.

    Raises:
        OutputFailed: The file cannot be written (disk full, permissions).
    """
    with (
        report_disk_errors(path),
        os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file,
    ):
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            line = b"\n" + line
        try:
            if file.write(line) != len(line):
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
