"""torch: which build is installed, and, where it is already loaded, its precision and determinism flags.

It never imports torch: that takes more than a second and would show a fresh process's flags, not those of
the process that ran the model.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import sys
from typing import TYPE_CHECKING, Any

from ...schemas.fingerprint import TORCH_NOT_LOADED, Fact, Section, fact, fact_or, unavailable
from ..process import proc, python_packages, root_files
from .cpu import torch_loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from .context import Context

VERSION_FILE = "torch/version.py"
_MAX_VERSION_BYTES = 65536
_VERSION_LINE = re.compile(
    r"^(git_version|cuda|hip)\b[^=\n]*=\s*(?:'([^'\n]*)'|\"([^\"\n]*)\"|None)\s*$", re.MULTILINE
)


def _sdp_kernels(torch: Any) -> dict[str, bool]:
    cuda = torch.backends.cuda
    return {
        "cudnn": cuda.cudnn_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "mem_efficient": cuda.mem_efficient_sdp_enabled(),
    }


FLAGS: dict[str, Callable[[Any], Any]] = {
    "torch.default_dtype": lambda torch: str(torch.get_default_dtype()).removeprefix("torch."),
    "torch.float32_matmul_precision": lambda torch: torch.get_float32_matmul_precision(),
    "torch.deterministic_algorithms": lambda torch: torch.are_deterministic_algorithms_enabled(),
    "torch.deterministic_warn_only": lambda torch: torch.is_deterministic_algorithms_warn_only_enabled(),
    "torch.fill_uninitialized_memory": lambda torch: torch.utils.deterministic.fill_uninitialized_memory,
    "torch.cuda.matmul.allow_tf32": lambda torch: torch.backends.cuda.matmul.allow_tf32,
    "torch.cuda.matmul.bf16_reduced_precision_reduction": lambda torch: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "torch.cuda.matmul.fp16_reduced_precision_reduction": lambda torch: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "torch.cuda.sdp_kernels": _sdp_kernels,
    "torch.cudnn.allow_tf32": lambda torch: torch.backends.cudnn.allow_tf32,
    "torch.cudnn.benchmark": lambda torch: torch.backends.cudnn.benchmark,
    "torch.cudnn.deterministic": lambda torch: torch.backends.cudnn.deterministic,
    "torch.mkldnn.available": lambda torch: torch.backends.mkldnn.is_available(),
    "torch.mkldnn.enabled": lambda torch: torch.backends.mkldnn.enabled,
    "torch.mkldnn.deterministic": lambda torch: torch.backends.mkldnn.deterministic,
    "torch.mkldnn.matmul_precision": lambda torch: torch.backends.mkldnn.matmul.fp32_precision,
    "torch.mkl.available": lambda torch: torch.backends.mkl.is_available(),
    "torch.blas": lambda torch: _build_setting(torch, r"BLAS_INFO=(\w+)"),
    "torch.mkl.version": lambda torch: _build_setting(torch, r"Math Kernel Library Version (\S+)"),
    "torch.mkldnn.version": lambda torch: _build_setting(torch, r"MKL-DNN (v\S+)"),
    "torch.compiler": lambda torch: _build_setting(torch, r"(?:-\s+)((?:GCC|clang|MSVC)\s\S+)"),
}
CPU_FLAGS: dict[str, Callable[[Any], Any]] = {
    "isa_in_use": lambda torch: torch.backends.cpu.get_cpu_capability(),
    "torch_threads": lambda torch: torch.get_num_threads(),
    "torch_interop_threads": lambda torch: torch.get_num_interop_threads(),
}


def probe(context: Context) -> dict[str, Section]:
    """Torch's part of the sections `frameworks`, `cpu` and `libraries`."""
    build = _build_of_loaded() if torch_loaded() else _build_on_disk()
    frameworks = {**build, "torch.build": python_packages.read_build("torch"), **_flags(FLAGS)}
    cuda = frameworks.pop("cuda")
    return {
        "frameworks": Section(facts=frameworks),
        "cpu": Section(facts=_flags(CPU_FLAGS)),
        "libraries": Section(facts={"cuda": cuda}),
    }


def _flags(readers: dict[str, Callable[[Any], Any]]) -> dict[str, Fact]:
    if not torch_loaded():
        return {name: unavailable(TORCH_NOT_LOADED, "torch") for name in readers}
    return {name: _flag(read) for name, read in readers.items()}


def _flag(read: Callable[[Any], Any]) -> Fact:
    try:
        value = read(sys.modules["torch"])
    except Exception as error:  # a flag that this release does not have, or refuses to read, is a finding
        return unavailable(f"torch did not tell: {type(error).__name__}", "torch")
    return unavailable("torch does not state it", "torch") if value is None else fact(value, "torch")


def _build_setting(torch: Any, pattern: str) -> str | None:
    match = re.search(pattern, torch.__config__.show())
    return match[1] if match else None


def _build_of_loaded() -> dict[str, Fact]:
    torch: Any = sys.modules["torch"]
    return {
        "torch": fact(str(torch.__version__), "torch"),
        **_named_versions(
            {name: getattr(torch.version, name, None) for name in ("git_version", "cuda", "hip")}, "torch"
        ),
    }


def _build_on_disk() -> dict[str, Fact]:
    installed = python_packages.read_version("torch")
    if installed.unavailable is not None:
        absent = unavailable("torch is not installed", python_packages.SOURCE)
        return {"torch": absent, "torch.git_version": absent, "torch.hip": absent, "cuda": absent}
    try:
        text = str(importlib.metadata.distribution("torch").locate_file(VERSION_FILE))
        with open(text, encoding="utf-8") as file:
            return {"torch": installed, **versions_in(file.read())}
    except OSError:
        unread = unavailable(f"{VERSION_FILE} could not be read", VERSION_FILE)
        return {"torch": installed, "torch.git_version": unread, "torch.hip": unread, "cuda": unread}


def versions_in(text: str) -> dict[str, Fact]:
    """`torch.git_version`, `torch.hip` and `cuda` as a torch/version.py names them."""
    found = {match[1]: match[2] or match[3] for match in _VERSION_LINE.finditer(text)}
    return _named_versions(found, VERSION_FILE)


def versions_beside(root: Path, folders: Iterable[str]) -> dict[str, Fact] | None:
    """As `versions_in`, of the first package folder that has torch; None where none has.

    Args:
        root: View of the file system of the process that would import it.
        folders: Package folders as that process sees them.
    """
    for folder in folders:
        with contextlib.suppress(proc.Unread):
            content = root_files.read_file(root, f"{folder}/{VERSION_FILE}", _MAX_VERSION_BYTES)
            return versions_in(content.decode("utf-8", "replace"))
    return None


def _named_versions(found: dict[str, str | None], source: str) -> dict[str, Fact]:
    reasons = {"git_version": "torch does not name its commit", "cuda": "torch is built without CUDA"}
    reasons["hip"] = "torch is built without ROCm"
    return {
        ("cuda" if name == "cuda" else f"torch.{name}"): fact_or(found.get(name), source, reason)
        for name, reason in reasons.items()
    }
