"""Facts from text that people paste into bug reports.

It reads the output of torch.utils.collect_env, vllm collect-env and transformers env. Only lines that
state a field are taken; of the others only the number is kept. A drift compares only what a text states.
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
from ..fields.known_names import ALL_VARIABLES, FRAMEWORK_PACKAGES, KERNEL_PACKAGES
from ..fields.machine_fields import NUMERIC_ISA
from ..untrusted import redact

MAX_BYTES = 4 << 20
"""Longest text that is read; what people paste has some ten thousand characters."""

_LABELLED = re.compile(r"^(?:[-*]\s+)?([^:=]{2,60}?)\s*:\s+(\S.*)$")
_PACKAGE = re.compile(r"^\[(?:pip3?|conda)\]\s+([A-Za-z0-9_.\-]+?)(?:==|\s+)(\d\S*)")
_VARIABLE = re.compile(r"^([A-Z][A-Z0-9_]{2,60})=(.*)$")
_GPU = re.compile(r"^GPU (\d+): (.+?)(?: \(UUID: \S+\))?$")
_NOTHING = frozenset({"could not collect", "n/a", "none", "no cuda", "not installed", "not found", "na", ""})
# vLLM prints every variable that begins so, and all of its own: one that is missing there was not set.
_REPORTED = ("TORCH", "NCCL", "CUDA", "CUBLAS", "OMP_", "MKL_", "NVIDIA", "VLLM_")

Facts = Iterator[tuple[str, str, object]]
"""(section, field, value); a `Fact` where the value is a reading already."""


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


_KINDS = {
    "vllm.collect_env": re.compile(r"vLLM Version\s*:"),
    "torch.collect_env": re.compile(r"PyTorch version\s*:"),
    "transformers.env": re.compile(r"[-*] `?transformers`? version\s*:"),
}
"""Report → how a line of it begins. vLLM's holds that of torch."""


def _kind(lines: list[str]) -> str | None:
    return next((kind for kind, begin in _KINDS.items() if any(map(begin.match, lines))), None)


def _read(line: str, paste: _Paste) -> None:
    if match := _PACKAGE.match(line):
        _package(match[1].lower().replace("_", "-").replace(".", "-"), match[2], paste)
    elif match := _GPU.match(line):
        paste.tables.setdefault(("gpus", "name"), {})[match[1]] = match[2]
    elif (match := _VARIABLE.match(line)) and match[1] in ALL_VARIABLES:
        paste.state([("determinism", match[1], match[2])])
    elif match := _LABELLED.match(line):
        label = match[1].strip("` ").replace("`", "").lower()
        if label == "gpu models and configuration":  # a single GPU stands on the line itself
            if match := _GPU.match(match[2]):
                paste.tables.setdefault(("gpus", "name"), {})[match[1]] = match[2]
        elif label in _LABELS:
            for statement in _LABELS[label]:
                paste.state(statement.read(match[2], paste.source))
        else:
            paste.not_understood += 1
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


@dataclass(frozen=True)
class _Statement:
    """A field that a labelled line states."""

    section: str
    field: str
    pattern: str = r"(.+)"
    """Of the whole value; its group is what counts."""
    convert: Callable[[str], object] = str
    absent: str | None = None
    """The reason that `none` or `n/a` stands for; None: then the line states nothing."""

    def read(self, value: str, source: str) -> Facts:
        if self.absent is not None and value.lower() in ("none", "n/a"):
            yield self.section, self.field, unavailable(self.absent, source)
        elif (match := re.fullmatch(self.pattern, value)) and match[1].lower() not in _NOTHING:
            yield self.section, self.field, self.convert(match[1])


def _version(text: str) -> dict[str, str]:
    return {"version": text}


_FIRST = r"(\S+).*"
_PYTHON = r"(\d+\.\d+\.\d+\S*).*"
_COMPILER = r"\d+\.\d+\.\d+\S* [^\[]*\[([^\[\]]+)\].*"
_MACHINES = "x86_64|aarch64|ppc64le|s390x|riscv64"
_PLATFORM_NAME = rf"Linux-(.+)-(?:{_MACHINES})-with-glibc[\d.]+"
_TORCH = (_Statement("frameworks", "torch", _FIRST),)
_PLATFORM = (
    _Statement("os", "system", _PLATFORM_NAME, lambda _: "Linux"),
    _Statement("os", "kernel", _PLATFORM_NAME),
    _Statement("os", "machine", rf"Linux-.+-({_MACHINES})-with-glibc[\d.]+"),
    _Statement("os", "libc", rf"Linux-.+-(?:{_MACHINES})-with-glibc([\d.]+)", "glibc {}".format),
)
_NO_CUDA, _NO_ROCM = "torch is built without CUDA", "torch is built without ROCm"
_LABELS: dict[str, tuple[_Statement, ...]] = {
    "pytorch version": _TORCH,
    "pytorch version (gpu?)": _TORCH,
    "pytorch version (accelerator?)": _TORCH,
    # `Could not collect` is also printed of a build without CUDA: it states nothing.
    "cuda used to build pytorch": (_Statement("libraries", "cuda", absent=_NO_CUDA),),
    "rocm used to build pytorch": (_Statement("frameworks", "torch.hip", absent=_NO_ROCM),),
    "os": (
        _Statement("os", "distribution", r"(.+?)(?: \(\w+\))?"),
        _Statement("os", "machine", r".+? \((\w+)\)"),
    ),
    "libc version": (_Statement("os", "libc", r"glibc-(.*)", "glibc {}".format),),
    "python version": (
        _Statement("frameworks", "python", _PYTHON),
        _Statement("frameworks", "python_compiler", _COMPILER),
    ),
    "python platform": _PLATFORM,
    "platform": _PLATFORM,
    "nvidia driver version": (_Statement("driver", "version"),),
    "architecture": (_Statement("os", "machine"),),
    "cpu(s)": (_Statement("cpu", "logical_cpus", r"(\d+)", int),),
    "model name": (_Statement("cpu", "model"),),
    "flags": (
        _Statement("cpu", "isa_available", convert=lambda text: sorted(set(text.split()) & NUMERIC_ISA)),
    ),
    "vllm version": (
        _Statement("engine", "name", _FIRST, lambda _: "vllm"),
        _Statement("engine", "version", _FIRST),
        _Statement("kernels", "vllm", _FIRST, _version),
    ),
    "transformers version": (_Statement("frameworks", "transformers", _FIRST, _version),),
    "safetensors version": (_Statement("frameworks", "safetensors", _FIRST, _version),),
    "accelerate version": (_Statement("frameworks", "accelerate", _FIRST, _version),),
}
"""Label, in small letters and without backticks → what its value states."""
