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
from ..gpus.npu_smi import NpuTable
from ..gpus.other_makers import AMD_PARTS, amd_field, name_cards, stated
from ..process import proc, python_packages, root_files
from ..untrusted.patience import patience
from ..untrusted.program import run

if TYPE_CHECKING:
    from .context import Context

LIMIT_S = 6.0
"""Seconds that each tool may take."""
_AMD_TOOL = ("amd-smi", "static", "--json")
_ASCEND_TOOL = ("npu-smi", "info")
_INTEL_TOOL = ("xpu-smi", "discovery", "-j")
_MAX_VERSION_BYTES = 4096
_CANN_FILES = tuple(
    f"/usr/local/Ascend/{folder}/{machine}-linux/ascend_toolkit_install.info"
    for folder in ("ascend-toolkit/latest", "cann")
    for machine in ("aarch64", "x86_64")
)
_TOOLKITS: dict[str, tuple[re.Pattern[str], *tuple[str, ...]]] = {
    "rocm": (re.compile(r"^(\d+\.\d+(?:\.\d+)?)"), "/opt/rocm/.info/version"),
    "cann": (re.compile(r"^version=(\S+)", re.MULTILINE), *_CANN_FILES),
}
"""Field of section `libraries` → how its version is written, and in which files."""


def probe(context: Context) -> dict[str, Section]:
    """Fields `amd`, `ascend`, `intel_xpu`, `torch_npu` of section `gpus`; `rocm`, `cann` of `libraries`."""
    facts = {
        "amd": _amd(context),
        "ascend": _run_tool(_ASCEND_TOOL, context, _read_npu_smi),
        "intel_xpu": _run_tool(_INTEL_TOOL, context, _read_xpu_smi),
        "torch_npu": python_packages.read_version("torch_npu"),
    }
    if driver_query.why_absent(driver_query.NVML) is not None:
        facts |= _summary(facts)
    return {"gpus": Section(facts=facts), "libraries": Section(facts=_toolkits(context))}


def _toolkits(context: Context) -> dict[str, Fact]:
    """Versions of ROCm and CANN, from the files that their installers leave."""
    return {name: _toolkit(context, *where) for name, where in _TOOLKITS.items()}


def _toolkit(context: Context, pattern: re.Pattern[str], *paths: str) -> Fact:
    reason = f"there is no {paths[0]}"
    for path in paths:
        try:
            text = root_files.read_file(context.root, path, _MAX_VERSION_BYTES).decode("utf-8", "replace")
        except proc.Forbidden as forbidden:
            reason = str(forbidden)
            continue
        except proc.Unread:
            continue
        if match := pattern.search(text):
            return fact(match[1], path)
        reason = f"{path} states no version"
    return unavailable(reason, paths[0])


def _summary(found: dict[str, Fact]) -> dict[str, Fact]:
    """The flat key of a machine whose accelerators are another maker's."""
    named = name_cards({field: reading.value for field, reading in found.items() if field != "torch_npu"})
    if named is None:
        return {}
    field, text, count = named
    source = found[field].source
    return {"name_and_compute_capability": fact(text, source), "count": fact(count, source)}


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
        devices[index] = _card({**card, "bus": {"bdf": card.get("bdf")}}) | stated(
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
    """The parts of one GPU in one table, as the tool writes them."""
    found: dict[str, Any] = {}
    for part, names in AMD_PARTS.items():
        values = card.get(part)
        if isinstance(values, dict):
            found |= stated(
                {
                    amd_field(part, name): _amount(values.get(name, values.get(f"{part}_{name}")))
                    for name in names
                }
            )
    return found


def _amount(value: Any) -> Any:
    """`{"value": 196592, "unit": "MB"}` → "196592 MB"."""
    if isinstance(value, dict):
        return f"{value.get('value')} {value.get('unit')}"
    return value


def _read_npu_smi(text: str) -> dict[str, Any]:
    table = NpuTable()
    for line in text.splitlines():
        table.take(line)
    return table.value()


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
            str(device["device_id"]): stated({name: device.get(name) for name in names}) for device in devices
        }
    }
