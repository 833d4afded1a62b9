"""The numeric shared libraries that a process has mapped: the only place that says which copy really runs.

Everything is read from `/proc`; nothing is loaded, executed or stopped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..process import proc, root_files
from ..process.proc import DELETED, Mapping, read_mappings
from .library_file import Elf, family_of, parse_elf, read_elf


@dataclass(frozen=True)
class LoadedLibrary:
    """One numeric library that a process has mapped."""

    path: str
    """As the process sees it."""
    family: str
    """Of `FAMILIES`."""
    soname: str | None
    build_id: str | None
    """Of the mapped file, not of what lies at its path now."""
    device: str
    inode: int
    size: int | None
    """Of the mapped file in bytes; None where it could not be read."""
    deleted: bool
    """The mapped file is gone from its path; with `replaced`, another one lies there now."""
    replaced: bool
    """Replaced on disk since it was loaded: a restart would load another file."""
    file: Path | None
    """Where this process can read the mapped file; None where it cannot."""
    reason: str | None = None
    """Why there is no build-id."""
    unseen: bool = False
    """Whether it is still at its path could not be seen: no permission, or another root."""


def loaded_libraries(pid: int | None = None) -> list[LoadedLibrary]:
    """The numeric libraries that a process has mapped, sorted by path.

    Args:
        pid: None for this process.

    Raises:
        Unread: As `read_mappings`.
    """
    found = (
        _library(pid, mapping, family)
        for mapping in read_mappings(pid)
        if (family := family_of(mapping.path)) is not None
    )
    return sorted(found, key=lambda library: (library.path, library.inode))


def _library(pid: int | None, mapping: Mapping, family: str) -> LoadedLibrary:
    now = _state(_path_of(pid, mapping.path))
    if mapping.deleted and now is None and _state(_path_of(pid, mapping.path + DELETED)) is not None:
        # A file whose name really ends so.
        mapping = replace(mapping, path=mapping.path + DELETED, deleted=False)
        now = _state(_path_of(pid, mapping.path))
    link = _mapped_file(pid, mapping)
    mapped = _state(link)
    path = _path_of(pid, mapping.path)
    if now is None and pid is not None and not mapping.deleted:
        # Of a process that changed its root, the maps show the path from the reader's root.
        outside = _state(Path(mapping.path))
        if outside is not None and _is_mapped(mapping, mapped, outside):
            path, now = Path(mapping.path), outside
    if mapping.deleted:
        replaced = now is not None
    elif now is None:
        replaced = False
    elif mapped is not None:
        replaced = (mapped.st_dev, mapped.st_ino) != (now.st_dev, now.st_ino)
    else:
        # The maps of btrfs and overlay file systems show the device beneath and, of the inode number, not the
        # upper bits by which an overlay tells its layers apart. A replaced file has another lower half too.
        replaced = (mapping.inode ^ now.st_ino) & 0xFFFFFFFF != 0
    unseen = now is None and not mapping.deleted and not _is_absent(pid, mapping.path)
    gone = mapping.deleted or replaced or (now is None and not unseen)
    file = path if now is not None and not gone else link if mapped is not None else None
    read = read_elf(file) if file is not None else _from_memory(pid, mapping)
    size = mapped.st_size if mapped is not None else now.st_size if now is not None and not gone else None
    reason = read.reason or (None if read.build_id else "the file has no build-id")
    return LoadedLibrary(
        path=mapping.path,
        family=family,
        soname=read.soname,
        build_id=read.build_id,
        device=mapping.device,
        inode=mapping.inode,
        size=size,
        deleted=gone,
        replaced=replaced,
        file=file,
        reason=reason if read.build_id is None else None,
        unseen=unseen,
    )


def _is_mapped(mapping: Mapping, mapped: os.stat_result | None, found: os.stat_result) -> bool:
    """Whether a file is the mapped one, by device and inode."""
    if mapped is not None:
        return os.path.samestat(mapped, found)
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return (device, found.st_ino) == (mapping.device, mapping.inode)


def _is_absent(pid: int | None, path: str) -> bool:
    """Whether one could look at a path as the process sees it, and nothing lies there."""
    try:
        os.stat(_path_of(pid, path))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError):
        return False
    if pid is None:
        return True
    try:
        # With a root of its own inside rip's, or one that rip cannot compare, the path may start elsewhere.
        return os.path.samestat(os.stat(root_files.root_of(pid)), os.stat("/"))
    except OSError:
        return False


def _path_of(pid: int | None, path: str) -> Path:
    if pid is None:
        return Path(path)
    try:
        return root_files.locate(root_files.root_of(pid), path)
    except proc.Unread:
        return root_files.root_of(pid) / path.lstrip("/")  # it is not there, which looking at it will say


def _mapped_file(pid: int | None, mapping: Mapping) -> Path:
    """The kernel's own link to the mapped file, which holds whatever happens to its name.

    Following it takes CAP_CHECKPOINT_RESTORE; without, it is as good as absent.
    """
    first, end, _ = mapping.ranges[0]
    return proc.proc_folder(pid) / "map_files" / f"{first:x}-{end:x}"


def _state(path: Path) -> os.stat_result | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _from_memory(pid: int | None, mapping: Mapping) -> Elf:
    """The build-id from the mapped pages: all that is left of a deleted file without privileges.

    Names are not read: the loader has rewritten the addresses that lead to them.
    """
    try:
        memory = os.open(proc.proc_folder(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Elf(
            reason="the mapped file is no longer at its path: run as root to read its build-id all the same"
        )
    try:
        size = max(offset + end - first for first, end, offset in mapping.ranges)
        read = parse_elf(lambda offset, size: b"".join(_pages(memory, mapping, offset, size)), size)
    finally:
        os.close(memory)
    return replace(read, soname=None, needed=(), reason=None if read.build_id else read.reason)


def _pages(memory: int, mapping: Mapping, offset: int, size: int) -> Iterator[bytes]:
    for first, end, start in mapping.ranges:
        if start <= offset < start + end - first:
            yield os.pread(memory, min(size, start + end - first - offset), first + offset - start)
            return
