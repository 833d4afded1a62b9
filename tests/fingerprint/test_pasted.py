"""Pasted text of collect_env and its kin as a fingerprint, and its drift against a full one.

The CPU texts are real outputs (torch 2.13.0, transformers 5.24.0; kernel and host made plain). The GPU texts
are written after the formats of PyTorch 2.4 and vLLM 0.10.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint.drift import compare
from rip.fingerprint.probes.pasted_text import from_text
from rip.schemas.fingerprint import NOT_PASTED, Fact, Fingerprint, Section, fact, unavailable

TEXTS = Path(__file__).parent / "pasted"


def read(name: str) -> Fingerprint:
    made = from_text((TEXTS / name).read_bytes())
    assert made is not None
    return made


def full(**sections: dict[str, Fact]) -> Fingerprint:
    built = {name: Section(facts=facts) for name, facts in sections.items()}
    return Fingerprint.build("0.1.0", "2026-07-14T09:30:00+00:00", built)


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("torch-cpu.txt", "frameworks.torch", "2.13.0+cpu"),
        ("torch-cpu.txt", "frameworks.python", "3.11.7"),
        ("torch-cpu.txt", "frameworks.python_compiler", "GCC 12.2.0"),
        ("torch-cpu.txt", "frameworks.numpy", {"version": "2.4.6"}),
        ("torch-cpu.txt", "os.distribution", "Debian GNU/Linux 12 (bookworm)"),
        ("torch-cpu.txt", "os.machine", "x86_64"),
        ("torch-cpu.txt", "os.libc", "glibc 2.36"),
        ("torch-cpu.txt", "os.kernel", "6.12.9-generic"),
        ("torch-cpu.txt", "cpu.model", "AMD EPYC"),
        ("torch-cpu.txt", "cpu.logical_cpus", 2),
        ("torch-a100.txt", "frameworks.torch", "2.4.0+cu121"),
        ("torch-a100.txt", "frameworks.python", "3.10.14"),
        ("torch-a100.txt", "frameworks.python_compiler", "GCC 12.3.0"),
        ("torch-a100.txt", "libraries.cuda", "12.1"),
        ("torch-a100.txt", "gpus.name", {"0": "NVIDIA A100-SXM4-80GB"}),
        ("torch-a100.txt", "gpus.installed_count", 1),
        ("torch-a100.txt", "driver.version", "535.183.01"),
        ("torch-a100.txt", "kernels.triton", {"version": "3.0.0"}),
        ("vllm-h100.txt", "engine.name", "vllm"),
        ("vllm-h100.txt", "engine.version", "0.10.2"),
        ("vllm-h100.txt", "gpus.name", {"0": "NVIDIA H100 80GB HBM3", "1": "NVIDIA H100 80GB HBM3"}),
        ("vllm-h100.txt", "gpus.installed_count", 2),
        ("vllm-h100.txt", "frameworks.transformers", {"version": "4.56.1"}),
        ("vllm-h100.txt", "kernels.flashinfer-python", {"version": "0.3.1"}),
        ("vllm-h100.txt", "determinism.NCCL_ALGO", "Ring"),
        ("vllm-h100.txt", "determinism.OMP_NUM_THREADS", "8"),
        ("transformers-cpu.txt", "frameworks.transformers", {"version": "5.24.0"}),
        ("transformers-cpu.txt", "frameworks.torch", "2.13.0+cpu"),
        ("transformers-cpu.txt", "frameworks.accelerate", {"version": "1.15.0"}),
        ("transformers-cpu.txt", "os.kernel", "6.12.9-generic"),
    ],
)
def test_what_a_text_states_becomes_a_fact(text: str, place: str, value: object) -> None:
    section, _, field = place.partition(".")
    reading = read(text).get(section, field)
    assert reading is not None
    assert reading.value == value
    assert reading.source.startswith("pasted:")


def test_nvidia_packages_are_a_table() -> None:
    reading = read("vllm-h100.txt").get("libraries", "installed_packages")
    assert reading is not None
    assert reading.value["nvidia-cublas-cu12"] == "12.8.4.1"


def test_what_a_text_does_not_state_is_unavailable_not_guessed() -> None:
    flat = read("torch-cpu.txt").flat()
    assert flat["model_sha256"] == f"unavailable: {NOT_PASTED}"
    assert flat["cuda_version"] == f"unavailable: {NOT_PASTED}", "'Could not collect' tells nothing"
    assert read("torch-a100.txt").get("libraries", "cudnn") is None, "a list of guesses is no version"


def test_vllm_prints_every_variable_so_a_missing_one_was_not_set() -> None:
    made = read("vllm-h100.txt")
    for name, told in (("NCCL_PROTO", True), ("VLLM_BATCH_INVARIANT", True), ("GGML_CUDA_MMQ_PREC", False)):
        reading = made.get("determinism", name)
        assert (reading is not None and reading.unavailable == "not set") is told, name
    assert read("torch-a100.txt").get("determinism", "NCCL_PROTO") is None


def test_other_lines_are_counted_and_kept_nowhere() -> None:
    made = read("vllm-h100.txt")
    assert made.sections["process"].volatile["lines_not_understood"].value > 20
    text = made.to_json()
    for left_out in ("LD_LIBRARY_PATH", "another answer since last week", "pyzmq", "ibpb"):
        assert left_out not in text


def test_drift_against_a_full_fingerprint_compares_only_what_both_tell() -> None:
    now = full(
        frameworks={
            "torch": fact("2.8.1+cu128", "torch"),
            "numpy": fact({"version": "2.2.6", "record_sha256": "ab" * 32}, "importlib.metadata"),
            "safetensors": fact({"version": "0.8.0"}, "importlib.metadata"),
        },
        determinism={
            "NCCL_ALGO": fact("Tree", "environment"),
            "NCCL_PROTO": unavailable("not set", "environment"),
            "OMP_NUM_THREADS": fact("8", "environment"),
        },
        libraries={"installed_packages": fact({"nvidia-nccl-cu12": "2.27.5", "nvidia-nvtx-cu12": "1"}, "s")},
        model={"sha256": fact("ab" * 32, "file-sha256:verified")},
    )
    found = compare(read("vllm-h100.txt"), now)
    assert [change.name for change in found.changes] == [
        "frameworks.torch",
        "libraries.installed_packages",
        "determinism.NCCL_ALGO",
    ]
    assert {"model.sha256", "frameworks.safetensors", "cpu.model"} <= set(found.not_compared)
    assert found.source_changes == []


def test_two_texts_of_one_machine_show_no_change() -> None:
    found = compare(read("torch-cpu.txt"), read("transformers-cpu.txt"))
    assert found.changes == []
    assert found.compared is not None
    assert found.compared >= 5


def test_a_made_fingerprint_can_be_kept(tmp_path: Path) -> None:
    made = read("torch-a100.txt")
    stored = Fingerprint.from_json(made.to_json(), "it")
    assert compare(made, stored).changes == []
    assert stored.root_digest == made.root_digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        '{"PyTorch version": "2"}',
        "PyTorch version",
        "\x00\xff",
        "the PyTorch version: none of these",
    ],
)
def test_other_text_is_none_of_these(text: str) -> None:
    assert from_text(text.encode("utf-8", "replace")) is None


LINES = st.sampled_from(
    [
        "PyTorch version: 2.4.0",
        "vLLM Version: 1",
        "- `transformers` version: 5",
        "CPU(s):  x",
        "GPU 0: \x1b[2J",
        "Python version:",
        "OS: (",
        "Flags: fma",
        "[pip3] torch==",
        "NCCL_ALGO=" + "x" * 300,
        "Python platform: Linux-",
    ]
)


@given(lines=st.lists(LINES | st.text(max_size=80), max_size=30))
def test_no_text_breaks_it(lines: list[str]) -> None:
    made = from_text("\n".join(lines).encode("utf-8", "surrogatepass"))
    if made is not None:
        assert Fingerprint.from_json(made.to_json(), "it").root_digest == made.root_digest
