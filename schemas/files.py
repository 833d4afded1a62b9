"""Output files: checked before any work, private (mode 0600), whole under their name or not there at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Self

from .errors import OutputFailed
from .trace import parts_folder


@contextmanager
def replace_file(path: Path, synced: bool = True) -> Iterator[Path]:
    """A private file to write to; it takes the name `path` when the context ends without an error.

    What a link leads to is replaced, not the link.

    Args:
        path: The final name.
        synced: Hand the bytes to the disk first, so that no power cut leaves the name to an empty file.

    Raises:
        FileExistsError: Another writer was faster; what it wrote stays.
        OSError: As the disk says; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    before = version_of(target)
    with _unfinished(target) as unfinished:
        yield unfinished
        if synced:
            _sync(unfinished)
        if before is not None and version_of(target) == before:
            unfinished.replace(target)
        else:
            _name_new(unfinished, target)


@contextmanager
def create_file(path: Path) -> Iterator[Path]:
    """As `replace_file`, but a file that has the name by then stays.

    Raises:
        FileExistsError: There is one.
        OSError: As the disk says; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    with _unfinished(target) as unfinished:
        yield unfinished
        _sync(unfinished)
        _name_new(unfinished, target)


class NewFolder:
    """A private folder to write in, until `publish` gives it its final name or `discard` removes it.

    A folder that has the name is renamed aside before it is replaced. After a kill in between, the next
    `NewFolder` of that name gives it back.

    Args:
        target: The final name.

    Attributes:
        path: Where to write.

    Raises:
        OSError: As the disk says.
    """

    def __init__(self, target: Path) -> None:
        restore_folder(target)
        self._target, self._before = target, version_of(target)
        self.path = Path(tempfile.mkdtemp(dir=target.parent, prefix=_hidden(target), suffix=".unfinished"))

    def publish(self) -> None:
        """Give it its name.

        Raises:
            FileExistsError: Another writer was faster; what it wrote stays.
            OSError: As the disk says.
        """
        for file in self.path.iterdir():
            _sync(file)
        if version_of(self._target) != self._before:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self._target))
        if self._before is not None:
            self._target.rename(_aside(self._target))
        self.path.rename(self._target)
        shutil.rmtree(_aside(self._target), ignore_errors=True)

    def discard(self) -> None:
        """Remove it, unless it has its name."""
        shutil.rmtree(self.path, ignore_errors=True)


def restore_folder(path: Path) -> None:
    """Give a folder its name back that was renamed aside by a `NewFolder` that was killed then."""
    aside = _aside(path)
    if aside.is_dir() and not aside.is_symlink():
        if os.path.lexists(path):
            shutil.rmtree(aside, ignore_errors=True)  # the new one is in its place
        else:
            aside.rename(path)


def _aside(path: Path) -> Path:
    return path.with_name(f"{_hidden(path)}before")


def version_of(path: Path) -> tuple[int, ...] | None:
    """What changes when somebody else writes `path`; None where nothing has that name."""
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return None
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """An empty private file beside `target` that nobody else has, removed when the context ends."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=_hidden(target), suffix=".unfinished")
    os.close(descriptor)
    unfinished = Path(name)
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def _hidden(path: Path) -> str:
    """`.NAME.`, with room for what makes it unique: a name may have 255 bytes."""
    return f".{os.fsencode(path.name)[:220].decode('utf-8', 'ignore')}."


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name_new(unfinished: Path, target: Path) -> None:
    try:
        os.link(unfinished, target)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        unfinished.rename(target)


@contextmanager
def report_disk_errors(path: Path) -> Iterator[None]:
    """Turns what the disk says while `path` is written into an error for people.

    Raises:
        OutputFailed: The file cannot be written (disk full, permissions, another writer).
    """
    try:
        yield
    except FileExistsError:
        raise OutputFailed(
            f"{path} was written by another program meanwhile, and was left alone",
            "choose another name, or run the command again",
        ) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        too_long = error.errno == errno.ENAMETOOLONG
        fix = "choose a shorter name" if too_long else "free space or choose another place"
        raise OutputFailed(f"{path} could not be written: {why}", fix) from None


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
        os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600), "r+b", buffering=0) as file,
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
