"""Compares the GPU facts of a fingerprint with what nvidia-smi and torch say: run by check.sh."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SHOWN = ("name_and_compute_capability", "count", "sm_count", "rank_order", "memory_total_bytes", "mig_mode")
SHOWN += ("ecc_mode", "power_limit_w", "application_clocks_mhz", "nvlink", "fabric", "topology", "p2p")


def main(folder: Path) -> int:
    """Print the GPU facts and every disagreement; the number of disagreements is the exit code."""
    sections = json.loads((folder / "fingerprint.json").read_text())["sections"]
    facts, driver = ({**sections[name]["facts"]} for name in ("gpus", "driver"))
    for name, reading in {**{f"driver.{name}": driver[name] for name in driver}, **facts}.items():
        if name.startswith("driver.") or name in SHOWN:
            print(f"{name}: {reading.get('value', 'unavailable: ' + str(reading.get('unavailable')))}")
    unread = [name for name, reading in facts.items() if "value" not in reading]
    print(f"unavailable: {', '.join(unread)}")
    said = {name: reading.get("value") for name, reading in facts.items()}
    problems = [*against_nvidia_smi(said, driver["version"].get("value")), *against_torch(said)]
    if said["name_and_compute_capability"] is None:
        problems.append("no GPU was found")
    if (named := (said["uuid"] or {}).values()) and any(
        uuid in (folder / "fingerprint-hidden.json").read_text() for uuid in named
    ):
        problems.append("--hash-ids left a UUID in the fingerprint")
    print("\n".join(problems) or "every comparison agrees")
    return min(len(problems), 1)


def against_nvidia_smi(said: dict[str, Any], version: str | None) -> list[str]:
    """Name, UUID, bus and driver by NVIDIA's own tool."""
    if shutil.which("nvidia-smi") is None:
        return ["nvidia-smi is not installed"]
    query = "--query-gpu=index,name,uuid,pci.bus_id,vbios_version,driver_version"
    output = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout
    problems = []
    for line in output.splitlines():
        index, *values, told_version = line.split(", ")
        for name, value in zip(("name", "uuid", "pci_bus_id", "vbios"), values, strict=True):
            if (said[name] or {}).get(index) != value:
                problems.append(f"{name} of GPU {index}: {said[name]}, but nvidia-smi says {value}")
        if told_version != version:
            problems.append(f"driver {version}, but nvidia-smi says {told_version}")
    return problems


def against_torch(said: dict[str, Any]) -> list[str]:
    """Name, compute capability, SM count and order by torch, where it has CUDA."""
    try:
        import torch
    except ImportError:
        print("torch is not installed: nothing to compare with")
        return []
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} has no CUDA device: nothing to compare with")
        return []
    problems = []
    if torch.cuda.device_count() != said["count"]:
        problems.append(f"{said['count']} devices, but torch counts {torch.cuda.device_count()}")
    for ordinal in range(torch.cuda.device_count()):
        device, key = torch.cuda.get_device_properties(ordinal), str(ordinal)
        told = {
            "sm_count": device.multi_processor_count,
            "compute_capability": f"{device.major}.{device.minor}",
        }
        for name, value in told.items():
            if (said[name] or {}).get(key) != value:
                problems.append(f"{name} of device {key}: {said[name]}, but torch says {value}")
        nvml = ((said["rank_order"] or {}).get(key) or {}).get("nvml")
        uuid = str(getattr(device, "uuid", ""))
        known = {**(said["uuid"] or {}), **(said["mig_uuid"] or {})}.get(nvml, "")
        if uuid and uuid not in known:
            problems.append(f"device {key} is {known}, but torch says {uuid}")
    return problems


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
