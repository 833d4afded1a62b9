"""What is suspicious about the libraries of a process: a different copy runs than one would expect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .inventory import Library
from .loaded import LoadedLibrary

Kind = Literal[
    "replaced since loaded",
    "deleted since loaded",
    "not as installed",
    "several loaded",
    "loaded from elsewhere",
    "pin not met",
    "processes differ",
]


@dataclass(frozen=True)
class LibraryFinding:
    """One mismatch between loaded, installed and expected libraries."""

    kind: Kind
    data: Mapping[str, Any]
    """What it is about: `label` of a file, `family` or `name` of a library, a `package`, copies, versions."""


@dataclass(frozen=True)
class CopyName:
    """What distinguishes one copy of a library from another."""

    label: str
    version: str | None
    build_id: str | None


def check_libraries(
    known: Sequence[Library], packages: Mapping[str, str], pins: Mapping[str, str]
) -> list[LibraryFinding]:
    """Every mismatch within one environment.

    Args:
        known: All libraries, loaded ones first, copies on disk in the order torch would take them.
        packages: Installed `nvidia-*` packages: name → version.
        pins: The versions of them that the installed torch requires.
    """
    found = []
    for item in known:
        if item.loaded is not None and item.loaded.deleted:
            kind: Kind = "replaced since loaded" if item.loaded.replaced else "deleted since loaded"
            found.append(LibraryFinding(kind, {"label": item.label}))
        if item.package is not None and not item.package.as_installed:
            data = {"label": item.label, "package": str(item.package)}
            found.append(LibraryFinding("not as installed", data))
    for family in sorted({item.family for item in known}):
        found += _check_family(family, [item for item in known if item.family == family and item.is_main])
    for name in sorted(pins.keys() & packages.keys()):
        if packages[name] != pins[name]:
            data = {"package": name, "required": pins[name], "installed": packages[name]}
            found.append(LibraryFinding("pin not met", data))
    return found


def _check_family(family: str, items: list[Library]) -> list[LibraryFinding]:
    loaded = [item for item in items if item.loaded is not None]
    builds = {item.build_id or item.path for item in loaded}
    if len(builds) > 1:
        data = {"family": family, "builds": len(builds), "copies": tuple(map(_name, loaded))}
        return [LibraryFinding("several loaded", data)]
    # What the wheels bring is what their programs load; other copies beside it do no harm.
    if not loaded or loaded[0].label.startswith("site-packages/"):
        return []
    running = loaded[0]
    expected = [
        item
        for item in items
        if item.loaded is None and item.label.startswith("site-packages/") and _major(item) == _major(running)
    ]
    gone = running.loaded is not None and running.loaded.deleted
    if gone or not expected or expected[0].build_id == running.build_id:
        return []
    data = {"family": family, "loaded": _name(running), "installed": _name(expected[0])}
    return [LibraryFinding("loaded from elsewhere", data)]


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
        LibraryFinding("processes differ", {"name": name, "builds": len(frozenset().union(*sets))})
        for name, sets in sorted(loaded.items())
        if len(set(sets)) > 1
    ]
