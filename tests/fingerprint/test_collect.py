"""The environment as facts: complete, stable, and honest about what could not be read."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from rip.fingerprint.collect import PROBES, Probe, collect
from rip.fingerprint.drift import compare, drift
from rip.fingerprint.fields.known_names import VARIABLES
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.present.drift_sentences import list_notes
from rip.fingerprint.probes.context import Context
from rip.fingerprint.process.python_packages import read_build
from rip.fingerprint.rules import rules_of
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import FLAT_KEYS, SECTIONS, Fingerprint, Section, fact

# Every variable that is known to change numerics, as the project's requirements list them.
REQUIRED_VARIABLES = """
CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE NVIDIA_TF32_OVERRIDE CUBLAS_EMULATE_SINGLE_PRECISION
CUBLAS_EMULATION_STRATEGY CUBLASLT_HEURISTICS_LUT_FILE CUDA_FORCE_PTX_JIT TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
TORCH_BLAS_PREFER_CUBLASLT TORCH_CUDNN_V8_API_DISABLED ATEN_CPU_CAPABILITY TORCHINDUCTOR_{DETERMINISTIC
BATCH_INVARIANT NUMERICS MAX_AUTOTUNE USE_FAST_MATH EMULATE_PRECISION_CASTS SPLIT_REDUCTIONS}
TRITON_CACHE_AUTOTUNING TRITON_CACHE_DIR NCCL_{ALGO PROTO NVLS_ENABLE MIN_NCHANNELS MAX_NCHANNELS NTHREADS
COLLNET_ENABLE TUNER_PLUGIN TOPO_FILE CONF_FILE} VLLM_{BATCH_INVARIANT CUSTOM_ALLREDUCE_ALGO
ALLREDUCE_USE_SYMM_MEM ALLREDUCE_USE_FLASHINFER FLOAT32_MATMUL_PRECISION USE_FLASHINFER_SAMPLER
MARLIN_USE_ATOMIC_ADD USE_DEEP_GEMM TRITON_FORCE_FIRST_CONFIG TUNED_CONFIG_FOLDER ENABLE_V1_MULTIPROCESSING
ATTENTION_BACKEND} SGLANG_FLASHINFER_PREFILL_SPLIT_TILE_SIZE SGLANG_FLASHINFER_DECODE_SPLIT_TILE_SIZE
SGLANG_DETERMINISTIC_NCCL_NCHANNELS SGLANG_USE_1STAGE_ALLREDUCE FORCE_DETERMINISTIC
FORCE_{ATTENTION_KERNEL_DETERMINISTIC MOE_KERNEL_DETERMINISTIC ALL_REDUCE_DETERMINISTIC}
NIM_FORCE_DETERMINISTIC GGML_CUDA_CUBLAS_COMPUTE_TYPE GGML_CUDA_MMQ_PREC
OLLAMA_{FLASH_ATTENTION KV_CACHE_TYPE NUM_PARALLEL} MKL_CBWR
MKL_DYNAMIC OMP_NUM_THREADS OPENBLAS_NUM_THREADS OPENBLAS_CORETYPE HIPBLASLT_ALLOW_TF32
NVTE_ALLOW_NONDETERMINISTIC_ALGO DEEPINFER_BATCH_INVARIANT DEEPINFER_ENABLE_MTP_VARLEN PYTHONHASHSEED
"""


def required_variables() -> list[str]:
    expanded = re.sub(
        r"(\w+)\{([^}]*)\}",
        lambda group: " ".join(group[1] + name for name in group[2].split()),
        REQUIRED_VARIABLES,
    )
    return expanded.split()


def with_probe(
    monkeypatch: pytest.MonkeyPatch, function: object, limit_s: float | None = 10.0, in_caller: bool = False
) -> Probe:
    """A probe that runs a function of the test."""
    module = types.ModuleType("probe_of_a_test")
    module.probe = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Probe("mine", "probe_of_a_test:probe", ("cpu", "os"), limit_s, in_caller)


@pytest.mark.parametrize("name", required_variables())
def test_every_variable_is_read_recorded_and_has_a_rule(name: str) -> None:
    unset, as_set = collect(environ={}), collect(environ={name: "7"})
    before, after = unset.get("determinism", name), as_set.get("determinism", name)
    assert before is not None
    assert after is not None
    assert (before.unavailable, after.value) == ("not set", "7")
    changes = {change.field: change for change in drift(unset, as_set)}
    assert set(changes) in ({name}, {name, "batch_invariance"})
    assert changes[name].risk is not None
    assert "(" in changes[name].rule


def test_every_variable_that_is_read_has_a_rule() -> None:
    assert [
        name for family in VARIABLES.values() for name in family if not rules_of("determinism", name)
    ] == []


def test_no_other_variable_enters() -> None:
    found = collect(
        environ={"OPENAI_API_KEY": "sk-secret", "VLLM_API_KEY": "sk-secret", "PATH": "/sk-secret"}
    )
    assert "sk-secret" not in found.to_json()


def test_a_variable_that_is_no_utf8_is_kept_visibly() -> None:
    found = collect(environ={"NCCL_ALGO": "Ring\udcff"})
    reading = Fingerprint.from_json(found.to_json(), "it").get("determinism", "NCCL_ALGO")
    assert reading is not None
    assert reading.value == "Ring\\xff"


def test_every_section_and_every_flat_key_is_there() -> None:
    found = collect()
    assert tuple(found.sections) == SECTIONS
    assert all(section.facts for section in found.sections.values())
    assert "unavailable: not probed" not in found.flat().values()
    assert list(found.flat()) == list(FLAT_KEYS)


def test_the_digest_is_stable_over_runs_and_processes(model_folder: Path) -> None:
    model = resolve(str(model_folder))
    first, second = collect(model, environ={}), collect(model, environ={})
    assert first.root_digest == second.root_digest
    script = (
        "import sys; from rip.fingerprint.collect import collect;"
        "from rip.fingerprint.model.ref import resolve;"
        "print(collect(resolve(sys.argv[1])).root_digest)"
    )
    command = [sys.executable, "-c", script, str(model_folder)]
    alone = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert alone[0] == alone[1]
    assert collect(model, environ={"OMP_NUM_THREADS": "1"}).root_digest != first.root_digest  # the control


def test_volatile_readings_enter_no_digest() -> None:
    found = collect()
    assert {"pid", "executable"} <= set(found.sections["process"].volatile)
    assert "hostname" in found.sections["replica"].volatile
    text = json.dumps(
        {name: section.model_dump(mode="json")["facts"] for name, section in found.sections.items()}
    )
    assert sys.executable not in text


def test_flags_are_read_from_a_loaded_torch_and_its_thread_counts_from_the_callers_thread() -> None:
    script = (
        "import json, torch; torch.set_num_threads(1); torch.use_deterministic_algorithms(True);"
        "torch.set_float32_matmul_precision('high'); from rip.fingerprint.collect import collect;"
        "print(collect().to_json())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = Fingerprint.from_json(done.stdout, "it")
    readings = {
        name: found.get("frameworks", f"torch.{name}") for name in ("deterministic_algorithms", "blas")
    }
    assert readings["deterministic_algorithms"] == fact(True, "torch")
    assert readings["blas"] is not None
    assert found.get("frameworks", "torch.float32_matmul_precision") == fact("high", "torch")
    assert found.get("cpu", "torch_threads") == fact(1, "torch")
    on_disk = collect().get("frameworks", "torch.git_version")
    loaded = found.get("frameworks", "torch.git_version")
    assert on_disk is not None
    assert loaded is not None
    assert on_disk.value == loaded.value


def test_a_probe_that_raises_becomes_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: Context) -> dict[str, Section]:
        raise LookupError("no such thing")

    for in_caller in (True, False):
        found = collect(probes=[with_probe(monkeypatch, broken, in_caller=in_caller)])
        for section in ("cpu", "os"):
            reading = found.get(section, "probe_mine")
            assert reading is not None
            assert reading.unavailable == "the probe failed: LookupError: no such thing"


def test_a_probe_that_hangs_becomes_a_fact_and_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def hanging(context: Context) -> dict[str, Section]:
        context.stop.wait()
        stopped.set()
        return {}

    found = collect(probes=[with_probe(monkeypatch, hanging, limit_s=0.05), *PROBES[:1]])
    reading = found.get("cpu", "probe_mine")
    assert reading is not None
    assert reading.unavailable == "the probe failed: no answer within 0.05 s"
    assert found.get("determinism", "OMP_NUM_THREADS") is not None
    assert stopped.wait(10)


def test_a_probe_that_computes_beyond_its_limit_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(context: Context) -> dict[str, Section]:
        for _ in range(600):
            hashlib.sha256(bytes(1 << 20)).hexdigest()
        return {"cpu": Section(facts={"model": fact("it", "here")})}

    found = collect(probes=[with_probe(monkeypatch, slow, limit_s=0.3)])
    assert found.get("cpu", "model") == fact("it", "here")


def test_what_a_failed_probe_would_have_read_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(context: Context) -> dict[str, Section]:
        return {"cpu": Section(facts={"model": fact("it", "here")}), "os": Section()}

    def broken(context: Context) -> dict[str, Section]:
        raise OSError("busy")

    before = collect(probes=[with_probe(monkeypatch, whole), PROBES[0]])
    after = collect(probes=[with_probe(monkeypatch, broken), PROBES[0]])
    for one, other in ((before, after), (after, before)):
        found = compare(one, other)
        assert found.changes == []
        assert {"cpu.model", "cpu.probe_mine", "os.probe_mine"} <= set(found.not_compared or ())
        assert any("cpu.probe_mine" in note and "failed" in note for note in list_notes(found))


def test_what_the_user_gave_wrongly_is_an_error_and_no_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(context: Context) -> dict[str, Section]:
        raise BadInput("not this", "give that")

    with pytest.raises(BadInput, match="not this"):
        collect(probes=[with_probe(monkeypatch, refusing)])


def test_what_the_caller_knows_better_counts() -> None:
    known = {"engine": {"attention_backend": fact("sdpa", "transformers")}}
    found = collect(overrides=known)
    assert found.flat()["attention_backend"] == "sdpa"
    assert found.get("engine", "name") == fact("hf", "rip")


def test_the_batch_invariance_flag_names_its_variable() -> None:
    assert (
        collect(environ={"VLLM_BATCH_INVARIANT": "1"}).flat()["batch_invariance_flag"]
        == "VLLM_BATCH_INVARIANT=1"
    )
    absent = collect(environ={}).flat()["batch_invariance_flag"]
    assert absent.startswith("unavailable: none of VLLM_BATCH_INVARIANT,")


def test_two_builds_of_one_version_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "kernelly-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernelly\nVersion: 1.0\n")
    origin = {
        "url": "https://user:secret@example.org/kernelly.git?token=secret",
        "vcs_info": {"vcs": "git", "commit_id": "abc123"},
    }
    (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    records = {
        "first": "kernelly/a.so,sha256=aaa,1\nkernelly-1.0.dist-info/INSTALLER,sha256=p,4\n"
        "kernelly/a.pyc,,\n",
        "other installer": "../bin/k,sha256=q,9\nkernelly-1.0.dist-info/INSTALLER,sha256=u,4\n"
        "kernelly/a.so,sha256=aaa,1\n",
        "other build": "kernelly/a.so,sha256=bbb,1\n",
    }
    found = {}
    for name, record in records.items():
        (info / "RECORD").write_text(record)
        found[name] = read_build("kernelly").value
    assert found["first"] == found["other installer"]
    assert found["first"]["record_sha256"] != found["other build"]["record_sha256"]
    assert found["first"]["direct_url"] == "https://example.org/kernelly.git@abc123"
