"""Readers of labelled lines: collect_env of torch and vLLM, transformers env, SGLang's check_env …"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ...schemas.fingerprint import unavailable
from ..fields.known_names import ALL_VARIABLES
from ..fields.machine_fields import NUMERIC_ISA
from .paste import Paste
from .tables import package, state_torch

MAX_VALUE = 400
"""Characters of a value that is taken apart."""
MARKS = {
    "vllm.collect_env": ("vllm version",),
    "torch.collect_env": ("pytorch version",),
    "transformers.env": ("transformers version",),
    "sglang.check_env": ("sglang", "sgl_kernel"),
    "tensorrt-llm.report": (
        "tensorrt-llm version",
        "tensorrt_llm version",
        "tensorrt llm version",
        "tensorrt-llm",
    ),
    "tgi.env": ("docker label",),
}
"""Kind of report → labels that only it has, the most telling kind first: vLLM's holds that of torch."""
_NOTHING = frozenset(
    {
        "could not collect",
        "n/a",
        "none",
        "no cuda",
        "not installed",
        "not found",
        "na",
        "module not found",
        "",
    }
)
_LABEL = re.compile(r"[A-Za-z][\w ,./()?+-]{1,1000}")
_LONGEST_LABEL = 400
"""Of one that lists many GPUs; others have some thirty characters."""
_GPUS = re.compile(r"GPU (\d{1,3}(?:,\d{1,3}){0,127})(?: Compute Capability)?$")
_UUID = re.compile(r" \(UUID: \S{1,60}\)$")
_VARIABLE = re.compile(r"(?:export |declare -x )?([A-Z][A-Z0-9_]{2,60})=(.*)")


def split_label(line: str) -> tuple[str, str] | None:
    """Label and value of `- label : value`; None where the line is no such line. Linear in its length."""
    line = line[2:].lstrip() if line[:2] in ("- ", "* ") else line
    label, sign, value = line.partition(":")
    label = label.replace("`", "").strip()
    if not sign or len(label) > _LONGEST_LABEL or not _LABEL.fullmatch(label):
        return None
    return label, value.strip()


def kind_of(label: str) -> str | None:
    """The kind of report that a label, in small letters, belongs to alone."""
    return next((kind for kind, labels in MARKS.items() if label in labels), None)


def read_labelled(line: str, paste: Paste) -> bool:
    """A line with a known label."""
    found = split_label(line)
    if found is None:
        return False
    label, value = found
    if (match := _GPUS.match(label)) is not None:
        _read_gpus(match[1].split(","), label, value, paste)
        return True
    label = label.lower()
    if label == "gpu models and configuration":  # a single GPU stands on the line itself
        return _GPUS.match(value.partition(":")[0]) is None or read_labelled(value, paste)
    if label in _PACKAGES:
        name, version = label.replace("_", "-"), value.partition(" ")[0]
        if value.lower() in _NOTHING or not version[:1].isdigit():
            return value.lower() in _NOTHING
        if name == "pytorch":
            state_torch(version, paste)
            return True
        if name == "sglang":
            paste.state("engine.name", "sglang")
            paste.state("engine.version", version)
        return package(name, version, paste)
    if label in _GPU_LABELS:
        if value.lower() not in _NOTHING:
            paste.enter("gpus.name", "0", value[:MAX_VALUE])
        return True
    statements = _LABELS.get(label)
    if statements is None:
        return False
    for statement in statements:
        statement.read(value, paste)
    return True


def read_variable(line: str, paste: Paste) -> bool:
    """`NAME=value` of a variable that changes numbers."""
    match = _VARIABLE.match(line)
    if match is None or match[1] not in ALL_VARIABLES:
        return False
    paste.state(f"determinism.{match[1]}", match[2].strip().strip("\"'") or None)
    return True


def read_word_pair(line: str, paste: Paste) -> bool:
    """`- torch 2.2.2`, as people write it by hand."""
    words = line[2:].replace("==", " ").split() if line[:2] in ("- ", "* ") else []
    is_version = len(words) == 2 and re.fullmatch(r"v?\d{1,4}\.\d[\w.+-]{0,40}", words[1]) is not None
    return is_version and package(words[0].strip("`:"), words[1].lstrip("v"), paste)


def _read_gpus(numbers: list[str], label: str, value: str, paste: Paste) -> None:
    """`GPU 0,1: NVIDIA B200` and `GPU 0,1 Compute Capability: 10.0`."""
    field = "gpus.compute_capability" if label.endswith("Capability") else "gpus.name"
    value = _UUID.sub("", value[:MAX_VALUE])
    for number in numbers:
        paste.enter(field, number, value)
        if field == "gpus.name":
            paste.place.setdefault("gpus", set()).add(number)


@dataclass(frozen=True)
class _Statement:
    """A field that a labelled line states."""

    field: str
    """`section.field`"""
    pattern: str = r"(.+)"
    """Of the whole value; its group is what counts."""
    convert: Callable[[str], object] = str
    absent: str | None = None
    """The reason that `none` or `n/a` stands for; None: then the line states nothing."""
    longest: int = MAX_VALUE

    def read(self, value: str, paste: Paste) -> None:
        if self.absent is not None and value.lower() in ("none", "n/a"):
            paste.state(self.field, unavailable(self.absent, paste.source))
        elif (
            len(value) <= self.longest
            and (match := re.fullmatch(self.pattern, value))
            and match[1].lower() not in _NOTHING
        ):
            paste.state(self.field, self.convert(match[1]))


def _version(text: str) -> dict[str, str]:
    return {"version": text}


_FIRST = r"v?(\S+).*"
_PYTHON = r"(\d+\.\d+\.\d+\S*).*"
_COMPILER = r"\d+\.\d+\.\d+\S* [^\[]*\[([^\[\]]+)\].*"
_MACHINES = "x86_64|aarch64|ppc64le|s390x|riscv64"
_PLATFORM_NAME = rf"Linux-(.+)-(?:{_MACHINES})-with-glibc[\d.]+"
_TORCH = (_Statement("frameworks.torch", r"(\d\S*).*"),)
_PYTHONS = (_Statement("frameworks.python", _PYTHON), _Statement("frameworks.python_compiler", _COMPILER))
_PLATFORM = (
    _Statement("os.system", _PLATFORM_NAME, lambda _: "Linux"),
    _Statement("os.kernel", _PLATFORM_NAME),
    _Statement("os.machine", rf"Linux-.+-({_MACHINES})-with-glibc[\d.]+"),
    _Statement("os.libc", rf"Linux-.+-(?:{_MACHINES})-with-glibc([\d.]+)", "glibc {}".format),
)
_MACHINE = (_Statement("os.machine", r"(\w+).*"),)
_NO_CUDA, _NO_ROCM = "torch is built without CUDA", "torch is built without ROCm"
_DRIVER = (_Statement("driver.version", r"(\d[\d.]+).*"),)
_CUDA = (_Statement("libraries.cuda", r"v?(\d+\.\d+).*"),)
_TRTLLM = (
    _Statement("engine.name", r"(v?\d\S*).*", lambda _: "tensorrt-llm"),
    _Statement("engine.version", r"v?(\d\S*).*"),
    _Statement("kernels.tensorrt-llm", r"v?(\d\S*).*", _version),
)
_PACKAGES = frozenset(
    {"pytorch", "sglang", "sgl_kernel", "sgl-kernel", "flashinfer", "flashinfer_python", "flashinfer_cubin"}
    | {"flashinfer_jit_cache", "triton", "transformers", "torchao", "numpy", "vllm", "flash_attn", "xformers"}
    | {"tokenizers", "safetensors", "accelerate", "deep_gemm", "bitsandbytes"}
)
"""Packages whose names are labels by themselves."""
_GPU_LABELS = frozenset({"gpu type", "gpu name", "gpu"})
_LABELS: dict[str, tuple[_Statement, ...]] = {
    "pytorch version": _TORCH,
    "torch version": _TORCH,
    "pytorch version (gpu?)": _TORCH,
    "pytorch version (accelerator?)": _TORCH,
    # `Could not collect` is also printed of a build without CUDA: it states nothing.
    "cuda used to build pytorch": (_Statement("libraries.cuda", absent=_NO_CUDA),),
    "rocm used to build pytorch": (_Statement("frameworks.torch.hip", absent=_NO_ROCM),),
    "cuda runtime version": (_Statement("libraries.nvcc", r"(\d+\.\d+\.\d+).*"),),
    "hip runtime version": (_Statement("libraries.hip_runtime", r"(\d\S*).*"),),
    "miopen runtime version": (_Statement("libraries.miopen", r"(\d\S*).*"),),
    # vLLM's report calls that of the compiler so; its third number is that of a build.
    "rocm version": (
        _Statement("libraries.hipcc", r"(\d+\.\d+\.\d{4,}\S*).*"),
        _Statement("libraries.rocm", r"(?:ROCm )?(\d+\.\d+(?:\.\d{1,2})?)(?:-\d+)?"),
    ),
    "hipcc": (_Statement("libraries.hipcc", r"(?:HIP version: )?(\d\S*).*"),),
    "vllm ascend version": (_Statement("kernels.vllm-ascend", _FIRST, _version),),
    "nvcc": (_Statement("libraries.nvcc", r".{0,100}release [\d.]{1,20}, V(\d+\.\d+\.\d+).*"),),
    "cuda version": _CUDA,
    "os": (
        _Statement("os.distribution", r"(.+?)(?: \(\w+\))?"),
        _Statement("os.machine", r".+? \((\w+)\)"),
    ),
    "libc version": (_Statement("os.libc", r"glibc-(.*)", "glibc {}".format),),
    "python version": _PYTHONS,
    "python": _PYTHONS,
    "python platform": _PLATFORM,
    "platform": _PLATFORM,
    "nvidia driver version": _DRIVER,
    "cuda driver version": _DRIVER,
    "driver version": _DRIVER,
    "architecture": _MACHINE,
    "cpu architecture": _MACHINE,
    "target": (_Statement("os.machine", rf"({_MACHINES})-.*"),),
    "commit sha": (_Statement("engine.commit", r"([0-9a-f]{7,64})"),),
    "docker label": (
        _Statement("engine.name", r"(.+)", lambda _: "tgi"),
        _Statement("engine.docker_label"),
    ),
    "cpu(s)": (_Statement("cpu.logical_cpus", r"(\d+)", int),),
    "model name": (_Statement("cpu.model"),),
    "flags": (
        _Statement(
            "cpu.isa_available", convert=lambda text: sorted(set(text.split()) & NUMERIC_ISA), longest=32_768
        ),
    ),
    "vllm version": (
        _Statement("engine.name", _FIRST, lambda _: "vllm"),
        _Statement("engine.version", _FIRST),
        _Statement("kernels.vllm", _FIRST, _version),
    ),
    "tensorrt-llm version": _TRTLLM,
    "tensorrt_llm version": _TRTLLM,
    "tensorrt llm version": _TRTLLM,
    "tensorrt-llm": _TRTLLM,
    "tensorrt": (_Statement("libraries.tensorrt", r"v?(\d\S*).*"),),
    "tensorrt version": (_Statement("libraries.tensorrt", r"v?(\d\S*).*"),),
    "transformers version": (_Statement("frameworks.transformers", _FIRST, _version),),
    "safetensors version": (_Statement("frameworks.safetensors", _FIRST, _version),),
    "accelerate version": (_Statement("frameworks.accelerate", _FIRST, _version),),
    "tokenizers version": (_Statement("frameworks.tokenizers", _FIRST, _version),),
}
"""Label, in small letters and without backticks → what its value states."""
