"""The devices as the CUDA driver numbers them for a process: what it sees, and which rank is which card."""

from __future__ import annotations

from typing import Any

from ...schemas.fingerprint import Fact, fact, is_absent_text
from .child_readings import DriverReadings
from .nvidia_query import CUDA, CUDA_NO_DEVICE


def facts(readings: DriverReadings, nvml: DriverReadings) -> dict[str, Fact]:
    """Section `gpus` by the numbers that CUDA gives, `CUDA_VISIBLE_DEVICES` applied.

    Where the driver API did not answer, what NVML reports of all GPUs stands in, and the source says so.
    """
    sees_none = readings.refusal("count").code == CUDA_NO_DEVICE
    seen = readings if readings.gpus or sees_none or not nvml.gpus else nvml
    return {
        "count": seen.of_machine("count"),
        "compute_capability": seen.of_gpus("compute_capability"),
        "name_and_compute_capability": _summary(seen),
        "sm_count": readings.of_gpus("sm_count"),
        "cuda_attributes": readings.of_gpus("cuda_attributes"),
        "rank_order": _rank_order(readings, nvml),
    }


def version(number: Fact) -> Fact:
    """13000 → "13.0"."""
    if not isinstance(number.value, int):
        return number
    return fact(f"{number.value // 1000}.{number.value % 1000 // 10}", number.source)


def _summary(seen: DriverReadings) -> Fact:
    """`NVIDIA H200 9.0`, `8 x NVIDIA H200 9.0`, or a list where they differ."""
    names, capabilities = seen.of_gpus("name"), seen.of_gpus("compute_capability")
    if names.value is None:
        return names
    each = [
        name if is_absent_text(name) else f"{name} {(capabilities.value or {}).get(key, '?')}"
        for key, name in names.value.items()
    ]
    if len(set(each)) > 1:
        return fact(each, seen.source)
    return fact(each[0] if len(each) == 1 else f"{len(each)} x {each[0]}", seen.source)


def _rank_order(readings: DriverReadings, nvml: DriverReadings) -> Fact:
    """Device number → PCI bus id and NVML's number: local rank i takes device i by default."""
    buses = readings.of_gpus("pci_bus_id")
    if buses.value is None:
        return buses
    uuids = {**nvml.values.get("uuid", {}), **nvml.values.get("mig_uuid", {})}
    numbers = {uuid.lower(): number for number, uuid in uuids.items()}
    order: dict[str, Any] = {}
    for key, bus in buses.value.items():
        order[key] = {"pci_bus_id": bus}
        number = numbers.get(str(readings.values.get("uuid", {}).get(key)).lower())
        if number is not None:
            order[key]["nvml"] = number
    return fact(order, CUDA)
