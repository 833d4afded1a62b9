"""Accelerators of other makers, read from recordings of their tools.

The recordings follow the public documentation of the tools (AMD SMI, npu-smi, Intel XPU Manager); none was
made on a real card. A stand-in tool prints them.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rip.fingerprint.collect import PROBES, collect
from rip.fingerprint.export import hash_ids
from rip.fingerprint.probes import accelerators
from rip.fingerprint.untrusted import program
from rip.schemas.fingerprint import Fact, Fingerprint

ACCELERATORS = [probe for probe in PROBES if probe.name == "accelerators"]

AMD_CARD = {
    "asic": {
        "market_name": "AMD Instinct MI300X",
        "vendor_id": "0x1002",
        "device_id": "0x74a1",
        "rev_id": "0x00",
        "asic_serial": "0x5A5A1234DEADBEEF",
        "oam_id": 0,
        "num_compute_units": 304,
        "target_graphics_version": "gfx942",
    },
    "bus": {"bdf": "0000:05:00.0", "max_pcie_width": 16, "pcie_levels": "N/A"},
    "vbios": {"name": "N/A", "build_date": "2024/08/01", "part_number": "113-M300", "version": "022.040"},
    "driver": {"name": "amdgpu", "version": "6.12.12"},
    "vram": {"type": "HBM3", "vendor": "HYNIX", "size": {"value": 196592, "unit": "MB"}},
    "limit": {"max_power": {"value": 750, "unit": "W"}},
    "partition": {"compute_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
}
AMD_NEWER = json.dumps({"gpu_data": [{"gpu": 0, **AMD_CARD}, {"gpu": 1, **AMD_CARD}]})
AMD_OLDER = json.dumps([{"gpu": 0, **AMD_CARD}])

ASCEND = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.2        38                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3398 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Warning       | -           39                0    / 0             |
| 0                         | 0000:01:00.0  | 12          0    / 0          41697/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 1       0                 | 4711          | python3                  | 38310                   |
+===========================+===============+====================================================+
"""
ASCEND_TWO_CHIPS = """
| npu-smi 25.2.0                   Version: 25.2.0                                               |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.9       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3412 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3200 / 65536         |
+===========================+===============+====================================================+
"""
INTEL = json.dumps(
    {
        "device_list": [
            {
                "device_id": 0,
                "device_name": "Intel(R) Data Center GPU Max 1550",
                "device_type": "GPU",
                "pci_bdf_address": "0000:4d:00.0",
                "pci_device_id": "0xbd5",
                "uuid": "00000000-0000-0000-0000-bd5000008086",
                "vendor_name": "Intel(R) Corporation",
            }
        ]
    }
)

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a shell script as a tool on a PATH that has nothing else but the system's basics."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))

    def write(name: str, script: str) -> None:
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)

    return write


def prints(text: str, arguments: str) -> str:
    """A script that prints a recording when it is called as documented."""
    return f"[ \"$*\" = '{arguments}' ] || exit 9\ncat <<'END'\n{text}\nEND"


def read() -> Fingerprint:
    return collect(probes=ACCELERATORS)


def reading(found: Fingerprint, name: str) -> Fact:
    fact = found.get("gpus", name)
    assert fact is not None
    return fact


@pytest.mark.parametrize("form", [AMD_NEWER, AMD_OLDER])
def test_amd_by_its_command_line_tool(install: Install, form: str) -> None:
    install("amd-smi", prints(form, "static --json"))
    found = read()
    amd = reading(found, "amd")
    assert amd.source == "amd-smi static --json"
    assert amd.value["devices"]["0"] == {
        "market_name": "AMD Instinct MI300X",
        "vendor_id": "0x1002",
        "device_id": "0x74a1",
        "rev_id": "0x00",
        "asic_serial": "0x5A5A1234DEADBEEF",
        "num_compute_units": 304,
        "target_graphics_version": "gfx942",
        "bdf": "0000:05:00.0",
        "driver_name": "amdgpu",
        "driver_version": "6.12.12",
        "vbios_build_date": "2024/08/01",
        "vbios_part_number": "113-M300",
        "vbios_version": "022.040",
        "vram_type": "HBM3",
        "vram_size": "196592 MB",
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
    }
    one, two = "AMD Instinct MI300X gfx942", "2 x AMD Instinct MI300X gfx942"
    assert found.flat()["gpu_name_and_compute_capability"] == (two if form == AMD_NEWER else one)
    assert "0x5A5A1234DEADBEEF" not in hash_ids(found).to_json()


def test_amd_by_its_python_package(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asic = {name: value for name, value in AMD_CARD["asic"].items() if name != "oam_id"}
    (tmp_path / "amdsmi.py").write_text(
        f"def amdsmi_init(): pass\n"
        f"def amdsmi_shut_down(): pass\n"
        f"def amdsmi_get_processor_handles(): return ['first']\n"
        f"def amdsmi_get_gpu_asic_info(handle): return {asic!r}\n"
        f"def amdsmi_get_gpu_device_uuid(handle): return '8aff74a1-0000-1000-80c5-123456789abc'\n"
        f"def amdsmi_get_gpu_device_bdf(handle): return '0000:05:00.0'\n"
        f"def amdsmi_get_gpu_driver_info(handle):\n"
        f"    return {{'driver_name': 'amdgpu', 'driver_version': '6.12.12'}}\n"
        f"def amdsmi_get_gpu_vram_info(handle): return {{'vram_type': 'HBM3', 'vram_size': 196592}}\n"
        f"def amdsmi_get_gpu_vbios_info(handle): raise RuntimeError('not for this user')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    amd = reading(read(), "amd")
    assert amd.source == "amdsmi"
    card = amd.value["devices"]["0"]
    assert (card["market_name"], card["bdf"], card["driver_version"]) == (
        "AMD Instinct MI300X",
        "0000:05:00.0",
        "6.12.12",
    )
    assert card["uuid"] == "8aff74a1-0000-1000-80c5-123456789abc"
    assert "vbios_version" not in card
    assert "amdsmi" not in sys.modules


def test_ascend(install: Install) -> None:
    install("npu-smi", prints(ASCEND, "info"))
    found = read()
    ascend = reading(found, "ascend")
    assert ascend.source == "npu-smi info"
    assert ascend.value == {
        "devices": {
            "0/0": {"name": "910B3", "pci_bus_id": "0000:C1:00.0", "memory_total_mb": 65536},
            "1/0": {"name": "910B3", "pci_bus_id": "0000:01:00.0", "memory_total_mb": 65536},
        },
        "driver_version": "24.1.0",
    }
    assert found.flat()["gpu_name_and_compute_capability"] == "2 x Ascend 910B3"
    assert reading(found, "torch_npu").unavailable == "not installed"


def test_ascend_with_two_chips_a_card(install: Install) -> None:
    install("npu-smi", prints(ASCEND_TWO_CHIPS, "info"))
    devices = reading(read(), "ascend").value["devices"]
    assert list(devices) == ["0/0", "0/1"]
    assert devices["0/1"]["pci_bus_id"] == "0000:9F:00.0"


def test_intel(install: Install) -> None:
    install("xpu-smi", prints(INTEL, "discovery -j"))
    found = read()
    assert reading(found, "intel_xpu").source == "xpu-smi discovery -j"
    assert reading(found, "intel_xpu").value["devices"]["0"]["pci_bdf_address"] == "0000:4d:00.0"
    assert found.flat()["gpu_name_and_compute_capability"] == "Intel(R) Data Center GPU Max 1550"


def test_without_tools_each_says_so(install: Install) -> None:
    found = read()
    assert reading(found, "amd").unavailable == (
        "amd-smi is not on the PATH, and the package amdsmi is not installed"
    )
    assert reading(found, "ascend").unavailable == "npu-smi is not on the PATH"
    assert reading(found, "intel_xpu").unavailable == "xpu-smi is not on the PATH"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo nothing here; exit 3", "it ended with exit code 3"),
        ("echo '{\"device_list\": [7]}'", "it lists no device, or in a form that rip does not know"),
        ("echo '[]'", "it lists no device, or in a form that rip does not know"),
        ("printf '\\377\\376'", "it lists no device, or in a form that rip does not know"),
        ("exec sleep 600", "no answer in time"),
        ("while :; do echo 0123456789abcdef0123456789abcdef; done", "it printed more than 1 MiB"),
    ],
)
def test_a_tool_that_fails_is_a_fact(
    install: Install, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(accelerators, "LIMIT_S", 0.5 if "sleep" in script else 20.0)
    monkeypatch.setattr(program, "MAX_OUTPUT", 1 << 20)
    install("xpu-smi", script)
    assert reading(read(), "intel_xpu").unavailable == reason
