"""Every kind of pasted text: what it states, in every wrapping, and what of it was not read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fakes.pasted_texts import AMD_SMI, KINDS, OLLAMA, ROCM_SMI, ROCMINFO, SGLANG, SMI
from rip.fingerprint.drift import compare
from rip.fingerprint.load import from_bytes
from rip.fingerprint.present.drift_sentences import before_and_after, paste_note
from rip.fingerprint.probes.pasted_text import from_text
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fingerprint

NEWER_SGLANG_LOG = """\
[2026-12-01 13:00:00] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit
[2026-12-01 13:00:00] server_args={'model_path': '/m', 'dtype': 'bfloat16', 'quantization': None, \
'max_running_requests': 16, 'random_seed': 39402009, 'api_key': 's3cr3t-of-a-server', \
'attention_backend': 'torch_native', 'disable_radix_cache': False}
"""


def read(text: str) -> Fingerprint:
    return from_bytes(text.encode(), "it")


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("sglang.check_env", "engine.name", "sglang"),
        ("sglang.check_env", "engine.version", "0.4.9"),
        ("sglang.check_env", "frameworks.python", "3.12.4"),
        ("sglang.check_env", "libraries.cuda", "12.6"),
        ("sglang.check_env", "libraries.nvcc", "12.6.77"),
        ("sglang.check_env", "driver.version", "560.35.03"),
        ("sglang.check_env", "gpus.name_and_compute_capability", "2 x NVIDIA L40S 8.9"),
        ("sglang.check_env", "kernels.sgl-kernel", {"version": "0.2.4"}),
        ("nvidia-smi", "driver.cuda_version", "12.4"),
        ("nvidia-smi", "gpus.installed_count", 2),
        ("nvidia-smi", "gpus.name", {"0": "NVIDIA L40S"}),  # the other's name is cut
        ("nvidia-smi", "gpus.memory_total_bytes", {"0": 46068 << 20, "1": 40960 << 20}),
        ("nvidia-smi", "gpus.mig_mode", {"0": "disabled", "1": "enabled"}),
        ("tgi.env", "engine.commit", "ab" * 20),
        ("tgi.env", "model.served", "org/model"),
        ("tgi.env", "parallelism.tensor_parallel_size", 4),
        ("tgi.env", "engine.quantization", "Awq"),
        ("tgi.env", "engine.max_batched_tokens", 8192),
        ("ollama.log", "engine.version", "0.7.1"),
        ("ollama.log", "determinism.OLLAMA_KV_CACHE_TYPE", "q4_0"),
        ("ollama.log", "engine.environment", {"OLLAMA_CONTEXT_LENGTH": "8192"}),
        ("ollama.log", "gpus.name_and_compute_capability", "NVIDIA L40S 8.9"),
        ("ollama.log", "model.sha256", "cd" * 32),
        ("ollama.log", "engine.max_model_len", 16384),
        ("llama.cpp.log", "engine.version", "b5678-0123abcd"),
        ("llama.cpp.log", "model.served", "./a b.gguf"),
        ("llama.cpp.log", "model.architecture", "qwen2"),
        ("llama.cpp.log", "model.context_length", 32768),
        ("llama.cpp.log", "model.tensor_dtypes", {"Q4_K": 120}),
        ("llama.cpp.log", "model.quantization_method", "Q4_K - Medium"),
        ("llama.cpp.log", "engine.max_model_len", 8192),
        ("llama.cpp.log", "engine.micro_batch_size", 256),
        ("llama.cpp.log", "engine.flash_attention", 1),
        ("llama.cpp.log", "engine.threads", 8),
        ("vllm.log", "engine.version", "0.9.1"),
        ("vllm.log", "engine.dtype", "float16"),
        ("vllm.log", "engine.max_sequences", 64),
        ("vllm.log", "engine.cuda_graphs", False),
        ("vllm.log", "engine.attention_backend", "FLASHINFER"),
        ("vllm.log", "cache.prefix_cache", False),
        ("vllm.log", "determinism.engine_seed", 7),
        ("vllm.log", "sampling.server_defaults", {"temperature": 0.6}),
        ("sglang.log", "model.served", "org/model"),
        ("sglang.log", "engine.attention_backend", "fa3"),
        ("sglang.log", "engine.prefill_chunk_size", 2048),
        ("sglang.log", "cache.prefix_cache", False),
        ("sglang.log", "determinism.batch_invariance", "enable_deterministic_inference=true"),
        ("pip.freeze", "frameworks.torch", "2.7.1+cu126"),
        ("pip.freeze", "kernels.flash-attn", {"version": "2.8.0"}),
        ("pip.freeze", "kernels.sglang", {"commit": "0123456789abcdef0123456789abcdef01234567"}),
        ("pip.freeze", "kernels.vllm", {"version": "0.9.1"}),
        ("pip.list", "engine.version", "0.9.1"),
        ("pip.list", "libraries.cuda", "12.6"),
        ("tensorrt-llm.report", "engine.name", "tensorrt-llm"),
        ("tensorrt-llm.report", "engine.version", "0.17.0"),
        ("tensorrt-llm.report", "frameworks.torch", "2.6.0"),
        ("tensorrt-llm.report", "gpus.name", {"0": "NVIDIA GH200 480GB"}),
        ("tensorrt-llm.report", "os.machine", "aarch64"),
        ("rocminfo", "gpus.name_and_compute_capability", "AMD Instinct MI300X gfx942"),
        ("rocminfo", "cpu.model", "AMD EPYC 9005 64-Core Processor"),
        ("rocm-smi", "gpus.name_and_compute_capability", "2 x AMD Instinct MI300X gfx942"),
        ("rocm-smi", "gpus.installed_count", 2),
        ("amd-smi", "libraries.rocm", "7.0.1"),
        (
            "amd-smi",
            "gpus.amd",
            {
                "devices": {
                    "0": {
                        "market_name": "AMD Instinct MI325X",
                        "num_compute_units": 304,
                        "target_graphics_version": "gfx942",
                        "driver_name": "amdgpu",
                        "driver_version": "6.14.0",
                        "vram_size": "262144 MB",
                    }
                }
            },
        ),
        (
            "npu-smi",
            "gpus.ascend",
            {
                "devices": {"0/0": {"name": "910B3", "pci_bus_id": "0000:C1:00.0", "memory_total_mb": 65536}},
                "driver_version": "24.1.0",
            },
        ),
        ("npu-smi", "gpus.name_and_compute_capability", "Ascend 910B3"),
        ("npu-smi", "libraries.cann", "8.1.RC1"),
        ("npu-smi", "gpus.torch_npu", "2.5.1"),
        ("npu-smi", "determinism.HCCL_DETERMINISTIC", "true"),
    ],
)
def test_what_each_kind_states(kind: str, place: str, value: object) -> None:
    reading = read(KINDS[kind]).get(*place.split(".", 1))
    assert reading is not None
    assert reading.value == value
    assert reading.source.startswith("pasted:")


def test_newer_releases_of_sglang_log_a_dictionary() -> None:
    found = read(NEWER_SGLANG_LOG)
    facts = {
        "engine.name": "sglang",
        "engine.attention_backend": "torch_native",
        "engine.max_sequences": 16,
        "determinism.engine_seed": 39402009,
        "cache.prefix_cache": True,
        "engine.quantization": "none",
    }
    for place, value in facts.items():
        reading = found.get(*place.split(".", 1))
        assert reading is not None
        assert reading.value == value
    assert "s3cr3t" not in found.to_json()


def prefixed(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines())


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "journald": prefixed("Mar 04 10:00:01 gpu-7 serve[4242]: "),
    "journald with ISO times": prefixed("2025-03-04T10:00:01+0000 gpu-7 serve[4242]: "),
    "docker": prefixed("2025-03-04T10:00:01.123456789Z "),
    "containerd": prefixed("2025-03-04T10:00:01.123456789Z stdout F "),
    "compose": prefixed("engine-1  | "),
    "kubectl": prefixed("[pod/engine-0/main] "),
    "cloud": prefixed("INFO 2025-03-04T10:00:01.123456789Z "),
    "json-file": lambda text: "".join(
        json.dumps({"log": f"{line}\n", "stream": "stderr"}) + "\n" for line in text.splitlines()
    ),
    "quoted": prefixed("> "),
    "coloured": prefixed("\x1b[32m"),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "issue page": lambda text: (
        "### Your current environment\n\n<details>\n<summary>The output</summary>\n\n```text\n"
        f"{text}```\n</details>\n\n### Describe the bug\n\nBatch 1 and 4 differ. PyTorch is great: 3.3.3.\n"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_text_states_the_same(kind: str, wrapping: str) -> None:
    plain, wrapped = read(KINDS[kind]), read(WRAPPINGS[wrapping](KINDS[kind]))
    assert compare(plain, wrapped).changes == []
    assert plain.root_digest == wrapped.root_digest
    note = paste_note(wrapped, "it")
    assert note is not None
    assert kind in note


def test_two_texts_are_compared_by_what_both_state() -> None:
    other = OLLAMA.replace("0.7.1", "0.9.0").replace("OLLAMA_KV_CACHE_TYPE:q4_0", "OLLAMA_KV_CACHE_TYPE:")
    found = compare(read(OLLAMA), read(other))
    assert {change.name for change in found.changes} == {"engine.version", "determinism.OLLAMA_KV_CACHE_TYPE"}


def test_tools_of_one_maker_are_compared_by_what_both_state_of_a_card() -> None:
    """rocminfo knows compute units, rocm-smi partitions and driver; both know name and architecture."""
    assert "gpus.amd" not in {change.name for change in compare(read(ROCMINFO), read(ROCM_SMI)).changes}
    [change] = [
        change for change in compare(read(ROCMINFO), read(AMD_SMI)).changes if change.name == "gpus.amd"
    ]
    assert before_and_after(change) == (
        "devices: (0: (market_name=AMD Instinct MI300X))",
        "devices: (0: (market_name=AMD Instinct MI325X))",
    )


def test_another_partition_of_a_card_is_a_change() -> None:
    found = compare(read(ROCM_SMI), read(ROCM_SMI.replace("NPS4, CPX", "NPS1, SPX")))
    assert [change.name for change in found.changes] == ["gpus.amd"]


def test_what_cublas_promises_is_no_source_for_other_makers_cards() -> None:
    changes = {change.name: change for change in compare(read(ROCMINFO), read(ROCM_SMI)).changes}
    assert "cuBLAS" not in changes["gpus.name_and_compute_capability"].rule


def test_an_amd_card_in_collect_env_is_one_too() -> None:
    found = read(
        "PyTorch version: 2.7.0\nGPU models and configuration: AMD Instinct MI300X (gfx942:sramecc+:xnack-)\n"
        "HIP runtime version: 6.3.42133\nROCM Version : 6.3.42133-1b9c\nvLLM Version: 0.9.2\n"
    )
    for place, value in {
        "gpus.name_and_compute_capability": "AMD Instinct MI300X gfx942",
        "libraries.hip_runtime": "6.3.42133",
        "libraries.hipcc": "6.3.42133-1b9c",
    }.items():
        reading = found.get(*place.split(".", 1))
        assert reading is not None, place
        assert reading.value == value
    assert found.get("libraries", "rocm") is None  # that is the version of the compiler


def test_a_cut_name_is_no_change_of_the_device() -> None:
    assert compare(read(SMI), read(SMI.replace("SXM4-40...", "SXM4-80..."))).changes == []


def test_what_was_not_read_is_said() -> None:
    note = paste_note(read(SGLANG + "something else\nand more\n"), "report.txt")
    assert note is not None
    assert note.startswith("report.txt was read as sglang.check_env: ")
    assert "3 lines state nothing that rip reads" in note  # these two, and whether CUDA is available


@pytest.mark.parametrize("text", ["Use the source", "a | b | c", "1 | 2 | 3\n" * 9, "time=now", "version: 3"])
def test_other_text_is_refused_in_two_lines(text: str) -> None:
    with pytest.raises(BadInput, match="no report or log"):
        read(text)


HOSTILE = (
    "-" + " " * 300_000, "- " * 150_000, "[pip3] " + "a" * 300_000, "a" * 300_000 + "==", ">" * 300_000,
    "GPU " + "1," * 150_000, "time=" + 'a="' * 100_000, 'time=1 msg="' + "\\" * 300_000, "| " * 150_000,
    "INFO " * 60_000, "Args {" + "(" * 300_000, "args: Namespace(" + "a=(" * 100_000,
    "server_args=ServerArgs(" + "'" * 300_001 + ")", "top_k = 1, " * 30_000, "build: " + "1" * 300_000,
    "Python: " + "1." * 150_000, "OS: " + " (" * 150_000, "-e git+" + "@a" * 150_000,
    "x @ " + "/a-1" * 75_000,
    "GPU[0] : " + ": " * 150_000, "0 2 0x74a1, 1 " + "NPS1 " * 60_000, "GPU: " + "1" * 300_000,
    "| npu-smi " + " " * 300_000, "| 0 " + "1 / 2 " * 50_000, "Agent " + "1 " * 150_000,
    "GPU models and configuration: " + "(gfx9 " * 50_000, "AMDSMI Tool" + " ROCm version: " * 20_000,
    "Using " + "A " * 150_000 + "backend", "Load weight end." + " type=" * 50_000,
)  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=[line[:12] for line in HOSTILE])
def test_a_hostile_line_takes_nothing_from_the_others(line: str) -> None:
    """Each would keep a pattern with two open repetitions busy for hours."""
    made = from_text(f"PyTorch version: 2.4.0\n{line}\nvLLM Version: 0.6.0\n".encode())
    assert made is not None
    assert made.flat()["torch_version"] == "2.4.0"
