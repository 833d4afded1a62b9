"""The table of `npu-smi info`: two rows a chip, the second one with its PCI bus id and memory.

Its form is that of the public documentation; rip was not run on such cards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

# "| 0     910B3    | OK    | 67.5 …" and, below it, "| 0      | 0000:C1:00.0  | 60 …  5042 / 65536 |".
_NPU_ROW = re.compile(r"\|\s*(\d+)\s+(\S+)\s*\|\s*([A-Za-z]+)\s*\|")
_CHIP_ROW = re.compile(
    r"\|\s*(\d+)(?:\s+(?:\d+|NA))?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*\|(.*)\|"
)
_VERSION = re.compile(r"\|?\s*npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_MEMORY = re.compile(r"(\d+)\s*/\s*(\d+)")
_LONGEST_ROW = 400


@dataclass
class NpuTable:
    """What was read of the table so far."""

    devices: dict[str, Any] = field(default_factory=dict)
    """`NPU/chip` → name, PCI bus id, memory."""
    driver_version: str | None = None
    _npu: tuple[str, str] | None = None

    def take(self, line: str) -> bool:
        """Read one line; false: it is no row that states anything."""
        line = line.strip()[:_LONGEST_ROW]
        if version := _VERSION.match(line):
            self.driver_version = version[2]
        elif row := _CHIP_ROW.match(line):
            if self._npu is None:
                return False
            memories = _MEMORY.findall(row[3])
            total = {"memory_total_mb": int(memories[-1][1])} if memories else {}
            self.devices[f"{self._npu[0]}/{row[1]}"] = {
                "name": self._npu[1],
                "pci_bus_id": row[2],
                **total,
            }
        elif row := _NPU_ROW.match(line):
            self._npu = (row[1], row[2])
        else:
            return False
        return True

    def value(self) -> dict[str, Any]:
        """The value of `gpus.ascend`."""
        stated = {"driver_version": self.driver_version} if self.driver_version else {}
        return {"devices": self.devices, **stated}
