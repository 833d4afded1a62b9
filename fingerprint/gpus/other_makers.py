"""Cards of other makers than NVIDIA: what distinguishes one of AMD's, and a machine's cards in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# What of AMD's long answer distinguishes machines; clocks, limits and counters are left out.
AMD_PARTS: dict[str, tuple[str, ...]] = {
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
_PLAIN_PARTS = ("asic", "bus", "partition")
_NOT_STATED = ("N/A", "", None, "unknown")


def amd_field(part: str, name: str) -> str:
    """What an entry of AMD's answer is called here: a name that several parts have keeps its part."""
    return name if part in _PLAIN_PARTS else f"{part}_{name}"


def stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the tool does not know."""
    return {name: value for name, value in values.items() if value not in _NOT_STATED}


_NAMES: dict[str, Callable[[dict[str, Any]], str]] = {
    "amd": lambda card: _joined(card.get("market_name"), card.get("target_graphics_version")),
    "ascend": lambda card: _joined("Ascend", card.get("name")),
    "intel_xpu": lambda card: _joined(card.get("device_name")),
}
"""Field of section `gpus` → the name of one of its devices."""


def name_cards(found: Mapping[str, Any]) -> tuple[str, str | list[str], int] | None:
    """The field that has devices, what they are in one line (or a list, where they differ), how many.

    Args:
        found: Field → its value, `{"devices": {number: card}}`, as far as there is one.
    """
    for field, name in _NAMES.items():
        devices = (found.get(field) or {}).get("devices")
        if devices:
            names = [name(card) or "unnamed" for card in devices.values()]
            same = names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"
            return field, same if len(set(names)) == 1 else names, len(names)
    return None


def _joined(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)
