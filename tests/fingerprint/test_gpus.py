"""GPUs as facts, with NVIDIA's real Python bindings on stand-in driver libraries (tests/fakes/nvidia)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.nvidia import stand_in
from rip.fingerprint.collect import PROBES, collect
from rip.fingerprint.drift import drift
from rip.fingerprint.export import hash_ids
from rip.fingerprint.gpus import driver_query
from rip.fingerprint.probes import nvidia
from rip.fingerprint.probes.context import Context
from rip.schemas.fingerprint import Fact, Fingerprint

GPU_PROBES = [probe for probe in PROBES if probe.name in ("nvidia", "engine")]
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, VERSION_MISMATCH, DRIVER_MISMATCH = 3, 4, 15, 18, 803
UUID = stand_in.uuid_of(0)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both stand-in libraries."""
    if stand_in.compiler() is None:
        pytest.skip(f"the stand-in libraries need a C compiler: one of {', '.join(stand_in.COMPILERS)}")
    if not sys.platform.startswith("linux"):
        pytest.skip("the stand-in libraries are put on the loader path of Linux")
    folder = tmp_path_factory.mktemp("nvidia")
    stand_in.build(folder)
    return folder


@dataclass
class Machine:
    """Plays a machine to every process that is started from this test."""

    libraries: Path
    folder: Path
    set_variable: Callable[[str, str], None]

    def plays(self, lines: dict[str, str], only: str | None = None) -> None:
        """Put a profile in place; `only` one of the two libraries is installed."""
        path = self.libraries
        if only is not None:
            path = self.folder / "only"
            path.mkdir()
            shutil.copy(self.libraries / only, path)
        self.set_variable("LD_LIBRARY_PATH", str(path))
        self.set_variable("RIP_STAND_IN_GPUS", str(stand_in.write(lines, self.folder / "profile")))
        self.set_variable("RIP_STAND_IN_LOG", str(self.folder / "calls"))

    def calls(self) -> list[str]:
        """Every call that the libraries got."""
        return (self.folder / "calls").read_text().split()


@pytest.fixture
def machine(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(variable, raising=False)
    # What the kernel of the machine under the tests says is not the stand-in's.
    monkeypatch.setattr(nvidia, "_KERNEL_MODULE", tmp_path / "no-module")
    return Machine(libraries, tmp_path, monkeypatch.setenv)


def read() -> Fingerprint:
    return collect(probes=GPU_PROBES)


def gpus(found: Fingerprint, name: str) -> Fact:
    reading = found.get("gpus", name)
    assert reading is not None, name
    return reading


def driver(found: Fingerprint, name: str) -> Fact:
    reading = found.get("driver", name)
    assert reading is not None, name
    return reading


def test_one_h200(machine: Machine) -> None:
    machine.plays(stand_in.machine())
    found = read()
    assert found.flat()["gpu_name_and_compute_capability"] == "NVIDIA H200 9.0"
    assert gpus(found, "sm_count").value == {"0": 132}
    assert gpus(found, "sm_count").source == "cuda-driver"
    assert gpus(found, "count").value == gpus(found, "installed_count").value == 1
    assert gpus(found, "uuid").value == {"0": UUID}
    assert gpus(found, "memory_total_bytes").value == {"0": 150754820096}
    assert gpus(found, "ecc_mode").value == {"0": "enabled"}
    assert gpus(found, "power_limit_w").value == {"0": 700.0}
    assert gpus(found, "cpu_affinity").value == {"0": "0-7"}
    assert gpus(found, "cuda_attributes").value["0"]["l2_cache_bytes"] == 62914560
    assert gpus(found, "topology").unavailable == "there is one GPU only"
    assert driver(found, "version").value == stand_in.DRIVER
    assert driver(found, "cuda_version").value == "13.0"
    assert driver(found, "libraries").value == {
        "libnvidia-ml.so.1": "libnvidia-ml.so.1",
        "libcuda.so.1": "libcuda.so.1",
    }


def test_clocks_and_temperatures_are_volatile_and_the_modes_are_not(machine: Machine) -> None:
    machine.plays(stand_in.machine())
    cold = read()
    assert cold.sections["gpus"].volatile["temperature_c"].value == {"0": 31}
    machine.plays(
        stand_in.machine(
            gpu__0__temperature="84", gpu__0__clock__sm="1980", gpu__0__memory_used="9", gpu__0__process="7"
        )
    )
    warm = read()
    assert warm.sections["gpus"].volatile["temperature_c"].value == {"0": 84}
    assert warm.root_digest == cold.root_digest
    machine.plays(stand_in.machine(gpu__0__ecc="0", gpu__0__sms="114"))
    other = read()
    assert {change.field for change in drift(cold, other)} == {"ecc_mode", "sm_count"}
    assert gpus(other, "ecc_mode").value == {"0": {"current": "disabled", "pending": "enabled"}}


def test_eight_gpus_with_nvlink(machine: Machine) -> None:
    machine.plays(stand_in.eight_with_nvlink())
    found = read()
    assert found.flat()["gpu_name_and_compute_capability"] == "8 x NVIDIA H200 9.0"
    assert gpus(found, "sm_count").value == {str(gpu): 132 for gpu in range(8)}
    assert len(gpus(found, "topology").value) == len(gpus(found, "p2p").value) == 28
    assert gpus(found, "topology").value["3-4"] == "SYS"
    assert gpus(found, "topology").value["0-3"] == "NODE"
    assert gpus(found, "p2p").value["0-7"] == "read ok, nvlink ok"
    links = gpus(found, "nvlink").value["5"]
    assert links["active"] == 18
    assert links["remote"]["switch 00000000:05:00.0"] == 5
    assert gpus(found, "fabric").value["0"]["state"] == "completed"
    machine.plays({**stand_in.eight_with_nvlink(), "gpu.5.links_down": "0x8"})
    changes = drift(found, read())
    assert [change.field for change in changes] == ["nvlink"]
    assert changes[0].after is not None
    assert changes[0].after.value["5"]["inactive_links"] == [3]


def test_unequal_gpus_are_listed(machine: Machine) -> None:
    machine.plays(stand_in.machine(2, gpu__1__name="NVIDIA L4", gpu__1__major="8", gpu__1__minor="9"))
    assert read().flat()["gpu_name_and_compute_capability"] == ["NVIDIA H200 9.0", "NVIDIA L4 8.9"]


def test_ranks_follow_the_visible_devices_of_the_observed_process(machine: Machine) -> None:
    machine.plays(stand_in.machine(4))
    found = collect(probes=GPU_PROBES, environ={"CUDA_VISIBLE_DEVICES": "3,1"})
    assert gpus(found, "rank_order").value == {
        "0": {"pci_bus_id": "0000:1c:00.0", "nvml": "3"},
        "1": {"pci_bus_id": "0000:1a:00.0", "nvml": "1"},
    }
    assert gpus(found, "CUDA_VISIBLE_DEVICES").value == "3,1"
    assert (gpus(found, "count").value, gpus(found, "installed_count").value) == (2, 4)
    turned = collect(probes=GPU_PROBES, environ={"CUDA_VISIBLE_DEVICES": "1,3"})
    assert {change.field for change in drift(found, turned)} == {"rank_order", "CUDA_VISIBLE_DEVICES"}


def test_no_visible_device_is_told_from_no_gpu(machine: Machine) -> None:
    machine.plays(stand_in.machine())
    found = collect(probes=GPU_PROBES, environ={"CUDA_VISIBLE_DEVICES": ""})
    said = found.flat()["gpu_name_and_compute_capability"]
    assert said.startswith("unavailable: no GPU is visible to this process (CUDA_ERROR_NO_DEVICE)")
    assert gpus(found, "name").value == {"0": "NVIDIA H200"}


def test_a_mig_slice(machine: Machine) -> None:
    machine.plays(stand_in.mig_slice())
    found = read()
    assert found.flat()["gpu_name_and_compute_capability"] == "NVIDIA H200 MIG 1g.18gb 9.0"
    assert gpus(found, "sm_count").value == {"0": 16}
    assert gpus(found, "mig_mode").value == {"0": "enabled"}
    assert gpus(found, "mig_slices").value["0/2"]["sm_count"] == 16
    assert gpus(found, "mig_slices").value["0/2"]["compute_slices"] == 1
    assert gpus(found, "rank_order").value == {"0": {"pci_bus_id": "0000:19:00.0", "nvml": "0/2"}}
    machine.plays(stand_in.machine())
    assert gpus(read(), "mig_slices").unavailable == "no GPU is in MIG mode"


def test_a_call_that_is_not_supported_leaves_the_others(machine: Machine) -> None:
    plan = {"fail.nvmlDeviceGetSerial": str(NOT_SUPPORTED), "fail.nvmlDeviceGetEccMode.1": str(NO_PERMISSION)}
    machine.plays(stand_in.machine(2) | plan)
    found = read()
    assert "does not support it (NVML_ERROR_NOT_SUPPORTED)" in (gpus(found, "serial").unavailable or "")
    modes = gpus(found, "ecc_mode").value
    assert modes["0"] == "enabled"
    assert modes["1"].startswith("unavailable: no permission (NVML_ERROR_NO_PERMISSION): run as root")
    assert gpus(found, "name").value == {"0": "NVIDIA H200", "1": "NVIDIA H200"}


def test_a_driver_that_is_older_than_a_call(machine: Machine) -> None:
    machine.plays(stand_in.machine() | {"fail.nvmlDeviceGetGpuFabricInfoV": "13"})
    assert "older than the question" in (gpus(read(), "fabric").unavailable or "")


def test_a_lost_gpu_is_named_beside_the_others(machine: Machine) -> None:
    machine.plays(stand_in.machine(2) | {"fail.nvmlDeviceGetHandleByIndex_v2.1": str(GPU_IS_LOST)})
    names = gpus(read(), "name").value
    assert names["0"] == "NVIDIA H200"
    assert names["1"].startswith("unavailable: the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)")


def test_library_and_kernel_module_of_different_versions(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"fail.nvmlInitWithFlags": str(VERSION_MISMATCH), "fail.cuInit": str(DRIVER_MISMATCH)}
    machine.plays(stand_in.machine() | plan)
    module = tmp_path / "version"
    module.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (someone@host)\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    monkeypatch.setattr(nvidia, "_KERNEL_MODULE", module)
    found = read()
    for name in ("name_and_compute_capability", "sm_count", "uuid", "count", "installed_count"):
        assert "have different versions" in (gpus(found, name).unavailable or ""), name
    assert driver(found, "kernel_module").value == {"version": "575.57.08", "flavour": "open"}
    assert driver(found, "version").value == "575.57.08"
    assert driver(found, "nvml_version").value == f"13.{stand_in.DRIVER}"


def test_a_call_that_hangs_costs_its_own_fact_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_query, "LIMIT_S", 3.0)  # enough for what comes before
    machine.plays(stand_in.machine() | {"hang.nvmlDeviceGetVbiosVersion": "1"})
    found = read()
    assert gpus(found, "name").value == {"0": "NVIDIA H200"}
    hung = gpus(found, "vbios").unavailable
    assert hung == "libnvidia-ml.so.1: no answer in time when it was asked for vbios of GPU 0"
    assert gpus(found, "sm_count").value == {"0": 132}
    assert driver(found, "version").value == stand_in.DRIVER
    assert "child_nvml" not in " ".join(commands_of_children())


def commands_of_children() -> list[str]:
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread of another test, or a child, that has just ended
            pids = (thread / "children").read_text().split()
            found += [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
    return found


@pytest.mark.parametrize("call", ["cuInit", "nvmlInitWithFlags"])
def test_a_hanging_driver_does_not_keep_the_command(machine: Machine, call: str) -> None:
    machine.plays(stand_in.machine() | {f"hang.{call}": "1"})
    script = (
        "from rip.fingerprint.gpus import driver_query; driver_query.LIMIT_S = 0.7\n"
        "from rip.fingerprint.collect import collect; print(collect().to_json())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    found = Fingerprint.from_json(done.stdout, "it")
    hung = gpus(found, "sm_count" if call == "cuInit" else "vbios")
    assert "no answer in time" in (hung.unavailable or "")


def test_a_call_that_crashes_is_a_fact(machine: Machine) -> None:
    machine.plays(stand_in.machine() | {"crash.cuDeviceGetName": "1"})
    found = read()
    assert gpus(found, "count").value == 1
    assert gpus(found, "name").value == {"0": "NVIDIA H200"}
    said = gpus(found, "sm_count").unavailable
    assert said == "libcuda.so.1: it was ended by signal 11 when it was asked for name of GPU 0"


def test_a_container_without_nvml_still_has_the_driver_api(machine: Machine) -> None:
    machine.plays(stand_in.machine(), only="libcuda.so.1")
    found = read()
    assert found.flat()["gpu_name_and_compute_capability"] == "NVIDIA H200 9.0"
    assert gpus(found, "uuid").value == {"0": UUID}
    assert gpus(found, "vbios").unavailable is not None
    assert driver(found, "cuda_version").value == "13.0"


def test_without_the_driver_api_nvml_stands_in(machine: Machine) -> None:
    machine.plays(stand_in.machine(2), only="libnvidia-ml.so.1")
    found = read()
    summary = gpus(found, "name_and_compute_capability")
    assert (summary.value, summary.source) == ("2 x NVIDIA H200 9.0", "nvml")
    assert gpus(found, "sm_count").unavailable is not None
    assert driver(found, "cuda_version").source == "nvml"


def test_this_process_never_touches_cuda(machine: Machine) -> None:
    machine.plays(stand_in.machine())
    script = (
        "import sys; from rip.fingerprint.collect import collect\n"
        "found = collect(); maps = open('/proc/self/maps').read()\n"
        "print(found.flat()['gpu_name_and_compute_capability'])\n"
        "print([name for name in ('libcuda.so', 'libnvidia-ml.so') if name in maps])\n"
        "print([name for name in ('pynvml', 'cuda.bindings.driver', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["NVIDIA H200 9.0", "[]", "[]"]
    calls = machine.calls()
    assert "cuInit" in calls
    assert not [call for call in calls if "Ctx" in call or "Set" in call or "Reset" in call]


def test_the_gpus_of_a_named_process(machine: Machine) -> None:
    machine.plays(stand_in.machine(2, gpu__1__process="4711", gpu__1__process_memory="1073741824"))
    context = Context(None, {}, pid=4700, family=(4700, 4711), root=Path("/"))
    section = nvidia.probe(context)["gpus"]
    assert section.facts["used_by_process"].value == ["1"]
    assert section.volatile["processes"].value == {
        "0": [],
        "1": [{"pid": 4711, "memory_bytes": 1073741824}],
    }
    other = nvidia.probe(Context(None, {}, pid=1, family=(1,), root=Path("/")))["gpus"]
    assert (other.facts["used_by_process"].unavailable or "").startswith("NVML lists none of its processes")


def test_devices_of_a_process_in_a_container_are_not_numbered_from_outside(
    machine: Machine, tmp_path: Path
) -> None:
    machine.plays(stand_in.machine(2))
    context = Context(None, {"CUDA_VISIBLE_DEVICES": "1"}, pid=1, family=(1,), root=tmp_path)
    facts = nvidia.probe(context)["gpus"].facts
    assert "run rip inside it" in (facts["rank_order"].unavailable or "")
    assert facts["name_and_compute_capability"].value == "2 x NVIDIA H200 9.0"


def test_names_of_cards_can_be_hashed_and_still_be_compared(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "inference-17")
    lines = stand_in.eight_with_nvlink() | {f"gpu.{gpu}.serial": f"16529230{gpu}" for gpu in range(8)}
    machine.plays(lines)
    plain, hidden = read(), hash_ids(read())
    cluster = lines["gpu.*.fabric_cluster"]
    for secret in (UUID, UUID.removeprefix("GPU-"), "16529230", cluster, "inference-17"):
        assert secret in plain.to_json()
        assert secret not in hidden.to_json()
    assert gpus(hidden, "uuid").value["0"].startswith("sha256:")
    assert gpus(hidden, "name") == gpus(plain, "name")
    assert hash_ids(read()).root_digest == hidden.root_digest == hash_ids(hidden).root_digest
    machine.plays(lines | {"gpu.3.uuid": stand_in.uuid_of(9)})
    changes = drift(hidden, hash_ids(read()))
    assert [change.field for change in changes] == ["uuid"]
    named = hash_ids(collect(probes=GPU_PROBES, environ={"CUDA_VISIBLE_DEVICES": UUID}))
    assert UUID not in named.to_json()
    assert gpus(named, "CUDA_VISIBLE_DEVICES").value == gpus(hidden, "uuid").value["0"]


def test_two_readings_of_an_unchanged_machine_are_equal(machine: Machine) -> None:
    machine.plays(stand_in.eight_with_nvlink())
    digests = {read().root_digest for _ in range(3)}
    assert len(digests) == 1
    machine.plays(stand_in.eight_with_nvlink() | {"gpu.7.vbios": "96.00.C5.00.02"})
    assert read().root_digest not in digests  # the control


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if driver_query.why_absent(driver_query.NVML) is None:
        pytest.skip("this machine has an NVIDIA driver")
    found = read()
    said = json.dumps(found.flat()["gpu_name_and_compute_capability"])
    assert "no NVIDIA driver: libcuda.so.1 is not on the loader's path" in said
    readings = {**found.sections["gpus"].facts, **found.sections["driver"].facts}
    assert {name for name, reading in readings.items() if reading.value is not None} == set()
    assert found.sections["gpus"].volatile == {}


def test_the_command_line_hides_the_names_of_cards(machine: Machine, tmp_path: Path) -> None:
    machine.plays(stand_in.machine())
    plain, hidden = tmp_path / "plain.json", tmp_path / "hidden.json"
    rip = [sys.executable, "-c", "from rip.cli import main; main()", "fingerprint"]
    subprocess.run([*rip, "-o", str(plain)], check=True, capture_output=True)
    subprocess.run([*rip, "--hash-ids", "-o", str(hidden)], check=True, capture_output=True)
    assert UUID in plain.read_text()
    assert UUID not in hidden.read_text()
    compared = [*rip, "--hash-ids", "--against", str(plain)]
    assert subprocess.run(compared, capture_output=True).returncode == 0
    machine.plays(stand_in.machine(gpu__0__uuid=stand_in.uuid_of(5)))
    changed = subprocess.run(compared, capture_output=True, text=True)
    assert changed.returncode == 1
    assert "gpus.uuid" in changed.stdout + changed.stderr
    assert stand_in.uuid_of(5) not in changed.stdout + changed.stderr
