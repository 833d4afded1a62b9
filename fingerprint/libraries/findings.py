"""Loaded libraries and copies on disk as one list: which copy counts, and what is suspicious about them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .loaded import LoadedLibrary
from .on_disk import Copy, LibrarySearch, Package, own_labels, version_in_name

_STEMS = {"cuda_driver": "cuda", "cublaslt": "cublasLt", "nvjitlink": "nvJitLink", "miopen": "MIOpen"}


@dataclass(frozen=True)
class Library:
    """One library with everything that is known of it, loaded or not."""

    family: str
    label: str
    path: str
    build_id: str | None
    package: Package | None
    file_version: str | None
    loaded: LoadedLibrary | None

    @property
    def is_main(self) -> bool:
        """Whether it answers for its family: `libcudnn.so.9`, not `libcudnn_ops.so.9`."""
        stem = _STEMS.get(self.family, self.family)
        # Some wheels carry their copy with a digest in its name: libcudart-2a12a4a4.so.12.
        return re.match(rf"(memfd:)?lib{stem}(-[0-9a-f]{{8}})?\.so", self.path.rpartition("/")[2]) is not None

    @classmethod
    def of_loaded(cls, label: str, item: LoadedLibrary, package: Package | None) -> Library:
        """A library that a process has mapped."""
        version = version_in_name(item.path)
        return cls(item.family, label, item.path, item.build_id, package, version, item)

    @classmethod
    def of_copy(cls, copy: Copy) -> Library:
        """A copy on disk that is not loaded."""
        version = version_in_name(copy.path)
        return cls(copy.family, copy.label, copy.path, copy.elf.build_id, copy.package, version, None)


def list_libraries(search: LibrarySearch, copies: list[Copy], loaded: list[LoadedLibrary]) -> list[Library]:
    """Loaded libraries, then the copies on disk that are not: each file once, under a label of its own."""
    on_disk = {(copy.state.st_dev, copy.state.st_ino): copy for copy in copies}
    known, taken = [], set()
    for item in loaded:
        state = stat_of(item.file) if not item.deleted else None
        key = (state.st_dev, state.st_ino) if state else None
        copy = on_disk.get(key) if key else None
        taken.add(key)
        label = copy.label if copy else search.label_of(item.path, item.soname)
        package = None if item.deleted else search.package_of(item.path, item.size)
        known.append(Library.of_loaded(label, item, package))
    known += [Library.of_copy(copy) for key, copy in on_disk.items() if key not in taken]
    labels = own_labels([item.label for item in known])
    return [replace(item, label=label) for item, label in zip(known, labels, strict=True)]


def stat_of(path: Path | None) -> os.stat_result | None:
    """The state of a file; None where there is none to look at."""
    try:
        return os.stat(path) if path is not None else None
    except OSError:
        return None


def choose_copy(family: str, known: list[Library], search: LibrarySearch) -> Library | None:
    """The copy that answers for a family: the loaded one, else the first that torch would load."""
    mains = [item for item in known if item.family == family and item.is_main]
    if loaded := [item for item in mains if item.loaded is not None]:
        return loaded[0]
    if len(mains) > 1 and (needed := search.torch_needs()):
        mains = [item for item in mains if item.path.rpartition("/")[2] in needed] or mains
    return mains[0] if mains else None


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
