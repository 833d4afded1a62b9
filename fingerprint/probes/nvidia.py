"""NVIDIA GPUs and their driver: NVML and the CUDA driver API asked beside each other, joined into facts."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.fingerprint import NOT_SET, Fact, Section, fact, unavailable
from ..gpus import nvidia_query
from ..gpus.child_readings import DriverReadings
from ..gpus.nvidia_facts import cuda_facts, cuda_version, nvml_facts, used_by
from ..gpus.nvidia_query import CUDA, NVML, DriverQuery

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
    absent = {source: nvidia_query.why_absent(source) for source in (NVML, CUDA)}
    deadline = time.monotonic() + nvidia_query.LIMIT_S
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
