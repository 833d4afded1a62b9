"""Files as another process sees them: every link is followed inside its root, never out of its container."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from pathlib import Path, PurePosixPath

from ...schemas.fingerprint import NO_PERMISSION
from .proc import Forbidden, Unread, describe_failure, proc_folder

_MAX_LINKS = 40
"""As many symbolic links as Linux follows in one path."""


def root_of(pid: int) -> Path:
    """Its view of the file system."""
    return proc_folder(pid) / "root"


def why_closed(root: Path) -> str | None:
    """Why the root of a process cannot be listed: then nothing in it is known to be absent."""
    try:
        os.listdir(root)
    except OSError as error:
        return describe_failure(error)
    return None


def locate(root: Path, path: str | PurePosixPath) -> Path:
    """Where a path that a process sees lies, with every link followed inside its root.

    The kernel would follow an absolute link below `/proc/PID/root` from rip's own root: out of the container.

    Raises:
        Unread: Too many links, or a component is not there.
    """
    if root == Path("/"):
        return Path(path)
    waiting = deque(PurePosixPath(path).parts)
    done: list[str] = []
    links = 0
    while waiting:
        part = waiting.popleft()
        if part in ("/", "..", "."):
            done = [] if part == "/" else done[:-1] if part == ".." else done
            continue
        here = root.joinpath(*done, part)
        try:
            target = os.readlink(here)
        except ValueError:
            raise Unread("no path has such characters") from None
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: no link
                raise _unread_file(path, error) from None
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise Unread(f"{PurePosixPath(path).name}: too many symbolic links")
        waiting.extendleft(reversed(PurePosixPath(target).parts))
    return root.joinpath(*done)


def read_file(root: Path, path: str | PurePosixPath, limit: int) -> bytes:
    """The first `limit` bytes of a regular file that a process sees.

    Raises:
        Unread: It is not there, not readable, or no regular file (opening a FIFO would wait for ever).
    """
    try:
        descriptor = os.open(locate(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unread(f"{PurePosixPath(path).name} is no regular file")
            return file.read(limit)
    except OSError as error:
        raise _unread_file(path, error) from None


def read_text(root: Path, path: str | PurePosixPath, limit: int) -> str:
    """The same as text, whatever is not UTF-8 replaced; empty where it cannot be read."""
    try:
        return read_file(root, path, limit).decode("utf-8", "replace")
    except Unread:
        return ""


def is_folder(root: Path, path: str) -> bool:
    """Whether a process sees a folder at a path."""
    try:
        return locate(root, path).is_dir()
    except (Unread, OSError):
        return False


def _unread_file(path: str | PurePosixPath, error: OSError) -> Unread:
    name = PurePosixPath(path).name
    if error.errno in (errno.EACCES, errno.EPERM):
        return Forbidden(f"{NO_PERMISSION} to read {name}: run rip as the user who owns it, or as root")
    return Unread(f"{name}: {error.strerror}")
