"""Another process as the kernel shows it: whether it is there, its family, arguments, variables and files.

psutil reads what it can say without guessing. Read from /proc here: arguments and variables, whose beginning
a worker overwrites with its title; links as the process sees them; device files among the open ones; mapped
files. Nothing is ever written, and a reading that failed says why.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import BadInput
from ...schemas.fingerprint import NO_PERMISSION as _NO_PERMISSION

if TYPE_CHECKING:
    import psutil


PROC = Path("/proc")
ENDED = "the process ended while it was read: read a running one again"
NO_PERMISSION = (
    f"{_NO_PERMISSION}: run rip as the user who owns the process, or as root "
    "(in a container with CAP_SYS_PTRACE)"
)
OVERWRITTEN = (
    "the process wrote its title over it (setproctitle): give the pid of the process that started it"
)
_KTHREADD = 2
"""The parent of every kernel thread."""
_MAX_PROC_BYTES = 8 * 1024 * 1024
"""More than any command line or environment; a file of /proc states no size."""
_MAX_DESCENDANTS = 512


class Unread(Exception):
    """A reading that could not be made; the text says why, and how to fix it."""


class Forbidden(Unread):
    """It may be there: rip has no permission to read it. Nobody may take it for absent."""


def identify(pid: int) -> psutil.Process:
    """Find a process that can be observed.

    Raises:
        BadInput: No such process, no /proc, or one without a program (kernel thread, zombie).
    """
    if not (PROC / "self" / "stat").exists():
        raise BadInput(
            "this system has no /proc, so another process cannot be read",
            "run rip on Linux, or ask the server: rip fingerprint --url URL",
        )
    import psutil

    try:
        process = psutil.Process(pid)
        name, parent, status = process.name(), process.ppid(), process.status()
    except (psutil.NoSuchProcess, ValueError):
        raise BadInput(
            f"there is no process {pid}", "find the engine's pid, for example with: pgrep -af serve"
        ) from None
    if _KTHREADD in (pid, parent) and not _has_program(pid):
        raise BadInput(f"process {pid} ({name}) is a kernel thread", "give the pid of a program")
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        raise BadInput(
            f"process {pid} ({name}) has ended and waits for its parent (a zombie)",
            "give the pid of a running program",
        )
    return process


def _has_program(pid: int) -> bool:
    """In a container another process may have the number of the kernel's own: that one has arguments."""
    with contextlib.suppress(Unread):
        return bool(command_line(pid))
    return True


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs, and is the same one: a pid alone is reused."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


@contextmanager
def open_process(pid: int) -> Iterator[psutil.Process]:
    """A process for psutil's readings, whose failures become `Unread`.

    Raises:
        Unread: No permission, or the process has ended.
    """
    import psutil

    try:
        yield psutil.Process(pid)
    except psutil.AccessDenied:
        raise Forbidden(NO_PERMISSION) from None
    except psutil.NoSuchProcess:  # a zombie, too
        raise Unread(ENDED) from None


def parent_of(pid: int) -> int:
    """The process that started it. Errors as for `open_process`."""
    with open_process(pid) as process:
        return int(process.ppid())


def usable_cpus(pid: int) -> list[int]:
    """The processors it may run on. Errors as for `open_process`."""
    with open_process(pid) as process:
        return sorted(process.cpu_affinity())


def owner(pid: int) -> int:
    """The user id that it runs as (the effective one). Errors as for `open_process`."""
    with open_process(pid) as process:
        return int(process.uids().effective)


def descendants(process: psutil.Process) -> tuple[int, ...]:
    """All processes that a process started, directly or not, in order of their pids; zombies left out."""
    import psutil

    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children(recursive=True)[:_MAX_DESCENDANTS]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(child.pid)
    return tuple(sorted(found))


def read(pid: int | None, name: str, limit: int = _MAX_PROC_BYTES) -> bytes:
    """One file of /proc/PID; of this process for None.

    Raises:
        Unread: No permission, or the process has ended.
    """
    try:
        with open(proc_folder(pid) / name, "rb") as file:
            return file.read(limit)
    except OSError as error:
        raise _unread(error) from None


def link(pid: int, name: str) -> str:
    """Where a link of /proc/PID points: `exe`, `cwd`, `root`, `fd/7`. A path as the process sees it.

    Raises:
        Unread: No permission, or the process has ended.
    """
    try:
        return os.readlink(proc_folder(pid) / name)
    except OSError as error:
        raise _unread(error) from None


def proc_folder(pid: int | None) -> Path:
    """/proc/PID, or /proc/self for None."""
    return PROC / ("self" if pid is None else str(pid))


def describe_failure(error: OSError) -> str:
    """Why something of a process could not be read, and how to fix it."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return NO_PERMISSION
    if error.errno in (errno.ENOENT, errno.ESRCH):
        return ENDED
    return error.strerror or type(error).__name__


def _unread(error: OSError) -> Unread:
    return (Forbidden if error.errno in (errno.EACCES, errno.EPERM) else Unread)(describe_failure(error))


def command_line(pid: int) -> list[str]:
    """The arguments, first one the program; of a process that set a title, that title alone.

    psutil would split a title at its spaces.

    Raises:
        Unread: The process has ended.
    """
    text = read(pid, "cmdline").decode("utf-8", "backslashreplace").rstrip("\0")
    return text.split("\0") if text else []


def launch_environment(pid: int) -> tuple[dict[str, str], str | None]:
    """The variables with which a process was started, and why they could not be read.

    A title that a worker writes (setproctitle) runs over the beginning of its copy. What is lost are the
    variables of the parent that runs the same program, which it inherited; the rest is its own.
    """
    try:
        content = read(pid, "environ")
        whole = not content.startswith(b"\0")
        entries = content.lstrip(b"\0").decode("utf-8", "surrogateescape").split("\0")
        if not whole:
            parent = parent_of(pid)
            if link(parent, "exe") != link(pid, "exe"):
                return {}, OVERWRITTEN
            inherited, unread = launch_environment(parent)
            if unread is not None:
                return {}, unread
            entries = entries[1:]  # of the first, the beginning may be lost
    except Unread as reason:
        return {}, str(reason)
    pairs = (entry.partition("=") for entry in entries)
    own = {name: value for name, is_pair, value in pairs if is_pair and name}
    return own if whole else {**inherited, **own}, None


def open_files(pid: int) -> set[str]:
    """What its descriptors point to: paths of files and devices, and names such as `socket:[123]`.

    psutil lists regular files only.

    Raises:
        Unread: No permission, or the process has ended.
    """
    try:
        descriptors = os.listdir(proc_folder(pid) / "fd")
    except OSError as error:
        raise _unread(error) from None
    found = set()
    for descriptor in descriptors:
        with contextlib.suppress(Unread):  # closed meanwhile
            found.add(link(pid, f"fd/{descriptor}"))
    return found


DELETED = " (deleted)"
"""What the kernel appends to the path of a file whose name no longer leads to it."""
MAX_MAPS_BYTES = 64 << 20
"""A process of 100,000 mappings has maps of about 12 MB."""
_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+) +(/.*)$", re.MULTILINE
)


@dataclass(frozen=True)
class Mapping:
    """One file that a process has mapped, with all the ranges it is mapped to."""

    path: str
    """As the process sees it, without the kernel's mark for a deleted file."""
    device: str
    """`major:minor` in hex, as the maps say."""
    inode: int
    deleted: bool
    """The name no longer leads to the mapped file."""
    ranges: tuple[tuple[int, int, int], ...]
    """(first address, address behind the last, offset in the file)."""


def read_mappings(pid: int | None = None) -> list[Mapping]:
    """Every file that a process has mapped; of this process for None.

    Raises:
        Unread: No permission, it has ended, it has no memory (a kernel thread), or there is no /proc.
    """
    ranges: dict[tuple[bytes, bytes, bytes], list[tuple[int, int, int]]] = defaultdict(list)
    for line in _LINE.finditer(_read_maps(pid)):
        first, end, offset, device, inode, path = line.groups()
        ranges[path, device, inode].append((int(first, 16), int(end, 16), int(offset, 16)))
    found = []
    for (path, device, inode), where in ranges.items():
        # The kernel writes a line break in a name as \012 and leaves everything else as it is.
        name = path.replace(rb"\012", b"\n").decode("utf-8", "surrogateescape")
        deleted = name.endswith(DELETED)
        found.append(Mapping(name.removesuffix(DELETED), device.decode(), int(inode), deleted, tuple(where)))
    return found


def mapped_files(pid: int) -> set[str]:
    """The paths of all files that it has mapped, as it sees them. Errors as for `read_mappings`."""
    return {mapping.path for mapping in read_mappings(pid)}


def _read_maps(pid: int | None) -> bytes:
    if pid is None and not (PROC / "self" / "maps").exists():
        raise Unread("this system has no /proc: libraries are read on Linux only")
    content = read(pid, "maps", MAX_MAPS_BYTES)
    if not content:
        raise Unread("it has no memory of its own: a kernel thread, or it has ended")
    return content
