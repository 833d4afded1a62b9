"""What the file of a native library says: its family by its name, its build by its ELF headers.

A build-id is made from the contents when a library is linked, so it distinguishes two builds of one version.
Files may be truncated or hostile: none is loaded or run, reading is bounded, every failure is a reason.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, cast

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
_SHARED = re.compile(r"\.so(\.\d+)*$")


def family_of(path: str) -> str | None:
    """The family of a shared library by its name and path; None for what computes nothing."""
    name = path.rpartition("/")[2].removeprefix("memfd:")
    if _SHARED.search(name) is None:
        return None
    match = _FAMILY_OF_NAME.match(name) or _FAMILY_OF_PATH.search(path)
    return match.lastgroup if match else None


MAX_READS = 10_000
"""A large library takes about 700 reads; a file whose tables never end is given up here."""
MAX_BYTES = 4 << 20
"""In all and in one read. Notes and dynamic section of the largest CUDA libraries are some kilobytes."""
MAX_NAME = 255
"""Longest name that is kept: the longest file name."""
_EI_CLASS, _64_BIT = 4, 2
# Where a 64-bit and a 32-bit header say where the sections are: offset, number, index of their names.
_SECTION_FIELDS_64 = (slice(0x28, 0x30), slice(0x3C, 0x40))
_SECTION_FIELDS_32 = (slice(0x20, 0x24), slice(0x30, 0x34))

_known: dict[tuple[int, ...], Elf] = {}
"""What was read in this process: the ranks of a server map the same files, a millisecond each."""

Read = Callable[[int, int], bytes]
"""(offset, size) → at most that many bytes of the file."""


@dataclass(frozen=True)
class Elf:
    """What was found in one file."""

    build_id: str | None = None
    """Hex; None where there is none, or where `reason` says why it could not be read."""
    soname: str | None = None
    needed: tuple[str, ...] = ()
    """SONAMEs of the libraries that the loader must find for it."""
    bits: int | None = None
    """32 or 64; a process loads only files of its own width."""
    reason: str | None = None
    """Why the file could not be read to the end, in words; None: it was."""


def read_elf(path: str | os.PathLike[str]) -> Elf:
    """What the file at `path` says. Never raises: a FIFO, a text file or no file at all is a reason."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return Elf(reason=error.strerror or type(error).__name__)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return Elf(reason="not a regular file")
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        if key not in _known:
            _known[key] = parse_elf(lambda offset, size: os.pread(descriptor, size, offset), state.st_size)
        return _known[key]
    except OSError as error:
        return Elf(reason=error.strerror or type(error).__name__)
    finally:
        os.close(descriptor)


def parse_elf(read: Read, size: int) -> Elf:
    """What an ELF image says that is reached through `read`: a file, or the memory it is mapped to.

    Args:
        read: Offsets are those of the file.
        size: Of the file, in bytes.
    """
    from elftools.elf.elffile import ELFFile

    build_id, soname, needed, bits = None, None, [], None
    try:
        image = ELFFile(cast(IO[bytes], _Bounded(read, size)))
        bits = image.elfclass
        for segment in image.iter_segments():
            if segment["p_type"] == "PT_NOTE" and build_id is None:
                notes = (note for note in segment.iter_notes() if note["n_type"] == "NT_GNU_BUILD_ID")
                build_id = next((str(note["n_desc"])[: 2 * MAX_NAME] for note in notes), None)
            elif segment["p_type"] == "PT_DYNAMIC":
                for tag in segment.iter_tags():
                    if tag.entry.d_tag == "DT_SONAME":
                        soname = _name(tag.soname)
                    elif tag.entry.d_tag == "DT_NEEDED":
                        needed.append(_name(tag.needed))
    except Exception as error:  # of a damaged file the parser may raise anything; that it did is the finding
        return Elf(build_id, soname, tuple(needed), bits, _describe(error))
    return Elf(build_id, soname, tuple(needed), bits)


def _name(text: str) -> str:
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:MAX_NAME]
    )


def _describe(error: Exception) -> str:
    if isinstance(error, _TooMuch):
        return str(error)
    return "not a whole ELF file"


class _TooMuch(Exception):
    """The file makes its reader read without end."""


class _Bounded:
    """An ELF image as a stream that ends after a bounded amount of reading.

    It shows a header without a section table: what we want is in the segments, which is also all that the
    loader looks at; a stripped file has no sections, a mapped one does not show them, and a hostile one
    can state four billion of them.
    """

    def __init__(self, read: Read, size: int) -> None:
        self._read, self._size, self._at = read, size, 0
        self._reads = self._bytes = 0
        head = bytearray(read(0, 64))
        fields = (
            _SECTION_FIELDS_64 if head[_EI_CLASS : _EI_CLASS + 1] == bytes([_64_BIT]) else _SECTION_FIELDS_32
        )
        for field in fields:
            head[field] = bytes(len(head[field]))
        self._head = bytes(head)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        self._reads += 1
        self._bytes += max(size, 0)
        if self._reads > MAX_READS or self._bytes > MAX_BYTES or not 0 <= self._at < 1 << 63:
            raise _TooMuch("its tables have no end")
        if self._at < len(self._head):
            whole = self._head + self._read(len(self._head), max(0, self._at + size - len(self._head)))
            found = whole[self._at : self._at + size]
        else:
            found = self._read(self._at, size)
        self._at += len(found)
        return found
