"""NVIDIA GPUs and their driver: NVML and the CUDA driver API asked beside each other, joined into facts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.fingerprint import NOT_SET, Fact, Section, absent_text, fact, is_absent_text, unavailable
from ..gpus import child_nvml, driver_query
from ..gpus.driver_query import CUDA, CUDA_NO_DEVICE, NVML, DriverQuery, DriverReadings
from ..libraries.version_child import thousands
from ..untrusted.patience import patience

if TYPE_CHECKING:
    from .context import Context


_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_MODULE_LINE = re.compile(
    r"^NVRM version:.*?\b(Open Kernel Module|Kernel Module)\b.*?(\d+\.\d+(?:\.\d+)?)", re.M
)
_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_FOREIGN = "the process has its own view of the devices (a container): run rip inside it"


def probe(context: Context) -> dict[str, Section]:
    """Sections `gpus` and `driver`. Nothing of CUDA happens in this process."""
    blind = _order_unknown(context)
    readings = _read(context, apply_visibility=blind is None)
    gpus = nvml_facts(readings[NVML])
    stable = {**gpus.facts, **cuda_facts(readings[CUDA], readings[NVML])}
    for name in ("name", "uuid", "pci_bus_id"):
        if stable[name].value is None and readings[CUDA].values.get(name):
            stable[name] = readings[CUDA].of_gpus(name)
    for variable in _VISIBILITY:
        value = context.environ.get(variable)
        unread = context.environ_unread or NOT_SET
        stable[variable] = unavailable(unread, "environ") if value is None else fact(value, "environ")
    if blind is not None and stable["rank_order"].value is not None:
        stable["rank_order"] = unavailable(blind, CUDA)
    if context.pid is not None:
        stable["used_by_process"] = used_by(gpus, context.family)
    return {"gpus": Section(facts=stable, volatile=gpus.volatile), "driver": _driver(readings)}


def _read(context: Context, apply_visibility: bool) -> dict[str, DriverReadings]:
    environ = {name: value for name, value in os.environ.items() if name not in _VISIBILITY}
    if apply_visibility:  # CUDA numbers the devices for the observed process, not for this one
        environ |= {name: context.environ[name] for name in _VISIBILITY if name in context.environ}
    absent = {source: driver_query.why_absent(source) for source in (NVML, CUDA)}
    deadline = time.monotonic() + patience(driver_query.LIMIT_S)
    queries = {source: DriverQuery(source, environ) for source, reason in absent.items() if reason is None}
    read = {source: query.readings(deadline, context.stop) for source, query in queries.items()}
    return {
        source: read.get(source) or DriverReadings(source, missing=reason or "")
        for source, reason in absent.items()
    }


def _order_unknown(context: Context) -> str | None:
    """Why the devices of a process that was named cannot be numbered from outside it."""
    if context.pid is None:
        return None
    if context.environ_unread is not None:
        return context.environ_unread
    try:
        return None if os.path.samefile(context.root, "/") else _FOREIGN
    except OSError as error:
        return f"its root folder could not be read: {error.strerror}"


def _driver(readings: dict[str, DriverReadings]) -> Section:
    by_nvml, by_cuda = readings[NVML], readings[CUDA]
    module = _kernel_module()
    version = by_nvml.of_machine("driver_version")
    if version.value is None and module.value is not None:
        version = fact(module.value["version"], str(_KERNEL_MODULE))
    newest = by_cuda.of_machine("cuda_version")
    if newest.value is None and by_nvml.values.get("cuda_version"):
        newest = by_nvml.of_machine("cuda_version")
    files = {
        **by_nvml.values.get("libraries", {}).get("", {}),
        **by_cuda.values.get("libraries", {}).get("", {}),
    }
    facts = {
        "version": version,
        "cuda_version": cuda_version(newest),
        "kernel_module": module,
        "nvml_version": by_nvml.of_machine("nvml_version"),
        "libraries": fact(files, "/proc/self/maps") if files else by_nvml.of_machine("libraries"),
    }
    return Section(facts=facts)


def _kernel_module() -> Fact:
    """The loaded kernel module, which readings even where the libraries do not fit it."""
    try:
        found = _MODULE_LINE.search(_KERNEL_MODULE.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return unavailable(f"there is no {_KERNEL_MODULE}", str(_KERNEL_MODULE))
    if found is None:
        return unavailable("it names no version", str(_KERNEL_MODULE))
    flavour = "open" if found[1].startswith("Open") else "proprietary"
    return fact({"version": found[2], "flavour": flavour}, str(_KERNEL_MODULE))


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
    return fact(thousands(number.value), number.source)


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
