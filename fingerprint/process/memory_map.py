"""The files that a process has mapped, from its `maps` in /proc: the one place that reads them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from . import proc

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
    if pid is None and not (proc.PROC / "self" / "maps").exists():
        raise proc.Unread("this system has no /proc: libraries are read on Linux only")
    content = proc.read(pid, "maps", MAX_MAPS_BYTES)
    if not content:
        raise proc.Unread("it has no memory of its own: a kernel thread, or it has ended")
    return content
