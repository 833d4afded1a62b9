"""A running process as it is: its engine, packages, workers and variables, and nothing of rip's own."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fakes.processes import SLEEP, TITLED_WORKER, make_environment, starting
from rip.fingerprint.collect import PROBES, Probe, collect
from rip.fingerprint.drift import drift, not_compared
from rip.fingerprint.probes import named_process
from rip.fingerprint.probes.context import Context
from rip.fingerprint.process import proc, root_files
from rip.fingerprint.remote.address import Server
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import FLAT_KEYS, SECTIONS, Fingerprint, Section, fact, unavailable

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process and waits until it is up."""
    with starting() as begin:

        def started(*arguments: str | Path, **options: object) -> subprocess.Popen[str]:
            process = begin(*arguments, **options)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "up"
            return process

        yield started


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return make_environment(tmp_path / "venv", vllm="0.32.0", triton="3.9.0", numpy="1.0.0")


def value(found: Fingerprint, place: str) -> object:
    reading = found.get(*place.split(".", 1))
    assert reading is not None, place
    assert reading.unavailable is None, f"{place}: {reading.unavailable}"
    return reading.value


def reason(found: Fingerprint, place: str) -> str:
    reading = found.get(*place.split(".", 1))
    assert reading is not None, place
    assert reading.unavailable is not None, f"{place}: {reading.value}"
    return reading.unavailable


def test_an_engine_with_its_arguments_version_and_packages(start: Start, environment: Path) -> None:
    engine = start(
        *(environment / "bin" / "python", environment / "bin" / "vllm", "serve", "org/m", "-tp", "2"),
        *("--kv-cache-dtype", "fp8", "--port", "8000"),
        environ={"VLLM_BATCH_INVARIANT": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "3"},
    )
    found = collect(pid=engine.pid)
    known = {
        "engine.name": "vllm",
        "engine.version": "0.32.0",
        "engine.kv_cache_dtype": "fp8",
        "engine.arguments": {"kv_cache_dtype": "fp8", "model": "org/m", "tensor_parallel_size": 2},
        "engine.environment": {"VLLM_CPU_KVCACHE_SPACE": "2"},
        "parallelism.tensor_parallel_size": 2,
        "model.served": "org/m",
        "determinism.OMP_NUM_THREADS": "3",
        "determinism.batch_invariance": "VLLM_BATCH_INVARIANT=1",
        "frameworks.python": ".".join(map(str, sys.version_info[:3])),
        "cpu.usable_cpus": len(os.sched_getaffinity(0)),
        "process.read_whole": True,
    }
    assert {place: value(found, place) for place in known} == known
    assert value(found, "kernels.triton")["version"] == "3.9.0"  # type: ignore[index]
    assert "default applies" in reason(found, "engine.attention_backend")
    assert found.get("determinism", "OMP_NUM_THREADS").source == "/proc/PID/environ (as launched)"  # type: ignore[union-attr]
    assert found.flat()["engine_version"] == "0.32.0"


def test_what_batch_invariant_vllm_sets_itself_is_not_taken_from_the_launch(
    start: Start, environment: Path
) -> None:
    words = (environment / "bin" / "python", environment / "bin" / "vllm", "serve", "m")
    read = [
        collect(pid=start(*words, environ={"VLLM_BATCH_INVARIANT": switch, "NCCL_ALGO": algorithm}).pid)
        for switch, algorithm in (("1", "Ring"), ("1", "Tree"), ("0", "Ring"), ("0", "Tree"))
    ]
    assert [one.get("determinism", "NCCL_ALGO").value for one in read] == [None, None, "Ring", "Tree"]  # type: ignore[union-attr]
    assert "determinism.NCCL_ALGO" in not_compared(read[0], read[1])
    assert "determinism.NCCL_ALGO" not in [change.name for change in drift(read[0], read[1])]
    assert "determinism.NCCL_ALGO" in [change.name for change in drift(read[2], read[3])]


def test_nothing_of_rips_own_process_enters(start: Start, environment: Path) -> None:
    found = collect(pid=start(environment / "bin" / "python", environment / "bin" / "vllm", "serve", "m").pid)
    assert value(found, "frameworks.numpy")["version"] == "1.0.0"  # type: ignore[index]
    assert reason(found, "frameworks.transformers") == "not installed"
    assert "only the process itself" in reason(found, "frameworks.torch.deterministic_algorithms")
    assert "only the process itself" in reason(found, "cpu.blas")
    assert reason(found, "determinism.PYTHONHASHSEED") == "not set"
    text = json.dumps(
        {name: section.model_dump(mode="json")["facts"] for name, section in found.sections.items()}
    )
    assert "site-packages/numpy" not in text
    assert str(os.getpid()) not in str(found.sections["process"].volatile["pid"].value)


def test_packages_are_looked_for_where_code_is_loaded_from_and_not_data(start: Start, tmp_path: Path) -> None:
    other = make_environment(tmp_path / "other", vllm="9.9.9")
    data = next(other.glob("lib/*/site-packages")) / "weights.gguf"
    data.write_bytes(b"weights")
    mapping = f"import mmap; f = open({str(data)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)"
    mine = make_environment(tmp_path / "mine")
    (mine / "bin" / "vllm").write_text(f"{mapping}; {SLEEP}")
    found = collect(pid=start(mine / "bin" / "python", mine / "bin" / "vllm", "serve", "m").pid)
    assert "not installed" in reason(found, "engine.version")


def test_every_section_and_flat_key_is_there_and_the_digest_is_stable(
    start: Start, environment: Path
) -> None:
    words = (environment / "bin" / "python", environment / "bin" / "vllm", "serve", "m")
    first, second = start(*words), start(*words)
    found = [collect(pid=pid) for pid in (first.pid, first.pid, second.pid)]
    assert tuple(found[0].sections) == SECTIONS
    assert all(section.facts for section in found[0].sections.values())
    assert "unavailable: not probed" not in found[0].flat().values()
    assert list(found[0].flat()) == list(FLAT_KEYS)
    assert drift(found[0], found[1]) == []
    assert drift(found[0], found[2]) == [], "two processes that were started alike read alike"
    other = start(*words, "--seed", "7")  # the control
    changes = drift(found[0], collect(pid=other.pid))
    assert {(change.section, change.field) for change in changes} == {
        ("engine", "arguments"),
        ("determinism", "engine_seed"),
    }


def test_secrets_are_read_over(start: Start, environment: Path) -> None:
    secrets = ("sk-on-the-command-line", "sk-in-the-environment", "hunter2", "s3cr3t")
    process = start(
        *(environment / "bin" / "python", environment / "bin" / "vllm", "serve", "m"),
        *("--api-key", secrets[0], "--download-dir", f"https://user:{secrets[2]}@host/"),
        environ={"VLLM_API_KEY": secrets[1], "MY_DATABASE": secrets[3], "VLLM_EXTRA": f"token={secrets[3]}"},
    )
    text = collect(pid=process.pid).to_json()
    assert [secret for secret in secrets if secret in text] == []
    assert "[redacted]" in text


def test_a_worker_with_a_title_has_its_parents_arguments_and_variables_and_its_own(environment: Path) -> None:
    program = environment / "bin" / "vllm"
    program.write_text(TITLED_WORKER)
    with starting() as begin:
        parent = begin(
            *(environment / "bin" / "python", program, "serve", "m", "--dtype", "bfloat16"),
            environ={"OMP_NUM_THREADS": "3", "NCCL_ALGO": "Tree"},
        )
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        found, above = collect(pid=worker), collect(pid=parent.pid)
    assert value(found, "engine.name") == "vllm"
    assert value(found, "engine.dtype") == "bfloat16"
    assert value(found, "determinism.OMP_NUM_THREADS") == "3", "inherited: the end of its own is a torn entry"
    assert value(found, "determinism.NCCL_ALGO") == "Ring", "its own"
    assert value(above, "process.workers") == {"VLLM::Worker_TP0": 1}
    assert value(above, "process.variables_differ") == {
        "MKL_CBWR": {"itself": "not set", "VLLM::Worker_TP0": "AVX2"},
        "NCCL_ALGO": {"itself": "Tree", "VLLM::Worker_TP0": "Ring"},
    }


def test_a_plain_program_is_a_process_without_an_engine(start: Start) -> None:
    found = collect(pid=start("/bin/sh", "-c", "echo up; read line").pid)
    assert reason(found, "engine.name") == "no engine that rip knows was recognised"
    assert reason(found, "frameworks.python") == "the process does not run Python"
    assert reason(found, "kernels.vllm") == "the process does not run Python"


def test_a_program_without_python_is_known_by_its_file(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_bytes(Path("/bin/sh").resolve().read_bytes())
    program.chmod(0o755)
    found = collect(pid=start(program, "-c", "echo up; read line", "-ngl", "99").pid)
    assert value(found, "engine.name") == "llama.cpp"
    assert value(found, "engine.gpu_layers") == 99
    assert "ask its server" in reason(found, "engine.version")
    assert len(str(value(found, "engine.executable_sha256"))) == 64


def test_a_configuration_file_is_known_by_its_digest(start: Start, environment: Path) -> None:
    config = environment / "serve.yaml"
    words = (environment / "bin" / "python", environment / "bin" / "vllm", "serve", "m", "--config", config)
    config.write_text("dtype: half\n")
    pid = start(*words).pid
    before = collect(pid=pid)
    config.write_text("dtype: bfloat16\n")
    assert value(before, "engine.config_file_sha256") != value(collect(pid=pid), "engine.config_file_sha256")
    config.unlink()
    os.mkfifo(config)
    assert "no regular file" in reason(collect(pid=pid), "engine.config_file_sha256")


# What cannot be observed.


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 2**40])
def test_a_process_that_is_not_there_is_refused(pid: int) -> None:
    with pytest.raises(BadInput, match="there is no process"):
        collect(pid=pid)


def test_a_zombie_is_refused() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BadInput, match="zombie"):
            collect(pid=process.pid)
    finally:
        process.wait()


def test_a_kernel_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thread:
        pid = 77

        def __init__(self, pid: int) -> None: ...

        name, ppid, status = (lambda self: "kworker/0:1"), (lambda self: 2), (lambda self: "idle")

    monkeypatch.setattr(psutil, "Process", Thread)
    monkeypatch.setattr(proc, "command_line", lambda pid: [])
    with pytest.raises(BadInput, match="kernel thread"):
        collect(pid=77)


def test_a_system_without_proc_is_an_error_that_names_another_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proc, "PROC", tmp_path)
    with pytest.raises(BadInput, match="no /proc") as raised:
        collect(pid=os.getpid())
    assert "--url" in raised.value.fix


def test_one_that_ends_half_way_is_told_in_facts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(sys.executable, "-c", SLEEP)

    def ending(context: Context) -> dict[str, Section]:
        process.kill()
        process.wait()
        return named_process.probe(context)

    module = types.ModuleType("probe_of_this_test")
    module.probe = ending  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = collect(pid=process.pid, probes=[Probe("mine", f"{module.__name__}:probe", ("process",))])
    assert reason(found, "process.read_whole") == proc.ENDED
    assert reason(found, "frameworks.python") == proc.ENDED
    assert reason(found, "process.accelerators") == proc.ENDED


def test_another_users_process_is_facts_with_the_mend(start: Start) -> None:
    for probe in PROBES:  # what is loaded late lies where only this user may read, perhaps
        importlib.import_module(probe.target.partition(":")[0], "rip.fingerprint")
    as_root = os.geteuid() == 0
    pid = start(sys.executable, "-c", SLEEP, environ={"OMP_NUM_THREADS": "3"}).pid if as_root else 1
    if as_root:
        os.seteuid(65534)
    try:
        found = collect(pid=pid)
    finally:
        if as_root:
            os.seteuid(0)
    for place in ("determinism.OMP_NUM_THREADS", "determinism.batch_invariance", "frameworks.python"):
        assert "as the user who owns the process" in reason(found, place)
    assert "as the user who owns the process" in reason(found, "process.accelerators")
    assert isinstance(value(found, "cpu.usable_cpus"), int), "that everybody may read"


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot takes root")
def test_files_are_read_through_its_own_root_and_links_do_not_lead_out_of_it(
    start: Start, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "usr" / "lib").mkdir(parents=True)
    (root / "usr" / "lib" / "os-release").write_text('NAME="Other"\nPRETTY_NAME="Other Linux 7"\n')
    (root / "etc" / "os-release").symlink_to("/usr/lib/os-release")
    program = f"import os; os.chroot({str(root)!r}); {SLEEP}"
    pid = start(sys.executable, "-c", program).pid
    assert value(collect(pid=pid), "os.distribution") == "Other Linux 7"
    (tmp_path / "secret").write_text('PRETTY_NAME="outside"\n')
    for target in (str(tmp_path / "secret"), "../../secret", "os-release"):
        for path in (root / "etc" / "os-release", root / "usr" / "lib" / "os-release"):
            path.unlink()
            path.symlink_to(target)
        assert reason(collect(pid=pid), "os.distribution").startswith("os-release: ")


def test_a_reading_that_failed_hides_no_value_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    known, failed = fact("x", "one"), unavailable("not here", "other")
    for readings in ((known, failed), (failed, known)):
        probes = []
        for index, reading in enumerate(readings):
            module = types.ModuleType(f"probe_{index}")
            sections = {"os": Section(facts={"kernel": reading})}
            module.probe = lambda context, sections=sections: sections  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, module.__name__, module)
            probes.append(Probe(module.__name__, f"{module.__name__}:probe", ("os",)))
        assert collect(probes=probes).get("os", "kernel") == known


def test_a_process_and_a_server_are_two_things() -> None:
    with pytest.raises(BadInput, match="both named"):
        collect(pid=1, server=Server("http://127.0.0.1:1"))


# Paths inside a root.


@pytest.fixture
def rooted(tmp_path: Path) -> Path:
    root = tmp_path / "r"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("inside")
    (tmp_path / "file").write_text("outside")
    (root / "absolute").symlink_to("/a/b/file")
    (root / "a" / "relative").symlink_to("b/file")
    (root / "a" / "up").symlink_to("../../../../../file")
    (root / "out").symlink_to(tmp_path / "file")
    (root / "folder").symlink_to("/a")
    (root / "circle").symlink_to("circle")
    return root


@pytest.mark.parametrize(
    "path",
    ["/a/b/file", "/absolute", "/a/relative", "/folder/b/file", "/folder/relative", "/a/../a/./b/file"],
)
def test_links_are_followed_inside_the_root(rooted: Path, path: str) -> None:
    assert root_files.locate(rooted, path) == rooted / "a" / "b" / "file"
    assert root_files.read_file(rooted, path, 100) == b"inside"


@pytest.mark.parametrize(
    "path", ["/a/up", "/out", "/circle", "/nothing", "/../../file", "/a/b/file/c", "/a\0b"]
)
def test_no_path_leads_out_of_the_root(rooted: Path, path: str) -> None:
    with pytest.raises(proc.Unread):
        root_files.read_file(rooted, path, 100)


def test_a_fifo_is_not_waited_for(rooted: Path) -> None:
    os.mkfifo(rooted / "fifo")
    with pytest.raises(proc.Unread, match="no regular file"):
        root_files.read_file(rooted, "/fifo", 100)
    with pytest.raises(proc.Unread):
        root_files.read_file(rooted, "/a", 100)


def test_a_name_with_brackets_and_spaces_does_not_confuse(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sh")
    pid = start(program, "-c", "echo up; read line").pid
    with proc.open_process(pid) as process:
        assert (process.name(), process.ppid()) == ("a) R 1 (b", os.getpid())
    assert proc.parent_of(pid) == os.getpid()
