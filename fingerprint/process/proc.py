"""Reading another process through /proc: what it is, its command line, variables, descendants and files.

It only reads, never follows a link out of the process's own root, and says in words why a reading failed.
What the readings mean is known elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as file_modes
from collections import deque
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...schemas.errors import BadInput
from ...schemas.fingerprint import NO_PERMISSION as _NO_PERMISSION

PROC = Path("/proc")
ENDED = "the process ended while it was read: read a running one again"
NO_PERMISSION = (
    f"{_NO_PERMISSION}: run rip as the user who owns the process, or as root "
    "(in a container with CAP_SYS_PTRACE)"
)
OVERWRITTEN = (
    "the process wrote its title over it (setproctitle): give the pid of the process that started it"
)
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/PID/stat."""
_MAX_PROC_BYTES = 8 * 1024 * 1024
"""More than any command line, environment or map; a file of /proc states no size."""
_MAX_LINKS = 40
"""As many symbolic links as Linux follows in one path."""
_MAX_DESCENDANTS = 512


class Unread(Exception):
    """A reading that could not be made; the text says why, and how to mend it."""


class Forbidden(Unread):
    """It may be there: rip has no permission to look. Nobody may take it for absent."""


@dataclass(frozen=True)
class Status:
    """The fields of /proc/PID/stat that rip uses."""

    name: str
    """As the kernel keeps it: at most 15 characters."""
    state: str
    parent: int
    flags: int
    threads: int
    started: int
    """Clock ticks after boot: with the pid it names a process for ever, a pid alone is reused."""


@dataclass(frozen=True)
class Process:
    """A process that was there when it was named."""

    pid: int
    started: int


def identify(pid: int) -> Process:
    """Find a process that can be observed.

    Raises:
        BadInput: No such process, no /proc, or one without a program (kernel thread, zombie).
    """
    if not (PROC / "self" / "stat").exists():
        raise BadInput(
            "this system has no /proc, so another process cannot be read",
            "run rip on Linux, or ask the server: rip fingerprint --url URL",
        )
    try:
        status = status_of(pid) if pid > 0 else None
    except Unread:
        status = None
    if status is None:
        raise BadInput(
            f"there is no process {pid}", "find the engine's pid, for example with: pgrep -af serve"
        )
    if status.flags & _KERNEL_THREAD:
        raise BadInput(f"process {pid} ({status.name}) is a kernel thread", "give the pid of a program")
    if status.state in "ZX":
        raise BadInput(
            f"process {pid} ({status.name}) has ended and waits for its parent (a zombie)",
            "give the pid of a running program",
        )
    return Process(pid, status.started)


def is_alive(process: Process) -> bool:
    """Whether it still runs, and is the same one."""
    try:
        status = status_of(process.pid)
    except Unread:
        return False
    return status.started == process.started and status.state not in "ZX"


def status_of(pid: int) -> Status:
    """The kernel's line about a process, readable for everybody.

    Raises:
        Unread: It has ended.
    """
    text = read(pid, "stat").decode("utf-8", "replace")
    before, _, after = text.rpartition(")")  # a name may hold spaces and brackets
    fields = after.split()
    try:
        return Status(
            before.partition("(")[2],
            fields[0],
            int(fields[1]),
            int(fields[6]),
            int(fields[17]),
            int(fields[19]),
        )
    except (IndexError, ValueError):
        raise Unread(ENDED) from None


def read(pid: int, name: str) -> bytes:
    """One file of /proc/PID.

    Raises:
        Unread: No permission, or the process has ended.
    """
    try:
        with open(PROC / str(pid) / name, "rb") as file:
            return file.read(_MAX_PROC_BYTES)
    except OSError as error:
        raise _unread(error) from None


def link(pid: int, name: str) -> str:
    """Where a link of /proc/PID points: `exe`, `cwd`, `root`, `fd/7`. A path as the process sees it.

    Raises:
        Unread: No permission, or the process has ended.
    """
    try:
        return os.readlink(PROC / str(pid) / name)
    except OSError as error:
        raise _unread(error) from None


def why(error: OSError) -> str:
    """Why something of a process could not be read, and the mend."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return NO_PERMISSION
    if error.errno in (errno.ENOENT, errno.ESRCH):
        return ENDED
    return error.strerror or type(error).__name__


def _unread(error: OSError) -> Unread:
    return (Forbidden if error.errno in (errno.EACCES, errno.EPERM) else Unread)(why(error))


def _unread_file(path: str | PurePosixPath, error: OSError) -> Unread:
    name = PurePosixPath(path).name
    if error.errno in (errno.EACCES, errno.EPERM):
        return Forbidden(f"{_NO_PERMISSION} to read {name}: run rip as the user who owns it, or as root")
    return Unread(f"{name}: {error.strerror}")


def command_line(pid: int) -> list[str]:
    """The arguments, first one the program; of a process that set a title, that title alone.

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
            parent = status_of(pid).parent
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


def descendants(pid: int) -> tuple[int, ...]:
    """All processes that a process started, directly or not, in order of their pids."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(PROC):
        if entry.isdigit():
            with contextlib.suppress(Unread):
                status = status_of(int(entry))
                if status.state not in "ZX":
                    children.setdefault(status.parent, []).append(int(entry))
    found: list[int] = []
    waiting = deque(children.get(pid, []))
    while waiting and len(found) < _MAX_DESCENDANTS:
        found.append(waiting.popleft())
        waiting.extend(children.get(found[-1], []))
    return tuple(sorted(found))


def allowed_cpus(pid: int) -> str:
    """The processors it may run on, as the kernel lists them: `0-7,16`.

    Raises:
        Unread: The process has ended.
    """
    for line in read(pid, "status").decode("utf-8", "replace").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.partition(":")[2].strip()
    raise Unread("the kernel does not state it")


def cpu_count(pid: int) -> int:
    """How many processors it may run on.

    Raises:
        Unread: The process has ended.
    """
    ranges = (part.partition("-") for part in allowed_cpus(pid).split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def owner(pid: int) -> int:
    """The user id that it runs as (the effective one).

    Raises:
        Unread: The process has ended.
    """
    for line in read(pid, "status").decode("utf-8", "replace").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    raise Unread("the kernel does not state it")


def open_files(pid: int) -> set[str]:
    """What its descriptors point to: paths, and names such as `socket:[123]`.

    Raises:
        Unread: No permission, or the process has ended.
    """
    try:
        descriptors = os.listdir(PROC / str(pid) / "fd")
    except OSError as error:
        raise _unread(error) from None
    found = set()
    for descriptor in descriptors:
        with contextlib.suppress(Unread):  # closed meanwhile
            found.add(link(pid, f"fd/{descriptor}"))
    return found


def root_of(pid: int) -> Path:
    """Its view of the file system."""
    return PROC / str(pid) / "root"


def closed(root: Path) -> str | None:
    """Why one cannot look into the root of a process: then nothing in it is known to be absent."""
    try:
        os.listdir(root)
    except OSError as error:
        return why(error)
    return None


def mapped_files(pid: int) -> set[str]:
    """The paths of all files that it has mapped, as it sees them; of a removed one without the remark.

    Raises:
        Unread: No permission, or the process has ended.
    """
    found = set()
    for line in read(pid, "maps").decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            # Of a name the kernel escapes line breaks only.
            found.add(fields[5].replace("\\012", "\n").removesuffix(" (deleted)"))
    return found


def inside(root: Path, path: str | PurePosixPath) -> Path:
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


def read_inside(root: Path, path: str | PurePosixPath, limit: int) -> bytes:
    """The first `limit` bytes of a regular file that a process sees.

    Raises:
        Unread: It is not there, not readable, or no regular file (opening a FIFO would wait for ever).
    """
    try:
        descriptor = os.open(inside(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not file_modes.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unread(f"{PurePosixPath(path).name} is no regular file")
            return file.read(limit)
    except OSError as error:
        raise _unread_file(path, error) from None
