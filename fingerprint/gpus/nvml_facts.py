"""The GPUs as NVML tells of them: names, firmware, modes, slices, links, and what runs on them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...schemas.fingerprint import Fact, Section, absent_text, fact, unavailable
from . import child_nvml
from .child_readings import Answers
from .nvidia_query import NVML

_PAIRS = ("topology", "p2p")
_SLICES = ("mig_slices", "mig_uuid")
_ONE_GPU = "there is one GPU only"
_NO_SLICES = "no GPU is in MIG mode"


def facts(answers: Answers) -> Section:
    """Section `gpus` by NVML's numbers, those of nvidia-smi: every field, told or refused."""
    stable = {name: answers.of_gpus(name) for name in child_nvml.STABLE}
    stable["installed_count"] = answers.of_machine("count")
    for name in _PAIRS:
        one = len(answers.gpus) == 1
        stable[name] = unavailable(_ONE_GPU, NVML) if one else _of_parts(answers, name)
    modes = answers.told.get("mig_mode", {}).values()
    sliced = any(mode == "enabled" or isinstance(mode, dict) for mode in modes)
    for name in _SLICES:
        told = sliced or not answers.gpus
        stable[name] = _of_parts(answers, name) if told else unavailable(_NO_SLICES, NVML)
    volatile = {name: answers.of_gpus(name) for name in child_nvml.VOLATILE if answers.told.get(name)}
    return Section(facts=stable, volatile=volatile)


def _of_parts(answers: Answers, name: str) -> Fact:
    """A reading whose keys are pairs or slices: a GPU alone is no key of it."""
    told, refused = answers.told.get(name, {}), answers.refused.get(name, {})
    if told or refused:
        return fact({**told, **{key: absent_text(reason) for key, reason in refused.items()}}, NVML)
    if answers.gpus and name in _SLICES:
        return unavailable("MIG mode is on, but there is no slice: nvidia-smi mig -cgi … -C", NVML)
    return answers.of_machine(name)


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
