"""The numeric shared libraries that a process has mapped: the only place that says which copy really runs.

Everything is read from `/proc`; nothing is loaded, executed or stopped.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..process import proc
from .elf import Elf, parse_elf, read_elf

FAMILIES: tuple[tuple[str, str, str], ...] = (
    # Family, the file's name (or, with a slash, its path), and why a copy of it is worth knowing.
    ("cuda_driver", r"libcuda\.so", "compiles PTX to machine code"),
    ("cudart", r"libcudart[-.]", "chooses the code that fits the device"),
    ("cublas", r"libcublas[-.]", "matrix products"),
    ("cublaslt", r"libcublasLt[-.]", "matrix products and their heuristics"),
    ("cudnn", r"libcudnn(_\w+)?[-.]", "convolution and attention"),
    ("nccl_net", r"libnccl-(net|tuner|profiler|env)", "can choose NCCL's algorithm"),
    ("nccl", r"libnccl[-.]", "order of sums over GPUs"),
    ("nvrtc", r"libnvrtc(-builtins)?[-.]", "compiles kernels while running"),
    ("nvjitlink", r"libnvJitLink[-.]", "links kernels while running"),
    ("nvshmem", r"libnvshmem_host[-.]", "order of sums over GPUs"),
    ("cusparse", r"libcusparse(Lt)?[-.]", "sparse products"),
    ("cufft", r"libcufftw?[-.]", "Fourier transforms"),
    ("curand", r"libcurand[-.]", "random numbers"),
    ("cusolver", r"libcusolver(Mg)?[-.]", "decompositions"),
    ("cutlass", r"lib(cutlass|cute)\w*[-.]", "matrix products"),
    ("tensorrt", r"lib(nvinfer|tensorrt_llm|th_common)\w*[-.]", "kernels of TensorRT"),
    ("rccl", r"librccl[-.]", "order of sums over GPUs"),
    ("hipblas", r"libhipblas(lt)?[-.]", "matrix products on AMD"),
    ("rocblas", r"librocblas[-.]", "matrix products on AMD"),
    ("miopen", r"libMIOpen[-.]", "convolution on AMD"),
    ("hip", r"lib(amdhip64|hiprtc)[-.]", "compiles and chooses code on AMD"),
    ("ascend", r"lib(ascendcl|hccl|opapi|aclnn_?\w*)[-.]", "kernels on Ascend"),
    ("level_zero", r"lib(ze_loader|sycl)[-.]", "kernels on Intel GPUs"),
    ("torch", r"lib(torch|c10)(_\w+)?[-.]", "operators and dispatch"),
    ("mkl", r"libmkl_\w+[-.]", "matrix products and vector functions on the CPU"),
    ("openblas", r"lib(scipy_)?openblas\w*[-.]", "matrix products on the CPU"),
    ("blas", r"lib(blis(-mt)?|cblas|blas|lapack|nvpl_\w+|arm_compute\w*)[-.]", "products on the CPU"),
    ("onednn", r"lib(dnnl|mkldnn)[-.]", "matrix products on the CPU"),
    ("openmp", r"lib(gomp|iomp5|omp|omp5)[-.]", "how sums are split over threads"),
    ("ggml", r"lib(ggml(-\w+)*|llama|mtmd)[-.]", "kernels of llama.cpp"),
    # Extension modules: beside or one folder below the package's own, whatever the folders above are called.
    ("flash_attn", r"/(flash_attn(_\w+)?|hopper)/([^/]+/)?[^/]+$|/flash_attn_[^/]+$", "attention kernels"),
    (
        "flashinfer",
        r"/flashinfer\w*/([^/]+/)?[^/]+$|/cached_ops/[^/]+/[^/]+$",
        "attention and sampling kernels",
    ),
    ("vllm", r"/vllm/([^/]+/)?[^/]+$", "kernels of vLLM"),
    ("sgl_kernel", r"/sgl_kernel/([^/]+/)?[^/]+$", "kernels of SGLang"),
    ("deep_gemm", r"/deep_(gemm|ep)(_cpp)?[^/]*(/[^/]+)?$", "matrix products"),
    ("triton", r"/triton/_C/[^/]+$", "compiles kernels while running"),
    (
        "kernels",
        r"/(bitsandbytes|xformers|causal_conv1d|selective_scan|transformer_engine)\w*[^/]*(/[^/]+)?$",
        "kernels",
    ),
    ("llama_cpp", r"/(xllamacpp|llama_cpp)/([^/]+/)?[^/]+$", "llama.cpp inside Python"),
    ("libc", r"libc\.so\.6|ld-musl-", "functions that compilers call"),
    ("libm", r"libm(vec)?\.so", "exp, tanh and the like on the CPU"),
    ("libstdcxx", r"lib(stdc\+\+|c\+\+)\.so", "functions that compilers call"),
)


def _any_of(patterns: list[tuple[str, str]]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{family}>{pattern})" for family, pattern in patterns))


_FAMILY_OF_NAME = _any_of([(family, pattern) for family, pattern, _ in FAMILIES if "/" not in pattern])
_FAMILY_OF_PATH = _any_of([(family, pattern) for family, pattern, _ in FAMILIES if "/" in pattern])
_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+) +(/.*)$", re.MULTILINE
)
_SHARED = re.compile(r"\.so(\.\d+)*$")
_DELETED = " (deleted)"
MAX_MAPS_BYTES = 64 << 20
"""A process of 100,000 mappings has maps of about 12 MB."""


class UnreadableProcess(Exception):
    """The maps of a process cannot be read; the text says why, and how to mend it where one can."""


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
    """Of the mapped file in bytes; None where it could not be looked at."""
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
        UnreadableProcess: No permission, no such process, it ended meanwhile, or no `/proc`.
    """
    found = (
        _library(pid, mapping, family)
        for mapping in mappings(pid)
        if (family := family_of(mapping.path)) is not None
    )
    return sorted(found, key=lambda library: (library.path, library.inode))


def family_of(path: str) -> str | None:
    """The family of a shared library by its name and path; None for what computes nothing."""
    name = path.rpartition("/")[2].removeprefix("memfd:")
    if _SHARED.search(name) is None:
        return None
    match = _FAMILY_OF_NAME.match(name) or _FAMILY_OF_PATH.search(path)
    return match.lastgroup if match else None


def mappings(pid: int | None = None) -> list[Mapping]:
    """Every file that a process has mapped, numeric or not.

    Raises:
        UnreadableProcess: As `loaded_libraries`.
    """
    ranges: dict[tuple[bytes, bytes, bytes], list[tuple[int, int, int]]] = defaultdict(list)
    for line in _LINE.finditer(_maps(pid)):
        first, end, offset, device, inode, path = line.groups()
        ranges[path, device, inode].append((int(first, 16), int(end, 16), int(offset, 16)))
    found = []
    for (path, device, inode), where in ranges.items():
        # The kernel writes a line break in a name as \012 and leaves everything else as it is.
        name = path.replace(rb"\012", b"\n").decode("utf-8", "surrogateescape")
        deleted = name.endswith(_DELETED)
        found.append(Mapping(name.removesuffix(_DELETED), device.decode(), int(inode), deleted, tuple(where)))
    return found


def _maps(pid: int | None) -> bytes:
    path = _proc(pid) / "maps"
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_MAPS_BYTES)
    except PermissionError:
        raise UnreadableProcess(proc.NO_PERMISSION) from None
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/maps").exists():
            raise UnreadableProcess("this system has no /proc: libraries are read on Linux only") from None
        raise UnreadableProcess("there is no such process (any more)") from None
    except OSError as error:
        raise UnreadableProcess(f"{path} could not be read: {error.strerror}") from None
    if not content:
        raise UnreadableProcess("it has no memory of its own: a kernel thread, or it has ended")
    return content


def _proc(pid: int | None) -> Path:
    return Path("/proc") / ("self" if pid is None else str(pid))


def _library(pid: int | None, mapping: Mapping, family: str) -> LoadedLibrary:
    now = _state(_place(pid, mapping.path))
    if mapping.deleted and now is None and _state(_place(pid, mapping.path + _DELETED)) is not None:
        # A file whose name really ends so.
        mapping = replace(mapping, path=mapping.path + _DELETED, deleted=False)
        now = _state(_place(pid, mapping.path))
    link = _mapped_file(pid, mapping)
    mapped = _state(link)
    place = _place(pid, mapping.path)
    if now is None and pid is not None and not mapping.deleted:
        # Of a process that changed its root, the maps show the path from the reader's root.
        outside = _state(Path(mapping.path))
        if outside is not None and _is_mapped(mapping, mapped, outside):
            place, now = Path(mapping.path), outside
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
    file = place if now is not None and not gone else link if mapped is not None else None
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
        os.stat(_place(pid, path))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError):
        return False
    if pid is None:
        return True
    try:
        # With a root of its own inside rip's, or one that rip cannot compare, the path may start elsewhere.
        return os.path.samestat(os.stat(proc.root_of(pid)), os.stat("/"))
    except OSError:
        return False


def _place(pid: int | None, path: str) -> Path:
    if pid is None:
        return Path(path)
    try:
        return proc.inside(proc.root_of(pid), path)
    except proc.Unread:
        return proc.root_of(pid) / path.lstrip("/")  # it is not there, which looking at it will say


def _mapped_file(pid: int | None, mapping: Mapping) -> Path:
    """The kernel's own link to the mapped file, which holds whatever happens to its name.

    Following it takes CAP_CHECKPOINT_RESTORE; without, it is as good as absent.
    """
    first, end, _ = mapping.ranges[0]
    return _proc(pid) / "map_files" / f"{first:x}-{end:x}"


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
        memory = os.open(_proc(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
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
