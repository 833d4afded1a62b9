"""Reads the devices that a process sees, in a process of its own: the CUDA driver API, without a context."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from .child_protocol import Failed, as_text, loaded_libraries, report


def main() -> None:
    """What the driver API reports of the devices this process would see, in the order it numbers them."""
    from cuda.bindings import driver

    def call(function: Any, *arguments: Any) -> Any:
        error, *values = function(*arguments)
        if int(error) != 0:
            raise Failed(int(error), error.name)
        return values[0] if values else True

    def attribute(device: Any, name: str) -> int:
        names = driver.CUdevice_attribute
        return int(call(driver.cuDeviceGetAttribute, getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    def handle_of(ordinal: int) -> int:
        return int(call(driver.cuDeviceGet, ordinal))

    def name_of(device: Any) -> str:
        return as_text(call(driver.cuDeviceGetName, 256, device).split(b"\0")[0])

    def as_nvml_writes(number: Any, device: Any) -> str:
        kind = "MIG" if " MIG " in name_of(device) else "GPU"
        return f"{kind}-{uuid.UUID(bytes=bytes(number))}"

    report("cuda_version", "", lambda: call(driver.cuDriverGetVersion))
    initialized = report("init", "", lambda: call(driver.cuInit, 0))
    report("libraries", "", lambda: loaded_libraries("libcuda.so"))
    if not initialized:
        return
    read_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)  # the slice's own, in MIG mode
    readers: dict[str, Callable[[Any], Any]] = {
        "name": name_of,
        "uuid": lambda device: as_nvml_writes(call(read_uuid, device).bytes, device),
        "pci_bus_id": lambda device: as_text(call(driver.cuDeviceGetPCIBusId, 32, device).split(b"\0")[0]),
        "compute_capability": lambda device: ".".join(
            str(attribute(device, f"COMPUTE_CAPABILITY_{part}")) for part in ("MAJOR", "MINOR")
        ),
        "sm_count": lambda device: attribute(device, "MULTIPROCESSOR_COUNT"),
        "cuda_attributes": lambda device: {
            "l2_cache_bytes": attribute(device, "L2_CACHE_SIZE"),
            "memory_bus_bits": attribute(device, "GLOBAL_MEMORY_BUS_WIDTH"),
            "registers_per_sm": attribute(device, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
            "shared_memory_per_block_bytes": attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            "shared_memory_per_sm_bytes": attribute(device, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            "threads_per_sm": attribute(device, "MAX_THREADS_PER_MULTIPROCESSOR"),
        },
    }
    for ordinal in range(report("count", "", lambda: call(driver.cuDeviceGetCount)) or 0):
        device = report("handle", str(ordinal), partial(handle_of, ordinal))
        for name, read in readers.items() if device is not None else ():
            report(name, str(ordinal), partial(read, device))
