"""Libraries as facts: which copy is loaded, its version and build-id, a warning where it is another one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.libraries import NCCL, build, install, running
from fakes.nvidia.stand_in import compiler
from rip.fingerprint.libraries import version_query as library_answers
from rip.fingerprint.libraries.version_child import VERSION_FUNCTIONS
from rip.fingerprint.probes import nccl_conf, numeric_libraries
from rip.fingerprint.probes.context import Context
from rip.schemas.fingerprint import Fact, Section

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the stand-in libraries need a C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="loaded libraries are read from /proc"),
]
VERSIONS = {
    "cudart": ("libcudart.so.13", "int cudaRuntimeGetVersion(int *v) { *v = 13050; return 0; }", "13.5"),
    "cublaslt": ("libcublasLt.so.13", "unsigned long cublasLtGetVersion(void) { return 131000; }", "13.10.0"),
    "cublas": (
        "libcublas.so.13",
        "int cublasGetProperty(int which, int *v) { *v = (int[]){13, 10, 2}[which]; return 0; }",
        "13.10.2",
    ),
    "cudnn": ("libcudnn.so.9", "unsigned long cudnnGetVersion(void) { return 92801; }", "9.28.1"),
    "nccl": ("libnccl.so.2", NCCL % 23203, "2.32.3"),
    "nvrtc": ("libnvrtc.so.13", "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 5; return 0; }", "13.5"),
    "cuda_driver": ("libcuda.so.1", "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }", "13.0"),
}


def section(pid: int | None = None, family: tuple[int, ...] = (), **environ: str) -> Section:
    """The libraries of this process, or of a named one."""
    root = Path("/") if pid is None else Path(f"/proc/{pid}/root")
    return numeric_libraries.probe(Context(None, environ, pid=pid, root=root, family=family))["libraries"]


def reason(found: Section, field: str) -> str:
    text = found.facts[field].unavailable
    assert text is not None
    return text


# The section of this process.


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own `site-packages` in front of the others."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)
    return folder


def test_every_library_states_its_version_without_staying_in_this_process(site: Path) -> None:
    for number, (family, (name, source, _)) in enumerate(VERSIONS.items()):
        package = "torch" if family == "cuda_driver" else "nvidia/all"
        build(site / package / "lib" / name, source, build_id=f"00a{number}")
    found = section(LD_LIBRARY_PATH=str(site / "torch" / "lib"))
    for number, (family, (name, _, version)) in enumerate(VERSIONS.items()):
        assert found.facts[family].value == version
        assert found.facts[f"{family}_build_id"].value == f"00a{number}"
        assert "not loaded" in found.facts[family].source
        assert str(site) not in Path("/proc/self/maps").read_text(), name
    assert section(LD_LIBRARY_PATH=str(site / "torch" / "lib")) == found


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("int ncclGetVersion(int *v) { return 3; }", "answered error 3"),
        ("int ncclGetVersion(int *v) { *v = 0; return 0; }", "answered 0: that is no version"),
        ("int other;", "has no function ncclGetVersion"),
        ("int ncclGetVersion(int *v) { return *(volatile int *)8; }", "ended by signal 11"),
        ("int ncclGetVersion(int *v) { for (;;) ; }", "no answer in time from ncclGetVersion"),
        ("extern int gone(void); int ncclGetVersion(int *v) { return gone(); }", ""),
    ],
)
def test_a_library_that_fails_is_a_fact_and_the_others_answer(
    site: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.setattr(library_answers, "LIMIT_S", 1)
    build(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", source)
    for family in ("cudart", "nvrtc"):  # one asked before, one behind
        build(site / "nvidia" / family / "lib" / VERSIONS[family][0], VERSIONS[family][1])
    found = section()
    assert said in reason(found, "nccl")
    assert found.facts["nccl_build_id"].value == "00aa"
    assert (found.facts["cudart"].value, found.facts["nvrtc"].value) == ("13.5", "13.5")


def test_success_and_zero_is_no_driver(site: Path) -> None:
    source = VERSIONS["cudart"][1] + "int cudaDriverGetVersion(int *v) { *v = 0; return 0; }"
    build(site / "nvidia" / "cu13" / "lib" / "libcudart.so.13", source)
    found = section()
    assert found.facts["cudart"].value == "13.5"
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver, which is asked first")
    assert reason(found, "cuda_driver") == "cudaDriverGetVersion answered 0: there is no driver"


@pytest.mark.parametrize(
    ("family", "number", "version"),
    [
        ("nccl", 2708, "2.7.8"),
        ("cudnn", 8907, "8.9.7"),
        ("cublaslt", 120804, "12.8.4"),
        ("cudart", 12080, "12.8"),
    ],
)
def test_numbers_of_every_age_are_read_as_their_headers_say(family: str, number: int, version: str) -> None:
    from rip.fingerprint.libraries import version_child

    class Library:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> int:
                if arguments:
                    arguments[0]._obj.value = number
                    return 0
                return number

            return call

    assert version_child.read_version(Library(), family) == version  # type: ignore[arg-type]
    assert set(VERSION_FUNCTIONS) >= {family}


def test_of_several_copies_the_one_counts_that_torch_was_linked_against(site: Path) -> None:
    twelve = VERSIONS["cudart"][1].replace("13050", "12080")
    build(site / "nvidia" / "cu13" / "lib" / "libcudart.so.13", VERSIONS["cudart"][1], build_id="0013")
    other = build(site / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12", twelve, build_id="0012")
    assert section().facts["cudart"].value == "13.5"
    torch = site / "torch" / "lib" / "libtorch_cuda.so"
    torch.parent.mkdir(parents=True)
    command = [compiler() or "cc", "-shared", "-o", str(torch), "-Wl,--no-as-needed", str(other)]
    subprocess.run(command, check=True)
    found = section()
    assert (found.facts["cudart"].value, found.facts["cudart_build_id"].value) == ("12.8", "0012")
    assert set(found.facts["cudart_copies"].value) >= {
        "site-packages/nvidia/cu13/lib/libcudart.so.13",
        "site-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
    }


def test_a_planted_library_changes_its_build_id_and_its_size_its_package(site: Path) -> None:
    library = build(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", NCCL % 23004)
    install(site, "nvidia-nccl-cu13", "2.30.4", library)
    before = section()
    assert before.facts["installed_packages"].value["nvidia-nccl-cu13"] == "2.30.4"
    assert before.facts["warnings"].value == []
    build(library, "char more[5000] = {1};" + NCCL % 23004, build_id="00bb")
    after = section()
    changed = {name for name in before.facts if before.facts[name] != after.facts[name]}
    assert changed == {"nccl_build_id", "nccl_copies", "warnings"}
    assert after.facts["warnings"].value == [
        "site-packages/nvidia/nccl/lib/libnccl.so.2 is not the file that nvidia-nccl-cu13 2.30.4 installed"
    ]


def test_torch_asks_for_another_version_than_is_installed(site: Path) -> None:
    install(site, "nvidia-nccl-cu13", "2.30.4")
    install(
        site,
        "torch",
        "2.13.0",
        requires='Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == "Linux"\n',
    )
    assert section().facts["warnings"].value == [
        "torch asks for nvidia-nccl-cu13 2.28.9, but 2.30.4 is installed"
    ]


def test_the_libraries_of_rip_itself_are_listed_with_an_identity() -> None:
    found = section().facts["loaded"].value
    families = {entry["family"] for entry in found.values()}
    assert {"libc", "libm"} <= families
    assert all("build_id" in entry or "sha256" in entry for entry in found.values())
    assert not any("/home/" in label or label.startswith("/") for label in found)


def real_runtimes() -> list[Path]:
    """The CUDA runtimes of NVIDIA's own wheels, where they are installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return [found for folder in folders for found in Path(folder).glob("cu*/lib/libcudart.so.*")]


@pytest.mark.skipif(not real_runtimes(), reason="the wheel nvidia-cuda-runtime is not installed")
def test_the_real_runtime_states_the_version_of_its_wheel() -> None:
    found = section()
    package = next(iter(found.facts["cudart_copies"].value.values()))["package"].split()[-1]
    assert package.startswith(f"{found.facts['cudart'].value}.")


# The section of a process that was named.


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A library in a `site-packages` by which the folder is known."""
    return build(tmp_path / "env" / "site-packages" / "torch" / "lib" / "libtorch_cuda.so", "int t;")


def test_another_copy_than_the_installed_one_is_loaded(tmp_path: Path, torch: Path) -> None:
    # As in verl 6621: pip brought 2.30.4, torch was built for 2.28.9, and the system's 2.28.3 was loaded.
    site = torch.parents[2]
    installed = build(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", build_id="0304")
    install(site, "nvidia-nccl-cu13", "2.30.4", installed)
    install(site, "torch", "2.13.0", torch, requires="Requires-Dist: nvidia-nccl-cu13 (==2.28.9)\n")
    system = build(tmp_path / "usr" / "libnccl.so.2.28.3", build_id="0283", soname="libnccl.so.2")
    with running(torch, system) as pid:
        found = section(pid)
    assert (found.facts["nccl"].value, found.facts["nccl_build_id"].value) == ("2.28.3", "0283")
    assert found.facts["nccl_copies"].value == {
        "elsewhere/libnccl.so.2": {"loaded": True, "build_id": "0283", "version": "2.28.3"},
        "site-packages/nvidia/nccl/lib/libnccl.so.2": {
            "loaded": False,
            "build_id": "0304",
            "package": "nvidia-nccl-cu13 2.30.4",
        },
    }
    assert found.facts["warnings"].value == [
        "nccl is loaded from elsewhere/libnccl.so.2 (2.28.3), not from the installed"
        " site-packages/nvidia/nccl/lib/libnccl.so.2 (2.30.4)",
        "torch asks for nvidia-nccl-cu13 2.28.9, but 2.30.4 is installed",
    ]
    assert found.volatile["paths"].value["elsewhere/libnccl.so.2"] == str(system)


def test_the_installed_copy_is_loaded_and_nothing_is_warned_of(tmp_path: Path, torch: Path) -> None:
    site = torch.parents[2]
    installed = build(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", build_id="0304")
    install(site, "nvidia-nccl-cu13", "2.30.4", installed)
    build(tmp_path / "usr" / "libnccl.so.2.28.3", build_id="0283", soname="libnccl.so.2")
    with running(torch, installed) as pid:
        found = section(pid, LD_LIBRARY_PATH=str(tmp_path / "usr"))
    assert found.facts["nccl"].value == "2.30.4"
    assert found.facts["warnings"].value == []
    assert set(found.facts["nccl_copies"].value) == {
        "site-packages/nvidia/nccl/lib/libnccl.so.2",
        "LD_LIBRARY_PATH/libnccl.so.2",
    }


def test_nothing_of_a_named_process_is_executed(tmp_path: Path, torch: Path) -> None:
    marker = tmp_path / "called"
    source = (
        "#include <stdio.h>\n__attribute__((constructor))"
        f'void loaded(void) {{ fclose(fopen("{marker}", "a")); }}\n' + NCCL % 23203
    )
    library = build(torch.parents[2] / "nvidia" / "nccl" / "lib" / "libnccl.so.2", source)
    with running(torch, library) as pid:
        marker.unlink()
        found = section(pid)
        assert not marker.exists()
    assert "nothing of another process is executed" in reason(found, "nccl")
    assert found.facts["nccl_build_id"].value == "00aa"


def test_a_swap_under_a_running_process_is_named(torch: Path) -> None:
    site = torch.parents[2]
    library = build(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", build_id="0304")
    install(site, "nvidia-nccl-cu13", "2.30.4", library)
    with running(torch, library) as pid:
        before = section(pid)
        os.replace(build(site / "new.so", build_id="0999"), library)
        after = section(pid)
    label = "site-packages/nvidia/nccl/lib/libnccl.so.2"
    assert before.facts["warnings"].value == []
    assert after.facts["warnings"].value[0].startswith(f"{label} was replaced on disk since it was loaded")
    assert after.facts["loaded"].value[label]["build_id"] == "0304"
    assert before.facts["loaded"].value[label]["state"] == "the loaded file is at its path"
    assert after.facts["loaded"].value[label]["state"] == "replaced on disk since it was loaded"
    on_disk = [entry for entry in after.facts["nccl_copies"].value.values() if not entry["loaded"]]
    assert [entry["build_id"] for entry in on_disk] == ["0999"]


def test_ranks_that_loaded_different_copies_are_named(tmp_path: Path) -> None:
    first, second = (build(tmp_path / name / "libnccl.so.2", build_id=f"00{name}") for name in ("aa", "bb"))
    with running(first) as one, running(second) as two, running(first) as three:
        assert section(one, (one, three)).facts["warnings"].value == []
        warned = section(one, (one, two, three)).facts["warnings"].value
    assert "the processes have loaded 2 different copies of libnccl.so.2" in warned


def test_a_process_that_ended_leaves_reasons() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = section(ended.pid)
    for field in ("loaded", "nccl", "cublas_build_id"):
        assert reason(found, field) == numeric_libraries.proc.ENDED


# NCCL's files.


def nccl(root: Path, **environ: str) -> Fact:
    return nccl_conf.probe(Context(None, environ, root=root))["libraries"].facts["nccl_conf"]


def test_settings_of_nccl_files_are_read_in_its_own_order(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "etc" / "passwd").write_text(f"me:x:{os.getuid()}:0::/home:/bin/sh\n")
    assert nccl(tmp_path).unavailable == "there is no NCCL configuration file"
    (tmp_path / "etc" / "nccl.conf").write_text("NCCL_ALGO=Tree\nNCCL_PROTO=LL\n")
    (tmp_path / "home" / ".nccl.conf").write_text(
        "# NCCL_PROTO=Simple\nNCCL_ALGO=Ring\nTOKEN=secret\nnonsense\n"
    )
    read = nccl(tmp_path).value
    assert read["settings"] == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    assert set(read["files"]) == {"~/.nccl.conf", "/etc/nccl.conf"}
    assert "secret" not in str(read)
    (tmp_path / "mine.conf").write_text("NCCL_MIN_NCHANNELS=4\n")
    read = nccl(tmp_path, NCCL_CONF_FILE="/mine.conf").value
    assert read["settings"] == {"NCCL_MIN_NCHANNELS": "4", "NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    assert set(read["files"]) == {"$NCCL_CONF_FILE", "/etc/nccl.conf"}


def test_files_of_a_process_that_may_not_be_read_are_not_said_to_be_absent(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build(torch.parents[2] / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    with running(torch, library) as pid:
        monkeypatch.setattr(
            numeric_libraries.root_files, "why_closed", lambda root: numeric_libraries.proc.NO_PERMISSION
        )
        found = section(pid)
    assert found.facts["loaded"].value is not None
    for field in ("nccl_copies", "cublas_copies", "installed_packages", "warnings", "cuda"):
        assert reason(found, field) == numeric_libraries.proc.NO_PERMISSION
