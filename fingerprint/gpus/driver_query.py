"""Reading a driver's library in a child process (see child_protocol.py): values, and refusals with their fix.

It knows how to start such a process and parse its lines, the loader's search path, and NVIDIA's error codes.
The fields are known elsewhere.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.fingerprint import Fact, absent_text, fact, unavailable
from ..untrusted.patience import patience
from ..untrusted.program import Output, Running

if TYPE_CHECKING:
    import threading


@dataclass(frozen=True)
class CallError:
    """How a call failed."""

    code: int
    """The driver's; 0 where Python failed."""
    type: str
    """The exception's class; empty where the driver's message says it all."""
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.type else self.message


@dataclass(frozen=True)
class Refusal:
    """Why a library gave no value, and the driver's error code (0: none)."""

    reason: str
    code: int = 0


@dataclass(frozen=True)
class DriverReadings:
    """What one library reported and refused: field → number of the GPU → value, or refusal."""

    source: str
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refusals: Mapping[str, Mapping[str, Refusal]] = field(default_factory=dict)
    missing: str = "not asked"
    """Why there is neither a value nor a refusal."""

    @property
    def gpus(self) -> list[str]:
        """The numbers of all GPUs that the library counts."""
        return [str(index) for index in range(self.values.get("count", {}).get("", 0))]

    def of_machine(self, name: str) -> Fact:
        """One reading about the whole machine."""
        if (value := self.values.get(name, {}).get("")) is not None:
            return fact(value, self.source)
        return unavailable(self.refusal(name).reason, self.source)

    def of_gpus(self, name: str) -> Fact:
        """One reading by the number of the GPU; of a GPU that refused it, the reason as a text."""
        values = self.values.get(name, {})
        refused = {
            key: self.refusal(name, key).reason
            for key in {*self.gpus, *self.refusals.get(name, {})} - {*values}
        }
        reasons = set(refused.values())
        if values:
            known = {**values, **{key: absent_text(reason) for key, reason in refused.items()}}
            return fact({key: known[key] for key in sorted(known, key=_in_order)}, self.source)
        if len(reasons) > 1:
            each = (f"GPU {key}: {refused[key]}" for key in sorted(refused, key=_in_order))
            return unavailable("; ".join(each), self.source)
        return unavailable(reasons.pop() if reasons else self.refusal(name).reason, self.source)

    def refusal(self, name: str, key: str = "") -> Refusal:
        """Why there is no value: the reading failed, or what it depends on."""
        for field_, key_ in ((name, key), ("handle", key), ("init", ""), ("program", "")):
            if (found := self.refusals.get(field_, {}).get(key_)) is not None:
                return found
        return Refusal(self.missing)


def child_command(module: str, limit_s: float) -> list[str]:
    """The command line of a process that runs one of the `child_…` modules as this process would import it.

    It ends by itself a second after `limit_s`, should nobody be left to end it.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from {__package__}.child_protocol import run_child; from {__package__}.{module} import main\n"
        f"run_child(main, {math.ceil(limit_s) + 1})"
    )
    return [sys.executable, "-P", "-c", code]


def parse_readings(
    source: str, library: str, output: Output, explain: Callable[[CallError], str] = str
) -> DriverReadings:
    """Read the lines, as far as they came.

    Args:
        source: Of the facts.
        library: What to call the library.
        output: Of the process.
        explain: How a call failed → the reason, with how to fix it.
    """
    values: dict[str, dict[str, Any]] = {}
    refusals: dict[str, dict[str, Refusal]] = {}
    last = "it was started"
    for line in output.text.splitlines():
        match _parse_line(line):
            case ["reading", str(name), str(key)]:
                last = f"it was asked for {name}" + (f" of GPU {key}" if key else "")
            case ["value", str(name), str(key), value] if value is not None:
                values.setdefault(name, {})[key] = value
            case ["error", str(name), str(key), int(code), str(kind), str(message)]:
                reason = explain(CallError(code, kind, message))
                refusals.setdefault(name, {})[key] = Refusal(reason, code)
    missing = f"{library}: {output.failure} when {last}" if output.failure else "the library did not say"
    return DriverReadings(source, values, refusals, missing)


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # what a library prints by itself, or the last line of a program that was ended
        return None


def _in_order(key: str) -> tuple[int, ...]:
    """ "10" after "9", "0/3" after "0/1", "0-1" before "1-2"."""
    parts = key.replace("/", "-").split("-")
    return tuple(int(part) for part in parts if part.isdigit())


LIMIT_S = 8.0
"""Seconds that each library may take. It attaches to every GPU: seconds where persistence mode is off."""
NVML, CUDA = "nvml", "cuda-driver"
"""The sources of the facts."""
LIBRARIES = {NVML: "libnvidia-ml.so.1", CUDA: "libcuda.so.1"}
CUDA_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""
_PROGRAMS = {NVML: "child_nvml", CUDA: "child_cuda"}
_LOADER_CACHE = Path("/etc/ld.so.cache")
_LOADER_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
_MULTIARCH = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_KERNEL_SIDES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""One of them is there wherever a driver is loaded; the last one under Windows (WSL)."""

_CONTAINER = "in a container: start it with the GPUs, e.g. --gpus all"
_MEANINGS: dict[str, dict[int, str]] = {
    NVML: {
        3: "this GPU or driver does not support it (NVML_ERROR_NOT_SUPPORTED)",
        4: "no permission (NVML_ERROR_NO_PERMISSION): run as root, or let this user open /dev/nvidia*",
        9: "the NVIDIA kernel module is not loaded (NVML_ERROR_DRIVER_NOT_LOADED): modprobe nvidia; "
        + _CONTAINER,
        13: "this driver is older than the question (NVML_ERROR_FUNCTION_NOT_FOUND)",
        15: "the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST): see the kernel log, reset it or reboot",
        16: "the GPU needs a reset (NVML_ERROR_RESET_REQUIRED): nvidia-smi --gpu-reset, or reboot",
        18: "the driver's library and kernel module have different versions "
        "(NVML_ERROR_LIB_RM_VERSION_MISMATCH): reboot or reload the module; restart a container",
    },
    CUDA: {
        34: "libcuda.so.1 is the toolkit's stub, not a driver (CUDA_ERROR_STUB_LIBRARY): take the folder "
        "`stubs` out of LD_LIBRARY_PATH",
        46: "the GPU is in use exclusively (CUDA_ERROR_DEVICE_UNAVAILABLE): see gpus.compute_mode",
        CUDA_NO_DEVICE: "no GPU is visible to this process (CUDA_ERROR_NO_DEVICE): see CUDA_VISIBLE_DEVICES; "
        + _CONTAINER,
        101: "CUDA_VISIBLE_DEVICES names a GPU that is not there (CUDA_ERROR_INVALID_DEVICE)",
        802: "the NVLink fabric is not ready (CUDA_ERROR_SYSTEM_NOT_READY): is nvidia-fabricmanager running?",
        803: "the driver's library and kernel module have different versions "
        "(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH): reboot or reload the module; restart a container",
        804: "this GPU does not support the forward compatibility package in use "
        "(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE): take it out of LD_LIBRARY_PATH",
        999: "the driver failed (CUDA_ERROR_UNKNOWN): is the module nvidia_uvm loaded?",
    },
}
_PACKAGES = {NVML: "nvidia-ml-py", CUDA: "cuda-bindings"}


class DriverQuery:
    """A library that is being read in its child process; both are read beside each other."""

    def __init__(self, source: str, environ: Mapping[str, str]) -> None:
        self._source = source
        self._running = Running(child_command(_PROGRAMS[source], patience(LIMIT_S)), environ)

    def readings(self, deadline: float, stop: threading.Event) -> DriverReadings:
        """What was reported until the deadline."""
        output = self._running.result(deadline, stop)
        return parse_readings(self._source, LIBRARIES[self._source], output, partial(_explain, self._source))


def why_absent(source: str) -> str | None:
    """Why a library need not be read: it is not there. Costs a few file look-ups and loads nothing."""
    name = LIBRARIES[source]
    if _loader_finds(name) or any(os.path.exists(path) for path in _KERNEL_SIDES):
        return None
    return f"no NVIDIA driver: {name} is not on the loader's path and there is no {_KERNEL_SIDES[0]}"


def _loader_finds(name: str) -> bool:
    listed = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    folders = [*filter(None, listed), *_LOADER_FOLDERS]
    folders += [f"{folder}/{triple}" for folder in ("/lib", "/usr/lib") for triple in _MULTIARCH]
    if any(os.path.exists(os.path.join(folder, name)) for folder in folders):
        return True
    try:
        return b"\0" + name.encode() + b"\0" in _LOADER_CACHE.read_bytes()
    except OSError:  # a system without the cache of glibc
        return False


def _explain(source: str, error: CallError) -> str:
    if error.type == "ModuleNotFoundError":
        return f"the Python package {_PACKAGES[source]} is not installed: pip install {_PACKAGES[source]}"
    if "LibNotFound" in error.type or "LibraryNotFound" in error.type:
        return f"the driver is loaded, but {LIBRARIES[source]} is not on the loader's path; {_CONTAINER}"
    return _MEANINGS[source].get(error.code, f"{error} (error {error.code})" if error.code else str(error))
