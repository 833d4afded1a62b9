"""The copies of GPU libraries that lie on disk, in the order in which torch's wheels look for them.

It knows where the loader looks and which package owns a file. It never loads a library.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..process import proc, root_files
from .library_file import Elf, family_of, read_elf

GPU_FAMILIES = frozenset(
    {"cuda_driver", "cudart", "cublas", "cublaslt", "cudnn", "nccl", "nvrtc", "nvjitlink", "nvshmem"}
    | {"cusparse", "cufft", "curand", "cusolver", "rccl", "hipblas", "rocblas", "miopen"}
)
"""Of these, several copies on one machine are common. The rest comes with the program that loads it."""
_WHEEL_FOLDERS = ("nvidia/*/lib", "torch/lib")
"""torch's CUDA wheels carry an RPATH to these, in this order; an RPATH goes before LD_LIBRARY_PATH."""
_LOADER_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER, _CACHE_ENTRY = 48, struct.Struct("<iIIIQ")
_OUR_BITS = struct.calcsize("P") * 8
_MAX_CACHE_BYTES = 16 << 20
_MAX_RECORD_BYTES = 64 << 20
_MAX_METADATA_BYTES = 4 << 20
_VERSION_IN_NAME = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
_SITE = re.compile(r"^(.*/)?(?:site|dist)-packages$")
_PIN = re.compile(r"^Requires-Dist: *(nvidia-[\w-]+) *\(?== *([\w.+!]+)", re.MULTILINE)


@dataclass(frozen=True)
class Copy:
    """One copy of one library on disk."""

    label: str
    """Where it lies, without what differs between hosts: `site-packages/nvidia/nccl/lib/libnccl.so.2`."""
    family: str
    path: str
    """As the process sees it, links followed."""
    file: Path
    """The same as this process reaches it."""
    state: os.stat_result
    elf: Elf
    package: Package | None = None


@dataclass(frozen=True)
class Package:
    """The installed distribution that a file belongs to."""

    name: str
    version: str
    as_installed: bool
    """The file still has the size that was recorded when it was installed."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class LibrarySearch:
    """Where a process finds libraries."""

    root: Path
    site_folders: tuple[str, ...]
    """Its `site-packages`, first one first."""
    environ: Mapping[str, str]
    _records: dict[str, dict[str, tuple[str, str, int | None]]] = field(default_factory=dict, repr=False)

    def copies(self) -> list[Copy]:
        """Every copy of the libraries of `GPU_FAMILIES`, first what torch's wheels would load."""
        found: dict[tuple[int, int], Copy] = {}
        for where, path in self._candidates():
            family = family_of(path)
            if family in GPU_FAMILIES:
                copy = self._copy(where, path, family)
                if copy is not None:
                    found.setdefault((copy.state.st_dev, copy.state.st_ino), copy)
        labels = own_labels([copy.label for copy in found.values()])
        return [replace(copy, label=label) for copy, label in zip(found.values(), labels, strict=True)]

    def label_of(self, path: str, soname: str | None = None) -> str:
        """The label of a file, from its path; outside of `site-packages` by its SONAME, if it has one."""
        for folder in self.site_folders:
            if path.startswith(f"{folder}/"):
                return f"site-packages/{path[len(folder) + 1 :]}"
        before, found, after = path.rpartition("-packages/")
        if found and before.endswith(("/site", "/dist")):
            return f"site-packages/{after}"
        name = soname or path.rpartition("/")[2]
        if path.startswith(("/lib", "/usr/lib", "/usr/local/cuda", "/usr/local/lib", "/usr/local/nvidia")):
            return f"system/{name}"
        return f"elsewhere/{name}"

    def package_of(self, path: str, size: int | None) -> Package | None:
        """The distribution whose RECORD lists the file, or None."""
        for folder in self.site_folders:
            if path.startswith(f"{folder}/"):
                relative = path[len(folder) + 1 :]
                owner = self._owners(folder, relative.partition("/")[0]).get(relative)
                if owner is not None:
                    name, version, recorded = owner
                    return Package(name, version, recorded is None or size is None or recorded == size)
        return None

    def torch_pins(self) -> dict[str, str]:
        """The exact versions of `nvidia-*` packages that the installed torch asks for: name → version."""
        for path in self._all_dist_infos():
            if path.name.startswith("torch-"):
                text = _text(path / "METADATA", _MAX_METADATA_BYTES)
                return {name.lower(): version for name, version in _PIN.findall(text)}
        return {}

    def nvidia_packages(self) -> dict[str, str]:
        """The installed `nvidia-*` packages: name → version."""
        found: dict[str, str] = {}
        for path in self._all_dist_infos():
            if path.name.startswith("nvidia_"):
                name, version = _named(path)
                found.setdefault(name, version)
        return found

    def torch_needs(self) -> frozenset[str]:
        """The SONAMEs that torch's CUDA part was linked against; empty without one."""
        for folder in self.site_folders:
            for name in ("libtorch_cuda.so", "libtorch_hip.so"):
                location = self._reach(f"{folder}/torch/lib/{name}")
                if location is not None and (found := read_elf(location)).needed:
                    return frozenset(found.needed)
        return frozenset()

    def _candidates(self) -> Iterable[tuple[str, str]]:
        for folder in self.site_folders:
            location = self._reach(folder)
            if location is None:
                continue
            for pattern in _WHEEL_FOLDERS:
                for found in sorted(location.glob(pattern)):
                    relative = found.relative_to(location)
                    for name in _names(found):
                        yield "site-packages", f"{folder}/{relative}/{name}"
        for folder in self.environ.get("LD_LIBRARY_PATH", "").split(":"):
            location = self._reach(folder) if folder.startswith("/") else None
            for name in _names(location) if location is not None else ():
                yield "LD_LIBRARY_PATH", f"{folder.rstrip('/')}/{name}"
        for path in self._loader_cache():
            yield "system", path

    def _loader_cache(self) -> list[str]:
        """The files that the loader finds through its cache; glibc only."""
        try:
            content = root_files.read_file(self.root, _LOADER_CACHE, _MAX_CACHE_BYTES)
        except proc.Unread:
            return []
        start = content.find(_CACHE_MAGIC)  # an older format may stand before it
        if start < 0 or len(content) < start + _CACHE_HEADER:
            return []
        content = content[start:]
        count = struct.unpack_from("<I", content, len(_CACHE_MAGIC))[0]
        found = []
        for location in range(
            _CACHE_HEADER, min(_CACHE_HEADER + count * _CACHE_ENTRY.size, len(content)), _CACHE_ENTRY.size
        ):
            if location + _CACHE_ENTRY.size > len(content):
                break
            at = _CACHE_ENTRY.unpack_from(content, location)[2]
            path = content[at : content.find(b"\0", at)].decode("utf-8", "surrogateescape")
            if path.startswith("/"):
                found.append(path)
        return found

    def _copy(self, where: str, path: str, family: str) -> Copy | None:
        location = self._reach(path)
        if location is None:
            return None
        try:
            real = location.resolve(strict=True) if self.root == Path("/") else location
            state = real.stat()
        except (OSError, RuntimeError):
            return None
        seen = str(real) if self.root == Path("/") else f"/{real.relative_to(self.root)}"
        elf = read_elf(real)
        if elf.bits != _OUR_BITS:
            return None  # of another width, or no library: text that a linker reads, a damaged file
        # Of the several names of one file, a new version or a -dev package leaves the SONAME alone.
        label = self.label_of(path) if where == "site-packages" else f"{where}/{elf.soname or real.name}"
        return Copy(label, family, seen, real, state, elf, self.package_of(path, state.st_size))

    def _reach(self, path: str) -> Path | None:
        try:
            location = root_files.locate(self.root, path)
            return location if location.exists() else None
        except (proc.Unread, OSError, ValueError):
            return None

    def _all_dist_infos(self) -> Iterator[Path]:
        return (path for folder in self.site_folders for path in self._dist_infos(folder))

    def _dist_infos(self, folder: str) -> list[Path]:
        location = self._reach(folder)
        # Names only: parsing the metadata of hundreds of packages takes longer than everything else here.
        if location is None:
            return []
        return [location / name for name in _names(location) if name.endswith(".dist-info")]

    def _owners(self, folder: str, top: str) -> dict[str, tuple[str, str, int | None]]:
        """Recorded file → (package, version, size) for the packages that may own files of a top folder."""
        key = f"{folder}/{top}"
        if key not in self._records:
            wanted = re.sub(r"[-_.]+", "_", top.partition(".")[0]).lower()
            owners: dict[str, tuple[str, str, int | None]] = {}
            for path in self._dist_infos(folder):
                if re.sub(r"[-_.]+", "_", path.name).lower().startswith(wanted):
                    name, version = _named(path)
                    for line in _text(path / "RECORD", _MAX_RECORD_BYTES).splitlines():
                        if ".so" in line:
                            file, _, rest = line.partition(",")
                            size = rest.rpartition(",")[2]
                            owners[file] = (name, version, int(size) if size.isdecimal() else None)
            self._records[key] = owners
        return self._records[key]


def _text(path: Path, limit: int) -> str:
    return root_files.read_text(Path("/"), str(path), limit)


def _named(dist_info: Path) -> tuple[str, str]:
    name, _, version = dist_info.name.removesuffix(".dist-info").partition("-")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def version_in_name(path: str) -> str | None:
    """As a file's full name has it: `2.28.3` of `libnccl.so.2.28.3`."""
    match = _VERSION_IN_NAME.search(path)
    return match[1] if match else None


def own_labels(labels: list[str]) -> list[str]:
    """The same, with a number behind the second and later ones of equal text."""
    seen: Counter[str] = Counter()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(label if seen[label] == 1 else f"{label}#{seen[label]}")
    return found
