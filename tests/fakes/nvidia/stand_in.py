"""Stand-ins for NVIDIA's driver libraries, compiled once, and profiles of machines that they play.

The figures are those of public data sheets and documents; the machines were not seen.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCES = {"libnvidia-ml.so.1": "nvml.c", "libcuda.so.1": "cuda.c"}
COMPILERS = ("cc", "gcc", "clang")
DRIVER = "580.159.03"


def compiler() -> str | None:
    """The system's C compiler."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def build(folder: Path) -> None:
    """Compile both libraries into `folder`."""
    here = Path(__file__).parent
    for library, source in SOURCES.items():
        command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wno-unused-function"]
        subprocess.run([*command, "-o", str(folder / library), str(here / source), "-ldl"], check=True)


def uuid_of(gpu: int) -> str:
    """A GPU's UUID in these profiles."""
    return f"GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f{gpu:x}"


def machine(count: int = 1, **more: str) -> dict[str, str]:
    """A machine with `count` H200; `more` has further or other lines, `__` standing for a dot."""
    lines = {
        "driver": DRIVER,
        "nvml": f"13.{DRIVER}",
        "cuda": "13000",
        "count": str(count),
        "visible": ",".join(map(str, range(count))),
    }
    every = {
        "name": "NVIDIA H200",
        "serial": "1652923000000",
        "major": "9",
        "minor": "0",
        "sms": "132",
        "cuda_cores": "16896",
        "memory": "150754820096",
        "memory_used": "1048576",
        "vbios": "96.00.C5.00.01",
        "gsp": DRIVER,
        "virtualization": "0",
        "mig": "0",
        "mig_pending": "0",
        "ecc": "1",
        "ecc_pending": "1",
        "persistence": "1",
        "compute_mode": "0",
        "power_limit_mw": "700000",
        "power_mw": "76400",
        "temperature": "31",
        "performance_state": "0",
        "utilization": "0",
        "application_clock.sm": "1980",
        "application_clock.memory": "3201",
        "max_clock.sm": "1980",
        "max_clock.memory": "3201",
        "clock.sm": "345",
        "clock.memory": "3201",
        "pcie_generation": "5",
        "pcie_width": "16",
        "numa_node": "0",
        "cpus": "0xff",
        "fabric": "0",
        "l2": "62914560",
        "bus_bits": "6144",
        "registers": "65536",
        "shared_block": "232448",
        "shared_sm": "233472",
        "threads_sm": "2048",
    }
    lines |= {f"gpu.*.{name}": value for name, value in every.items()}
    for gpu in range(count):
        lines[f"gpu.{gpu}.uuid"] = uuid_of(gpu)
        lines[f"gpu.{gpu}.pci"] = f"00000000:{0x19 + gpu:02X}:00.0"
        lines[f"gpu.{gpu}.cuda_pci"] = f"0000:{0x19 + gpu:02x}:00.0"
    return lines | {name.replace("__", "."): value for name, value in more.items()}


def eight_with_nvlink() -> dict[str, str]:
    """Eight H200 on NVSwitch: 18 links each over four switches, two processors."""
    lines = machine(8)
    switches = {f"gpu.*.link_remote.{place}": f"00000000:{5 + place:02X}:00.0" for place in range(4)}
    lines |= switches | {"gpu.*.links": "18", "gpu.*.link_kind": "2"}
    lines |= {"gpu.*.fabric": "3", "gpu.*.fabric_cluster": "11111111-2222-3333-4444-555555555555"}
    lines |= {"pair.*.p2p_read": "0", "pair.*.p2p_nvlink": "0"}
    for one in range(8):
        for other in range(one + 1, 8):
            lines[f"pair.{one}-{other}.ancestor"] = "40" if one // 4 == other // 4 else "50"
    return lines


def mig_slice() -> dict[str, str]:
    """One H200 cut into a slice of one seventh, and that slice is what CUDA sees."""
    lines = machine(1)
    lines |= {"gpu.*.mig": "1", "gpu.*.mig_pending": "1", "gpu.*.slices": "7"}
    slice_ = {
        "name": "NVIDIA H200 MIG 1g.18gb",
        "uuid": "MIG-99999999-8888-7777-6666-555555555555",
        "sms": "16",
        "memory_mib": "16384",
        "gpu_slices": "1",
        "compute_slices": "1",
        "gpu_instance": "7",
        "compute_instance": "0",
    }
    lines |= {f"gpu.0.slice.2.{name}": value for name, value in slice_.items()}
    return lines | {"gpu.0.cuda_name": slice_["name"], "gpu.0.cuda_uuid": slice_["uuid"], "gpu.0.sms": "16"}


def write(lines: dict[str, str], path: Path) -> Path:
    """A profile as the libraries read it."""
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    return path
