"""The GPUs as NVML reports them: names, firmware, modes, slices, links, and what runs on them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...schemas.fingerprint import Fact, Section, absent_text, fact, unavailable
from . import child_nvml
from .child_readings import DriverReadings
from .nvidia_query import NVML

_PAIRS = ("topology", "p2p")
_SLICES = ("mig_slices", "mig_uuid")
_ONE_GPU = "there is one GPU only"
_NO_SLICES = "no GPU is in MIG mode"


def facts(readings: DriverReadings) -> Section:
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
