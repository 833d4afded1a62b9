"""Facts from text that people paste into bug reports.

It reads the output of torch.utils.collect_env, vllm collect-env and transformers env. Only lines that
state a field are taken; of the others only the number is kept. A drift compares only what a text tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ... import __version__
from ...schemas.fingerprint import (
    FLAT_KEYS,
    NO_TIME,
    NOT_PASTED,
    NOT_SET,
    PASTED,
    Fact,
    Fingerprint,
    Section,
    fact,
    unavailable,
)
from ..fields.machine_fields import NUMERIC_ISA
from ..fields.packages import FRAMEWORK_PACKAGES, KERNEL_PACKAGES
from ..fields.variables import ALL_VARIABLES
from ..untrusted import redact

MAX_BYTES = 4 << 20
"""Longest text that is looked at; what people paste has some ten thousand characters."""

_LABELLED = re.compile(r"^(?:[-*]\s+)?([^:=]{2,60}?)\s*:\s+(\S.*)$")
_PACKAGE = re.compile(r"^\[(?:pip3?|conda)\]\s+([A-Za-z0-9_.\-]+?)(?:==|\s+)(\d\S*)")
_VARIABLE = re.compile(r"^([A-Z][A-Z0-9_]{2,60})=(.*)$")
_GPU = re.compile(r"^GPU (\d+): (.+?)(?: \(UUID: \S+\))?$")
_PLATFORM = re.compile(r"^Linux-(.+)-(x86_64|aarch64|ppc64le|s390x|riscv64)-with-glibc([\d.]+)$")
_PYTHON = re.compile(r"^(\d+\.\d+\.\d+\S*)(?: [^\[]*\[([^\[\]]+)\])?")
_NOTHING = frozenset({"could not collect", "n/a", "none", "no cuda", "not installed", "not found", "na", ""})
# vLLM prints every variable that begins so, and all of its own: one that is missing there was not set.
_REPORTED = ("TORCH", "NCCL", "CUDA", "CUBLAS", "OMP_", "MKL_", "NVIDIA", "VLLM_")

Facts = Iterator[tuple[str, str, object]]
"""(section, field, value); a `Fact` where the value is not simply one."""


@dataclass
class _Paste:
    """What was found so far."""

    source: str
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    tables: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)
    not_understood: int = 0

    def state(self, found: Iterable[tuple[str, str, object]]) -> None:
        """Keep facts; the first statement of a field counts."""
        for section, name, value in found:
            known = value if isinstance(value, Fact) else fact(redact.value(value), self.source)
            self.facts.setdefault((section, name), known)


def from_text(content: bytes) -> Fingerprint | None:
    """The fingerprint that a pasted text amounts to, or None where it is not one of the known kinds.

    Args:
        content: A file's bytes: the text alone, or a bug report with the text in it.
    """
    if len(content) > MAX_BYTES or content.lstrip()[:1] == b"{":
        return None
    lines = [
        line.strip().lstrip("> ").rstrip("\\") for line in content.decode("utf-8", "replace").splitlines()
    ]
    kind = _kind(lines)
    if kind is None:
        return None
    paste = _Paste(PASTED + kind)
    for line in filter(None, lines):
        _read(line, paste)
    if not paste.facts and not paste.tables:
        return None
    if kind == "vllm.collect_env" and "Environment Variables" in lines:
        _absent_variables(paste)
    return _built(paste)


def _kind(lines: list[str]) -> str | None:
    text = "\n".join(lines)
    if re.search(r"^vLLM Version\s*:", text, re.MULTILINE):
        return "vllm.collect_env"
    if re.search(r"^PyTorch version\s*:", text, re.MULTILINE):
        return "torch.collect_env"
    if re.search(r"^[-*] `?transformers`? version\s*:", text, re.MULTILINE):
        return "transformers.env"
    return None


def _read(line: str, paste: _Paste) -> None:
    if match := _PACKAGE.match(line):
        _package(match[1].lower().replace("_", "-").replace(".", "-"), match[2], paste)
    elif match := _GPU.match(line):
        paste.tables.setdefault(("gpus", "name"), {})[match[1]] = match[2]
    elif (match := _VARIABLE.match(line)) and match[1] in ALL_VARIABLES:
        paste.state([("determinism", match[1], match[2])])
    elif match := _LABELLED.match(line):
        reader = _READERS.get(match[1].strip("` ").replace("`", "").lower())
        if reader is None:
            paste.not_understood += 1
        else:
            paste.state(reader(match[2], paste.source))
    else:
        paste.not_understood += 1


def _package(name: str, version: str, paste: _Paste) -> None:
    if name == "torch":
        paste.state([("frameworks", "torch", version)])
    elif name in FRAMEWORK_PACKAGES:
        paste.tables.setdefault(("frameworks", name), {"version": version})
    elif name in KERNEL_PACKAGES:
        paste.tables.setdefault(("kernels", name), {"version": version})
    elif name.startswith("nvidia-"):
        paste.tables.setdefault(("libraries", "installed_packages"), {}).setdefault(name, version)
    else:
        paste.not_understood += 1


def _absent_variables(paste: _Paste) -> None:
    paste.state(
        ("determinism", name, unavailable(NOT_SET, paste.source))
        for name in ALL_VARIABLES
        if name.startswith(_REPORTED)
    )


def _built(paste: _Paste) -> Fingerprint:
    paste.state((*key, table) for key, table in paste.tables.items())
    paste.state(_gpu_count(paste))
    hidden = unavailable(NOT_PASTED, paste.source)
    paste.state((*key, hidden) for key in FLAT_KEYS.values())
    sections: dict[str, Section] = {}
    for (section, name), reading in paste.facts.items():
        known = sections.get(section, Section())
        sections[section] = Section(facts={**known.facts, name: reading})
    lines = fact(paste.not_understood, paste.source)
    process = sections.get("process", Section())
    sections["process"] = Section(facts=process.facts, volatile={"lines_not_understood": lines})
    return Fingerprint.build(__version__, NO_TIME, sections)


def _gpu_count(paste: _Paste) -> Facts:
    names = paste.facts.get(("gpus", "name"))
    if names is not None:
        yield "gpus", "installed_count", len(names.value)


def _text(section: str, name: str) -> Callable[[str, str], Facts]:
    """A reader of a value that stands as it is."""

    def read(value: str, source: str) -> Facts:
        if value.lower() not in _NOTHING:
            yield section, name, value

    return read


def _package_line(section: str, name: str) -> Callable[[str, str], Facts]:
    def read(value: str, source: str) -> Facts:
        if value.lower() not in _NOTHING:
            yield section, name, {"version": value.split()[0]}

    return read


def _torch(value: str, source: str) -> Facts:
    version = value.split()[0]
    if version.lower() not in _NOTHING:
        yield "frameworks", "torch", version


def _toolkit(value: str, source: str) -> Facts:
    """`Could not collect` is also said of a build without CUDA: it tells nothing."""
    if value.lower() in ("none", "n/a"):
        yield "libraries", "cuda", unavailable("torch is built without CUDA", source)
    elif value.lower() not in _NOTHING:
        yield "libraries", "cuda", value


def _hip(value: str, source: str) -> Facts:
    if value.lower() in ("none", "n/a"):
        yield "frameworks", "torch.hip", unavailable("torch is built without ROCm", source)
    elif value.lower() not in _NOTHING:
        yield "frameworks", "torch.hip", value


def _system(value: str, source: str) -> Facts:
    match = re.fullmatch(r"(.+?) \((\w+)\)", value)
    yield "os", "distribution", match[1] if match else value
    if match:
        yield "os", "machine", match[2]


def _libc(value: str, source: str) -> Facts:
    if value.startswith("glibc-"):
        yield "os", "libc", value.replace("-", " ", 1)


def _python(value: str, source: str) -> Facts:
    if match := _PYTHON.match(value):
        yield "frameworks", "python", match[1]
        if match[2]:
            yield "frameworks", "python_compiler", match[2]


def _platform(value: str, source: str) -> Facts:
    if match := _PLATFORM.match(value):
        yield "os", "system", "Linux"
        yield "os", "kernel", match[1]
        yield "os", "machine", match[2]
        yield "os", "libc", f"glibc {match[3]}"


def _one_gpu(value: str, source: str) -> Facts:
    """`GPU models and configuration` of a single GPU stands on the line itself."""
    if match := _GPU.match(value):
        yield "gpus", "name", {match[1]: match[2]}


def _logical_cpus(value: str, source: str) -> Facts:
    if value.isdecimal():
        yield "cpu", "logical_cpus", int(value)


def _flags(value: str, source: str) -> Facts:
    yield "cpu", "isa_available", sorted(set(value.split()) & NUMERIC_ISA)


def _vllm(value: str, source: str) -> Facts:
    if value.lower() not in _NOTHING:
        version = value.split()[0]
        yield "engine", "name", "vllm"
        yield "engine", "version", version
        yield "kernels", "vllm", {"version": version}


_READERS: dict[str, Callable[[str, str], Facts]] = {
    "pytorch version": _torch,
    "pytorch version (gpu?)": _torch,
    "pytorch version (accelerator?)": _torch,
    "cuda used to build pytorch": _toolkit,
    "rocm used to build pytorch": _hip,
    "os": _system,
    "libc version": _libc,
    "python version": _python,
    "python platform": _platform,
    "platform": _platform,
    "gpu models and configuration": _one_gpu,
    "nvidia driver version": _text("driver", "version"),
    "architecture": _text("os", "machine"),
    "cpu(s)": _logical_cpus,
    "model name": _text("cpu", "model"),
    "flags": _flags,
    "vllm version": _vllm,
    "transformers version": _package_line("frameworks", "transformers"),
    "safetensors version": _package_line("frameworks", "safetensors"),
    "accelerate version": _package_line("frameworks", "accelerate"),
}
"""Label, in small letters and without backticks → what its value states."""
