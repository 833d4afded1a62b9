"""NVIDIA's GPUs as facts: by NVML's numbers, those of the machine, and by CUDA's, those of a process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...schemas.fingerprint import Fact, Section, absent_text, fact, is_absent_text, unavailable
from . import child_nvml
from .child_readings import DriverReadings
from .nvidia_query import CUDA, CUDA_NO_DEVICE, NVML

_PAIRS = ("topology", "p2p")
_SLICES = ("mig_slices", "mig_uuid")
_ONE_GPU = "there is one GPU only"
_NO_SLICES = "no GPU is in MIG mode"


def nvml_facts(readings: DriverReadings) -> Section:
    """Section `gpus` by NVML's numbers, those of nvidia-smi: every field, reported or refused."""
    stable = {name: readings.of_gpus(name) for name in child_nvml.STABLE}
    stable["installed_count"] = readings.of_machine("count")
    for name in _PAIRS:
        one = len(readings.gpus) == 1
        stable[name] = unavailable(_ONE_GPU, NVML) if one else _of_parts(readings, name)
    modes = readings.values.get("mig_mode", {}).values()
    sliced = any(mode == "enabled" or isinstance(mode, dict) for mode in modes)
    for name in _SLICES:
        applies = sliced or not readings.gpus
        stable[name] = _of_parts(readings, name) if applies else unavailable(_NO_SLICES, NVML)
    volatile = {name: readings.of_gpus(name) for name in child_nvml.VOLATILE if readings.values.get(name)}
    return Section(facts=stable, volatile=volatile)


def _of_parts(readings: DriverReadings, name: str) -> Fact:
    """A reading whose keys are pairs or slices: a GPU alone is no key of it."""
    values, refusals = readings.values.get(name, {}), readings.refusals.get(name, {})
    if values or refusals:
        return fact({**values, **{key: absent_text(found.reason) for key, found in refusals.items()}}, NVML)
    if readings.gpus and name in _SLICES:
        return unavailable("MIG mode is on, but there is no slice: nvidia-smi mig -cgi … -C", NVML)
    return readings.of_machine(name)


def used_by(section: Section, pids: Collection[int]) -> Fact:
    """The numbers of the GPUs on which one of these processes computes.

    Args:
        section: Section `gpus` with its volatile reading `processes`.
        pids: As the machine numbers them: the process and its descendants.
    """
    reading = section.volatile.get("processes")
    if reading is None:
        return unavailable("NVML does not tell which processes use the GPUs", NVML)
    found = [key for key, listed in reading.value.items() if _lists(listed, pids)]
    if found:
        return fact(found, NVML)
    return unavailable(
        "NVML lists none of its processes (inside a container it has the machine's process numbers)", NVML
    )


def _lists(listed: Any, pids: Collection[int]) -> bool:
    return isinstance(listed, list) and any(entry["pid"] in pids for entry in listed)


def cuda_facts(readings: DriverReadings, nvml: DriverReadings) -> dict[str, Fact]:
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


def cuda_version(number: Fact) -> Fact:
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
