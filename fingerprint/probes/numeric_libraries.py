"""Section `libraries`: versions and build-ids of numeric libraries, from the libraries themselves.

Of this process: the copy that is loaded, else the one that torch would load, queried in a child
process. Of a named process nothing is executed: its maps, file names and package records are read.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas import redact
from ...schemas.fingerprint import NOT_EXECUTED, Fact, Section, fact, fact_or, unavailable
from ..fields.machine_fields import FileState
from ..libraries.findings import (
    Library,
    LibraryFinding,
    check_libraries,
    choose_copy,
    compare_processes,
    list_libraries,
    stat_of,
)
from ..libraries.loaded import LoadedLibrary, loaded_libraries
from ..libraries.on_disk import LibrarySearch
from ..libraries.version_child import VERSION_FUNCTIONS, query_version
from ..libraries.version_query import query_versions
from ..present.warnings import describe_library
from ..process import proc, root_files
from . import locations
from .torch_env import versions_beside

if TYPE_CHECKING:
    from .context import Context

QUERIED = ("cudart", "cublaslt", "cublas", "cudnn", "nccl", "nvrtc", "cuda_driver")
"""In the order in which torch loads them: cuBLASLt first, or cuBLAS may find another one by itself."""
PARTS = {"cudart": 2, "nvrtc": 2, "cuda_driver": 2}
"""Numbers in the version that a library states, where it is not three; packages and file names have more."""
NO_COPY = "no copy was found: not loaded, not in site-packages, LD_LIBRARY_PATH or the loader's cache"
NOT_LOADED = "the process has not loaded it"
MAX_HASHED_BYTES = 64 << 20
"""Libraries without a build-id are hashed: OpenBLAS in numpy's wheels has 25 MB and takes 20 ms."""


def probe(context: Context) -> dict[str, Section]:
    """The whole section; see docs/fingerprint.md for its fields."""
    loaded, problem, apart = _loaded(context)
    closed = root_files.why_closed(context.root) if context.pid is not None else None
    if context.pid is not None and problem is not None:
        # Who cannot see what a process has loaded cannot see its files either: nothing is known to be absent.
        closed = closed or problem
        names = [*QUERIED, *(f"{family}_build_id" for family in QUERIED), "loaded"]
        facts = dict.fromkeys(names, unavailable(problem, "proc-maps"))
        return {"libraries": Section(facts=facts | _not_readable(closed))}
    search = LibrarySearch(context.root, tuple(_site_folders(context)), context.environ)
    known = list_libraries(search, search.copies(), loaded)
    chosen = {
        family: found for family in QUERIED if (found := choose_copy(family, known, search)) is not None
    }
    if context.pid is not None:
        # What a running process has not loaded does not compute in it, however near it lies.
        chosen = {family: item for family, item in chosen.items() if item.loaded is not None}
    facts = _versions(context, chosen, problem)
    facts["loaded"] = _loaded_fact(known, problem)
    families = [*QUERIED, *sorted({item.family for item in known if item.loaded is None} - set(QUERIED))]
    for family in families:
        facts[f"{family}_copies"] = _copies([item for item in known if item.family == family])
    packages, pins = search.nvidia_packages(), search.torch_pins()
    facts["installed_packages"] = fact_or(packages, "dist-info", "no nvidia-* package is installed")
    findings = [*check_libraries(known, packages, pins), *apart]
    facts["warnings"] = fact(
        _clean([describe_library(finding) for finding in findings]), "proc-maps, dist-info, elf"
    )
    facts["cuda"] = _cuda(search, chosen.get("cudart"), facts["cudart"])
    if closed is not None:
        facts = {name: item for name, item in facts.items() if not name.endswith("_copies")}
        facts |= _not_readable(closed)
    paths = {item.label: item.path for item in known if item.loaded is not None or item in chosen.values()}
    volatile = {"paths": fact(_clean(paths), "proc-maps")} if paths else {}
    return {"libraries": Section(facts=facts, volatile=volatile)}


def _not_readable(reason: str) -> dict[str, Fact]:
    """What the files of a process would show, where they cannot be read."""
    names = [*(f"{family}_copies" for family in QUERIED), "installed_packages", "warnings", "cuda"]
    return dict.fromkeys(names, unavailable(reason, "/proc/PID/root"))


def _loaded(context: Context) -> tuple[list[LoadedLibrary], str | None, list[LibraryFinding]]:
    """What is loaded, why that could not be read, and in which libraries several processes differ."""
    if context.pid is None:
        import numpy  # noqa: F401  (so that its BLAS is there to see, whichever probe comes first)

        try:
            # The driver's library is one a machine; in this process another probe may have brought it in.
            return [item for item in loaded_libraries() if item.family != "cuda_driver"], None, []
        except proc.Unread as reason:
            return [], str(reason), []
    try:
        by_process = [loaded_libraries(context.pid)]
    except proc.Unread as reason:
        return [], str(reason), []
    for member in context.family:
        if member != context.pid:
            try:
                by_process.append(loaded_libraries(member))
            except proc.Unread:
                continue  # a worker that ended meanwhile, or of another user: the named one was readable
    found = {(item.path, item.device, item.inode): item for process in by_process for item in process}
    return [found[key] for key in sorted(found)], None, compare_processes(by_process)


def _site_folders(context: Context) -> list[str]:
    folders = locations.package_folders(context)
    if context.pid is not None:
        return folders
    # Of everything on this process's own path, such as the folder of a script.
    is_one = re.compile(r"/(site|dist)-packages$")
    return [
        folder
        for folder in folders
        if is_one.search(folder) or any(Path(folder, name).is_dir() for name in ("nvidia", "torch"))
    ]


def _versions(context: Context, chosen: dict[str, Library], problem: str | None) -> dict[str, Fact]:
    """`<family>` and `<family>_build_id` for every family of `QUERIED`."""
    facts: dict[str, Fact] = {}
    if context.pid is None:
        facts |= {family: _query_loaded(item) for family, item in chosen.items() if item.loaded is not None}
        facts |= _query_on_disk(context, {name: item for name, item in chosen.items() if item.loaded is None})
    else:
        facts |= {family: _version_from_names(item) for family, item in chosen.items()}
    for family in QUERIED:
        item = chosen.get(family)
        if item is None:
            reason = problem or (NO_COPY if context.pid is None else NOT_LOADED)
            absent = unavailable(reason, "proc-maps, ld.so.cache" if context.pid is None else "proc-maps")
            facts.setdefault(family, absent)
            facts[f"{family}_build_id"] = absent
        elif item.build_id is not None:
            facts[f"{family}_build_id"] = fact(item.build_id, "elf")
        else:
            cause = item.loaded.reason if item.loaded else None
            facts[f"{family}_build_id"] = unavailable(cause or "the file has no build-id", "elf")
    return facts


def _query_loaded(item: Library) -> Fact:
    # NOLOAD: the copy that is there or none. A version call of a library in use needs no more than this.
    answers = query_version(item.family, item.path, os.RTLD_NOLOAD | os.RTLD_LAZY)
    return _version_fact(answers, f"{VERSION_FUNCTIONS[item.family][0]} (loaded)")


def _query_on_disk(context: Context, items: dict[str, Library]) -> dict[str, Fact]:
    questions = [(family, item.path) for family, item in items.items()]
    if "cuda_driver" not in items and "cudart" in items:
        questions.append(("cuda_driver_through_cudart", items["cudart"].path))
    answers = query_versions(questions, context.stop)
    facts = {
        family.removesuffix("_through_cudart"): _version_fact(
            found, f"{VERSION_FUNCTIONS[family][0]} (not loaded)"
        )
        for family, found in answers.items()
    }
    return facts


def _version_fact(found: dict[str, str], source: str) -> Fact:
    return fact(found["version"], source) if "version" in found else unavailable(found["reason"], source)


def _version_from_names(item: Library) -> Fact:
    """From the file's name or its package, as precise as the library itself would state it."""
    package, source = item.package, f"proc-maps, dist-info ({NOT_EXECUTED})"
    if package is not None and not package.as_installed:
        return unavailable(f"the file is not the one that {package} installed", source)
    version = item.file_version or (package.version if package else None)
    if version is None and item.loaded is not None and item.loaded.deleted:
        return unavailable(f"the file it was loaded from is gone, and {NOT_EXECUTED}", source)
    if version is None:
        return unavailable(f"neither file name nor package tells it, and {NOT_EXECUTED}", source)
    if item.family == "cuda_driver":
        # The file carries the driver's version (580.159.03), which is not the CUDA version it supports.
        return unavailable(NOT_EXECUTED, source)
    return fact(".".join(version.split(".")[: PARTS.get(item.family, 3)]), source)


def _loaded_fact(known: list[Library], problem: str | None) -> Fact:
    loaded = {item.label: _described(item, item.loaded) for item in known if item.loaded is not None}
    if problem is not None or not loaded:
        return unavailable(problem or "no numeric library is loaded", "proc-maps")
    return fact(_clean(loaded), "proc-maps, elf")


def _described(item: Library, loaded: LoadedLibrary) -> dict[str, Any]:
    entry: dict[str, Any] = {"family": item.family}
    if item.build_id is not None:
        entry["build_id"] = item.build_id
    elif (digest := _sha256(loaded)) is not None:
        entry["sha256"] = digest
    else:
        entry["no_build_id"] = loaded.reason
    return entry | _package(item) | {"state": _state(loaded).value}


def _package(item: Library) -> dict[str, str]:
    if item.package is None:
        return {}
    return {"package": str(item.package) + ("" if item.package.as_installed else ", changed since")}


def _state(loaded: LoadedLibrary) -> FileState:
    """What is at its path now. Always stated: an entry without it beside one with it reads as a change."""
    if loaded.unseen:
        return FileState.UNSEEN
    if not loaded.deleted:
        return FileState.AS_LOADED
    return FileState.REPLACED if loaded.replaced else FileState.DELETED


def _sha256(library: LoadedLibrary) -> str | None:
    if library.file is None or library.size is None or library.size > MAX_HASHED_BYTES:
        return None
    state = stat_of(library.file)
    return _digest(library.file, state.st_mtime_ns, state.st_ctime_ns, state.st_ino) if state else None


@lru_cache(maxsize=64)
def _digest(path: Path, *state: int) -> str | None:
    try:
        content = root_files.read_file(Path("/"), str(path), MAX_HASHED_BYTES)
    except proc.Unread:
        return None
    return hashlib.sha256(content).hexdigest()


def _copies(items: list[Library]) -> Fact:
    if not items:
        return unavailable(NO_COPY, "site-packages, LD_LIBRARY_PATH, ld.so.cache")
    value = {}
    for item in items:
        entry: dict[str, Any] = {"loaded": item.loaded is not None}
        if item.build_id is not None:
            entry["build_id"] = item.build_id
        if item.file_version is not None:
            entry["version"] = item.file_version
        value[item.label] = entry | _package(item)
    return fact(_clean(value), "site-packages, LD_LIBRARY_PATH, ld.so.cache, proc-maps")


def _cuda(search: LibrarySearch, cudart: Library | None, version: Fact) -> Fact:
    """The CUDA that torch is built for, else the runtime that is there."""
    torch = versions_beside(search.root, search.site_folders)
    if torch is not None and (torch["cuda"].value is not None or cudart is None or cudart.loaded is None):
        return torch["cuda"]
    if cudart is None:
        return unavailable("neither torch nor a CUDA runtime was found", "cudart")
    return version


def _clean(value: Any) -> Any:
    """The same without secrets in paths, and names that are no UTF-8 visible: JSON cannot carry them."""
    if isinstance(value, str):
        return redact.text(value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in value.items()}
    return value
