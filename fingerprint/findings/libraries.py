"""What is suspicious about the libraries of a process: a different copy runs than one would expect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..libraries.inventory import Library
from ..libraries.loaded import LoadedLibrary


@dataclass(frozen=True)
class CopyName:
    """What tells one copy of a library from another."""

    label: str
    version: str | None
    build_id: str | None


@dataclass(frozen=True)
class FileChanged:
    """The file of a loaded library was replaced, or deleted, since it was loaded."""

    label: str
    replaced: bool


@dataclass(frozen=True)
class NotAsInstalled:
    """A file does not have the size that its package recorded."""

    label: str
    package: str


@dataclass(frozen=True)
class SeveralLoaded:
    """One process has loaded different copies of one library."""

    family: str
    builds: int
    copies: tuple[CopyName, ...]


@dataclass(frozen=True)
class LoadedFromElsewhere:
    """The installed package has this library, and the process has loaded a different build of it."""

    family: str
    loaded: CopyName
    installed: CopyName


@dataclass(frozen=True)
class PinNotMet:
    """torch requires one version of a package, and a different one is installed."""

    package: str
    required: str
    installed: str


@dataclass(frozen=True)
class ProcessesDiffer:
    """The processes of one server have loaded different copies of one library."""

    name: str
    copies: int


LibraryFinding = (
    FileChanged | NotAsInstalled | SeveralLoaded | LoadedFromElsewhere | PinNotMet | ProcessesDiffer
)


def check_libraries(
    known: Sequence[Library], packages: Mapping[str, str], pins: Mapping[str, str]
) -> list[LibraryFinding]:
    """Every mismatch between loaded, installed and expected libraries.

    Args:
        known: All libraries, loaded ones first, copies on disk in the order torch would take them.
        packages: Installed `nvidia-*` packages: name → version.
        pins: The versions of them that the installed torch requires.
    """
    found: list[LibraryFinding] = []
    for item in known:
        if item.loaded is not None and item.loaded.deleted:
            found.append(FileChanged(item.label, item.loaded.replaced))
        if item.package is not None and not item.package.as_installed:
            found.append(NotAsInstalled(item.label, str(item.package)))
    for family in sorted({item.family for item in known}):
        found += _check_family(family, [item for item in known if item.family == family and item.is_main])
    found += [
        PinNotMet(name, pins[name], packages[name])
        for name in sorted(pins)
        if name in packages and packages[name] != pins[name]
    ]
    return found


def _check_family(family: str, items: list[Library]) -> list[LibraryFinding]:
    loaded = [item for item in items if item.loaded is not None]
    builds = {item.build_id or item.path for item in loaded}
    if len(builds) > 1:
        return [SeveralLoaded(family, len(builds), tuple(map(_name, loaded)))]
    installed = [item for item in items if item.loaded is None]
    if not loaded or not installed or loaded[0].loaded is None or loaded[0].loaded.deleted:
        return []
    running = loaded[0]
    if running.label.startswith("site-packages/"):
        return []  # what the wheels bring is what their programs load; other copies beside it do no harm
    expected = next(
        (
            item
            for item in installed
            if item.label.startswith("site-packages/") and _major(item) == _major(running)
        ),
        None,
    )
    if expected is None or expected.build_id == running.build_id:
        return []
    return [LoadedFromElsewhere(family, _name(running), _name(expected))]


def _major(item: Library) -> str:
    """What the loader searches for, `libnccl.so.2`: two programs may need two major versions."""
    match = re.match(r".*?\.so(\.\d+)?", item.path.rpartition("/")[2])
    return match[0] if match else item.path


def _name(item: Library) -> CopyName:
    version = item.file_version or (item.package.version if item.package else None)
    return CopyName(item.label, version, item.build_id)


def compare_processes(by_process: Sequence[Sequence[LoadedLibrary]]) -> list[LibraryFinding]:
    """Libraries of which the processes of one server have mapped different files."""
    loaded: dict[str, list[frozenset[str]]] = {}
    """File name → the builds of it in each process that has mapped one."""
    for process in by_process:
        builds: dict[str, set[str]] = {}
        for item in process:
            name = item.soname or item.path.rpartition("/")[2]
            builds.setdefault(name, set()).add(item.build_id or item.path)
        for name, found in builds.items():
            loaded.setdefault(name, []).append(frozenset(found))
    # Where all processes have the same several copies, it is not the processes that differ.
    return [
        ProcessesDiffer(name, len(frozenset().union(*sets)))
        for name, sets in sorted(loaded.items())
        if len(set(sets)) > 1
    ]
