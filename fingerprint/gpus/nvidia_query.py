"""Reading NVIDIA's libraries in child processes: whether they are there, and what their errors mean.

It knows the loader's search path, the error codes and how to fix them; the fields are known elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..untrusted.program import Running
from .child_readings import CallError, DriverReadings, child_command, parse_readings

if TYPE_CHECKING:
    import threading

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
        self._running = Running(child_command(_PROGRAMS[source], LIMIT_S), environ)

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
