"""What is suspicious about the libraries of a process, in plain sentences: another copy than one believes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..libraries.inventory import Known
from ..libraries.loaded import LoadedLibrary


def warnings(
    known: Sequence[Known], chosen: Mapping[str, Known], packages: Mapping[str, str], pins: Mapping[str, str]
) -> list[str]:
    """Every mismatch between loaded, installed and expected libraries.

    Args:
        known: All libraries, loaded ones first, copies on disk in the order torch would take them.
        chosen: Family → the copy that answers for it.
        packages: Installed `nvidia-*` packages: name → version.
        pins: The versions of them that the installed torch asks for.
    """
    found = []
    for item in known:
        if item.loaded is not None and item.loaded.deleted:
            what = "was replaced on disk" if item.loaded.replaced else "was deleted from disk"
            found.append(f"{item.label} {what} since it was loaded: a restart will load another file or none")
        if item.package is not None and not item.package.as_installed:
            found.append(f"{item.label} is not the file that {item.package} installed")
    for family in sorted({item.family for item in known}):
        found += _of_family(family, [item for item in known if item.family == family and item.is_main])
    for name in sorted(pins):
        if name in packages and packages[name] != pins[name]:
            found.append(f"torch asks for {name} {pins[name]}, but {packages[name]} is installed")
    return found


def _of_family(family: str, items: list[Known]) -> list[str]:
    loaded = [item for item in items if item.loaded is not None]
    builds = {item.build_id or item.path for item in loaded}
    if len(builds) > 1:
        names = ", ".join(sorted(_named(item) for item in loaded))
        return [f"{len(builds)} different copies of {family} are loaded at once: {names}"]
    installed = [item for item in items if item.loaded is None]
    if not loaded or not installed or loaded[0].loaded is None or loaded[0].loaded.deleted:
        return []
    here = loaded[0]
    if here.label.startswith("site-packages/"):
        return []  # what the wheels bring is what their programs load; other copies beside it do no harm
    name = _major(here)
    expected = next(
        (item for item in installed if item.label.startswith("site-packages/") and _major(item) == name), None
    )
    if expected is None or expected.build_id == here.build_id:
        return []
    return [f"{family} is loaded from {_named(here)}, not from the installed {_named(expected)}"]


def _major(item: Known) -> str:
    """What the loader looks for, `libnccl.so.2`: two major versions may be there for two programs."""
    match = re.match(r".*?\.so(\.\d+)?", item.path.rpartition("/")[2])
    return match[0] if match else item.path


def _named(item: Known) -> str:
    version = item.file_version or (item.package.version if item.package else None)
    if version is None:
        version = f"build {item.build_id[:12]}" if item.build_id else "of unknown version"
    return f"{item.label} ({version})"


def differing_processes(by_process: Sequence[Sequence[LoadedLibrary]]) -> list[str]:
    """Families of which the processes of one server have mapped different files."""
    builds: dict[str, dict[str, set[str]]] = {}
    for process in by_process:
        for item in process:
            name = item.soname or item.path.rpartition("/")[2]
            builds.setdefault(name, {}).setdefault(item.build_id or item.path, set()).add(item.path)
    found = []
    for name, versions in sorted(builds.items()):
        if len(versions) > 1 and _not_within_one(name, by_process):
            found.append(f"the processes have loaded {len(versions)} different copies of {name}")
    return found


def _not_within_one(name: str, by_process: Sequence[Sequence[LoadedLibrary]]) -> bool:
    """Whether it is the processes that differ, and not one process that has several copies."""
    sets = {
        frozenset(
            item.build_id or item.path
            for item in process
            if (item.soname or item.path.rpartition("/")[2]) == name
        )
        for process in by_process
    }
    return len(sets - {frozenset()}) > 1
