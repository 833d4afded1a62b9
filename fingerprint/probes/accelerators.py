"""AMD GPUs, Ascend NPUs and Intel GPUs, as far as their makers' tools answer; NVIDIA's are read elsewhere.

A tool that is not installed costs a look along the PATH. The forms of their output are those of the public
documentation; rip was not run on such cards.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...schemas.fingerprint import Fact, Section, fact, unavailable
from ..gpus import driver_query
from ..gpus.driver_query import child_command, parse_readings
from ..process import python_packages
from ..untrusted.patience import patience
from ..untrusted.program import run

if TYPE_CHECKING:
    from .context import Context

LIMIT_S = 6.0
"""Seconds that each tool may take."""
_AMD_TOOL = ("amd-smi", "static", "--json")
_ASCEND_TOOL = ("npu-smi", "info")
_INTEL_TOOL = ("xpu-smi", "discovery", "-j")
_NOT_STATED = ("N/A", "", None, "unknown")
# What of AMD's long answer distinguishes machines; clocks, limits and counters are left out.
_AMD_PARTS: dict[str, tuple[str, ...]] = {
    "asic": (
        *("market_name", "vendor_id", "device_id", "rev_id", "asic_serial", "num_compute_units"),
        "target_graphics_version",
    ),
    "bus": ("bdf",),
    "driver": ("name", "version"),
    "vbios": ("name", "build_date", "part_number", "version"),
    "ifwi": ("name", "build_date", "part_number", "version"),
    "vram": ("type", "size"),
    "partition": ("accelerator_partition", "compute_partition", "memory_partition"),
}
# "| 0     910B3    | OK    | 67.5 …" and, below it, "| 0      | 0000:C1:00.0  | 60 …  5042 / 65536 |".
_NPU_ROW = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*([A-Za-z]+)\s*\|")
_CHIP_ROW = re.compile(
    r"^\|\s*(\d+)(?:\s+(?:\d+|NA))?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*\|(.*)\|"
)
_NPU_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")


def probe(context: Context) -> dict[str, Section]:
    """Fields `amd`, `ascend`, `intel_xpu` and `torch_npu` of section `gpus`."""
    facts = {
        "amd": _amd(context),
        "ascend": _run_tool(_ASCEND_TOOL, context, _read_npu_smi),
        "intel_xpu": _run_tool(_INTEL_TOOL, context, _read_xpu_smi),
        "torch_npu": python_packages.read_version("torch_npu"),
    }
    if driver_query.why_absent(driver_query.NVML) is not None:
        facts |= _summary(facts)
    return {"gpus": Section(facts=facts)}


def _summary(found: dict[str, Fact]) -> dict[str, Fact]:
    """The flat key of a machine whose accelerators are another maker's."""
    namers: dict[str, Callable[[dict[str, Any]], str | None]] = {
        "amd": lambda card: _joined(card.get("market_name"), card.get("target_graphics_version")),
        "ascend": lambda card: _joined("Ascend", card.get("name")),
        "intel_xpu": lambda card: card.get("device_name"),
    }
    for field, name in namers.items():
        if found[field].value is not None:
            names = [name(card) or "unnamed" for card in found[field].value["devices"].values()]
            several = names if len(set(names)) > 1 else f"{len(names)} x {names[0]}"
            text = names[0] if len(names) == 1 else several
            source = found[field].source
            return {"name_and_compute_capability": fact(text, source), "count": fact(len(names), source)}
    return {}


def _joined(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def _run_tool(command: tuple[str, ...], context: Context, read: Callable[[str], dict[str, Any]]) -> Fact:
    source = " ".join(command)
    tool = shutil.which(command[0])
    if tool is None:
        return unavailable(f"{command[0]} is not on the PATH", source)
    output = run([tool, *command[1:]], patience(LIMIT_S), context.stop)
    try:
        found = read(output.text)
    except (ValueError, KeyError, TypeError, AttributeError):
        found = {}
    if found.get("devices"):
        return fact(found, source)
    return unavailable(
        str(output.failure or "it lists no device, or in a form that rip does not know"), source
    )


def _amd(context: Context) -> Fact:
    has_tool = shutil.which(_AMD_TOOL[0]) is not None
    if importlib.util.find_spec("amdsmi") is not None:
        reading = _read_amdsmi(context)
        if reading.value is not None or not has_tool:
            return reading
    if not has_tool:
        return unavailable("amd-smi is not on the PATH, and the package amdsmi is not installed", "amd-smi")
    return _run_tool(_AMD_TOOL, context, _read_amd)


def _read_amdsmi(context: Context) -> Fact:
    output = run(child_command("child_amd", patience(LIMIT_S)), patience(LIMIT_S), context.stop)
    readings = parse_readings("amdsmi", "amdsmi", output)
    devices = {}
    for index in readings.gpus:
        card = {
            name: readings.values[name][index] for name in readings.values if index in readings.values[name]
        }
        devices[index] = _card({**card, "bus": {"bdf": card.get("bdf")}}) | _stated(
            {name: card.get(name) for name in ("uuid", "compute_partition", "memory_partition")}
        )
    if devices:
        return fact({"devices": devices}, "amdsmi")
    count = readings.of_machine("count")
    return count if count.value is None else unavailable("it lists no GPU", "amdsmi")


def _read_amd(text: str) -> dict[str, Any]:
    listed = json.loads(text)
    cards = listed["gpu_data"] if isinstance(listed, dict) else listed  # newer and older form
    return {"devices": {str(card["gpu"]): _card(card) for card in cards if "gpu" in card}}


def _card(card: dict[str, Any]) -> dict[str, Any]:
    """The parts of one GPU in one table, as the tool writes them; a name of several parts keeps its part."""
    found: dict[str, Any] = {}
    for part, names in _AMD_PARTS.items():
        values = card.get(part)
        if isinstance(values, dict):
            plain = part in ("asic", "bus", "partition")
            found |= _stated(
                {
                    name if plain else f"{part}_{name}": _amount(
                        values.get(name, values.get(f"{part}_{name}"))
                    )
                    for name in names
                }
            )
    return found


def _amount(value: Any) -> Any:
    """`{"value": 196592, "unit": "MB"}` → "196592 MB"."""
    if isinstance(value, dict):
        return f"{value.get('value')} {value.get('unit')}"
    return value


def _stated(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in _NOT_STATED}


def _read_npu_smi(text: str) -> dict[str, Any]:
    """The table of `npu-smi info`: two rows a chip, the second one with its PCI bus id and memory."""
    devices: dict[str, Any] = {}
    npu: tuple[str, str] | None = None
    for line in text.splitlines():
        if row := _CHIP_ROW.match(line):
            if npu is not None:
                memories = re.findall(r"(\d+)\s*/\s*(\d+)", row[3])
                total = {"memory_total_mb": int(memories[-1][1])} if memories else {}
                devices[f"{npu[0]}/{row[1]}"] = {"name": npu[1], "pci_bus_id": row[2], **total}
        elif row := _NPU_ROW.match(line):
            npu = (row[1], row[2])
    versions = _NPU_VERSION.search(text)
    return {"devices": devices, **({"driver_version": versions[2]} if versions else {})}


def _read_xpu_smi(text: str) -> dict[str, Any]:
    names = (
        "device_name",
        "device_type",
        "driver_version",
        "pci_bdf_address",
        "pci_device_id",
        "uuid",
        "vendor_name",
    )
    devices = json.loads(text)["device_list"]
    return {
        "devices": {
            str(device["device_id"]): _stated({name: device.get(name) for name in names})
            for device in devices
        }
    }
