"""Readers of what AMD's and Ascend's tools print: rocminfo, rocm-smi, amd-smi, npu-smi, CANN's version file.

They keep cards under the same names as the tools' own answers are kept, so that both compare.
"""

from __future__ import annotations

import re
from typing import Any

from ..gpus.npu_smi import NpuTable
from ..gpus.other_makers import AMD_PARTS, amd_field, name_cards, stated
from .paste import Paste

Cards = dict[str, dict[str, Any]]
_LONGEST = 400


def _amd_cards(paste: Paste) -> Cards:
    cards: Cards = paste.place.setdefault("amd cards", {})
    return cards


def _keep(paste: Paste, number: str, name: str, value: Any) -> None:
    """One entry of an AMD card; the first statement counts."""
    paste.place.setdefault("amd kind", paste.kind)
    for known, entry in stated({name: value}).items():
        _amd_cards(paste).setdefault(number, {}).setdefault(known, entry)


# npu-smi and CANN ----------------------------------------------------------------------------------------


def read_npu_header(line: str, paste: Paste) -> bool:
    """The line with the version, which begins the table."""
    table: NpuTable = paste.place.setdefault("npu-smi", NpuTable())
    return table.take(line)


def read_npu_row(line: str, paste: Paste) -> bool:
    """One of the two rows of a chip."""
    table: NpuTable | None = paste.place.get("npu-smi")
    return table is not None and table.take(line)


def read_cann(line: str, paste: Paste) -> bool:
    """`package_name=Ascend-cann-toolkit`, and below it `version=8.1.RC1`."""
    name, _, value = line.partition("=")
    if name == "package_name":
        paste.place["package"] = value.strip()
        return value.startswith("Ascend-cann")
    if paste.place.get("package") != "Ascend-cann-toolkit":
        return False
    paste.state("libraries.cann", value.strip()[:_LONGEST])
    return True


# rocminfo ------------------------------------------------------------------------------------------------

_AGENT = re.compile(r"Agent \d{1,3}\s*$")
AGENT_LABELS = {
    "Name": "target_graphics_version",
    "Marketing Name": "market_name",
    "Device Type": "device type",
    "Compute Unit": "num_compute_units",
}


def read_rocminfo_head(line: str, paste: Paste) -> bool:
    """`HSA System Attributes`, and `Agent 2`."""
    if _AGENT.match(line):
        if "agents" not in paste.place:
            return False
        paste.place["agents"].append({})
    else:
        paste.place.setdefault("agents", [])
    return True


def read_rocminfo(line: str, paste: Paste) -> bool:
    """`Marketing Name:  AMD Instinct MI300X` of an agent; later lines with that label are of its parts."""
    label, sign, value = line.partition(":")
    name = AGENT_LABELS.get(label.strip()) if sign else None
    if name is None or not paste.place.get("agents"):
        return False
    value = value.strip()[:_LONGEST]
    paste.place["agents"][-1].setdefault(name, int(value) if value.isdigit() else value)
    return True


def _state_agents(paste: Paste) -> None:
    agents = paste.place.get("agents") or []
    gpus = [agent for agent in agents if agent.get("device type") == "GPU"]
    paste.kind = "rocminfo"
    for number, gpu in enumerate(gpus):
        for name in ("market_name", "target_graphics_version", "num_compute_units"):
            _keep(paste, str(number), name, gpu.get(name))
    cpus = [agent for agent in agents if agent.get("device type") == "CPU"]
    paste.state("cpu.model", cpus[0].get("market_name") if cpus else None)


# rocm-smi ------------------------------------------------------------------------------------------------

_ROCM_LINE = re.compile(r"GPU\[(\d{1,3})\]\s{0,8}:\s{0,8}([^:]{1,60}):\s{0,20}(.{0,200})")
_ROCM_LABELS = {
    "card series": "market_name",
    "device name": "market_name",
    "gfx version": "target_graphics_version",
    "card model": "device_id",
    "device id": "device_id",
    "pci bus": "bdf",
    "vbios version": "vbios_part_number",
    "memory partition": "memory_partition",
    "compute partition": "compute_partition",
}
_ROCM_ROW = re.compile(
    r"(\d{1,3})\s{1,12}\d{1,4}\s{1,12}(0x[0-9a-f]{4}),\s{1,12}\S{1,12}\s{1,80}"
    r".{0,80}?(NPS\d{1,2}|N/A), ([A-Z]{3}|N/A), \d{1,3}\s"
)


def read_rocm_frame(line: str, paste: Paste) -> bool:
    """A ruled line of rocm-smi; one of them names the tool."""
    if "ROCm System Management Interface" in line[:_LONGEST]:
        paste.place["rocm-smi"] = True
    return bool(paste.place.get("rocm-smi"))


def read_rocm_label(line: str, paste: Paste) -> bool:
    """`GPU[0]  : GFX Version:  gfx942`."""
    match = _ROCM_LINE.match(line)
    name = _ROCM_LABELS.get(match[2].strip().lower()) if match is not None else None
    if match is None or name is None:
        return False
    _keep(paste, match[1], name, match[3].strip())
    return True


def read_rocm_row(line: str, paste: Paste) -> bool:
    """A row of the concise table: number, device id, partitions; all else of it is load."""
    match = _ROCM_ROW.match(line) if paste.place.get("rocm-smi") else None
    if match is None:
        return False
    names = ("device_id", "memory_partition", "compute_partition")
    for name, value in zip(names, match.groups()[1:], strict=True):
        _keep(paste, match[1], name, value)
    return True


def read_amd_driver(line: str, paste: Paste) -> bool:
    """`Driver version: 6.12.12` of rocm-smi, `ROCM Driver Version: 6.10.5` of SGLang's report."""
    label, _, value = line.partition(":")
    if label.lower().startswith("driver") and not paste.place.get("rocm-smi"):
        return False
    paste.place.setdefault("amd driver", value.strip()[:_LONGEST])
    return True


# amd-smi -------------------------------------------------------------------------------------------------

_AMD_GPU = re.compile(r"GPU: (\d{1,3})$")
_AMD_SECTION = re.compile(r"([A-Z_0-9]{2,40}):$")
_AMD_ENTRY = re.compile(r"([A-Z_]{2,40}): (.{1,200})$")
_ROCM_VERSION = re.compile(r"ROCm version: (\d[\w.]{0,40})")


def read_amd_gpu(line: str, paste: Paste) -> bool:
    """`GPU: 0`, under which `amd-smi static` lists a card."""
    match = _AMD_GPU.match(line)
    if match is not None:
        paste.place["amd-smi"] = (match[1], "")
    return match is not None


def read_amd_entry(line: str, paste: Paste) -> bool:
    """`ASIC:`, and `MARKET_NAME: AMD Instinct MI300X` below it."""
    if "amd-smi" not in paste.place:
        return False
    number, part = paste.place["amd-smi"]
    if section := _AMD_SECTION.match(line):
        paste.place["amd-smi"] = (number, section[1].lower())
        return True
    entry = _AMD_ENTRY.match(line)
    if entry is None or entry[1].lower() not in AMD_PARTS.get(part, ()):
        return False
    value = entry[2].strip()
    _keep(paste, number, amd_field(part, entry[1].lower()), int(value) if value.isdigit() else value)
    return True


def read_amd_version(line: str, paste: Paste) -> bool:
    """`AMDSMI Tool: 26.0.0 | … | ROCm version: 7.0.0`."""
    match = _ROCM_VERSION.search(line[:_LONGEST])
    if match is not None:
        paste.state("libraries.rocm", match[1])
    return match is not None


# torch's and vLLM's collect_env --------------------------------------------------------------------------

_NAMED_CARD = re.compile(r"([^:()]{1,200}) \((gfx[0-9a-f]{3,5})[^()]{0,60}\)")


def read_amd_model(line: str, paste: Paste) -> bool:
    """`GPU models and configuration: AMD Instinct MI300X (gfx942:sramecc+:xnack-)`."""
    match = _NAMED_CARD.fullmatch(line.partition(":")[2].strip()[:_LONGEST])
    if match is None:
        return False
    _keep(paste, "0", "market_name", match[1])
    _keep(paste, "0", "target_graphics_version", match[2])
    return True


def state_cards(paste: Paste) -> None:
    """The cards that the whole text names, and what they are in one line."""
    _state_agents(paste)
    cards = _amd_cards(paste)
    for number in cards:
        _keep(paste, number, "driver_version", paste.place.get("amd driver"))
    table: NpuTable | None = paste.place.get("npu-smi")
    found = {
        "amd": {"devices": cards} if cards else None,
        "ascend": table.value() if table is not None and table.devices else None,
    }
    paste.kind = paste.place.get("amd kind", "npu-smi")
    for field, value in found.items():
        paste.state(f"gpus.{field}", value)
    if named := name_cards(found):
        paste.state("gpus.name_and_compute_capability", named[1])
        paste.state("gpus.installed_count", named[2])
