"""Libraries that a process has loaded and copies that lie on disk, as one list, and which copy counts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

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
