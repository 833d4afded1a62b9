"""Every kind of pasted text: what it states, in every wrapping, and what of it was not read.

The texts follow the formats of the tools that are named; versions and devices are made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rip.fingerprint.drift import compare
from rip.fingerprint.load import from_bytes
from rip.fingerprint.present.drift_sentences import before_and_after, paste_note
from rip.fingerprint.probes.pasted_text import from_text
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fingerprint

SGLANG = """\
Python: 3.12.4 (main, Jun  6 2024, 18:26:44) [GCC 11.4.0]
CUDA available: True
GPU 0,1: NVIDIA L40S
GPU 0,1 Compute Capability: 8.9
NVCC: Cuda compilation tools, release 12.6, V12.6.77
CUDA Driver Version: 560.35.03
PyTorch: 2.7.1+cu126
sglang: 0.4.9
sgl_kernel: 0.2.4
flashinfer_python: Module Not Found
triton: 3.3.1
transformers: 4.53.0
"""
SMI = """\
Tue Mar  4 10:00:00 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA L40S                    On  |   00000000:3B:00.0 Off |                    0 |
| N/A   30C    P8             34W /  350W |       1MiB /  46068MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM4-40...         On  |   00000000:5E:00.0 Off |                    0 |
| N/A   30C    P0             50W /  400W |       1MiB /  40960MiB |      0%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
"""
TGI = f"""\
Runtime environment:
Target: x86_64-unknown-linux-gnu
Commit sha: {"ab" * 20}
Docker label: sha-ababab
Args {{
    model_id: "org/model",
    num_shard: Some(
        4,
    ),
    quantize: Some(
        Awq,
    ),
    dtype: None,
    max_batch_prefill_tokens: Some(
        8192,
    ),
}}
"""
OLLAMA = f"""\
time=2025-03-04T10:00:00.000Z level=INFO source=routes.go:1 msg="server config" env="map[\
CUDA_VISIBLE_DEVICES: OLLAMA_CONTEXT_LENGTH:8192 OLLAMA_FLASH_ATTENTION:true OLLAMA_KV_CACHE_TYPE:q4_0 \
OLLAMA_NUM_PARALLEL:2 OLLAMA_ORIGINS:[http://localhost https://localhost]]"
time=2025-03-04T10:00:00.100Z level=INFO source=routes.go:2 msg="Listening on 127.0.0.1:11434 (version 0.7.1)"
time=2025-03-04T10:00:00.200Z level=INFO source=types.go:3 msg="inference compute" id=GPU-1 library=cuda \
compute=8.9 driver=12.4 name="NVIDIA L40S" total="44.4 GiB"
time=2025-03-04T10:00:01.000Z level=INFO source=server.go:4 msg="starting llama server" \
cmd="/bin/ollama runner --model /m/blobs/sha256-{"cd" * 32} --ctx-size 16384 --batch-size 512 --parallel 2"
"""
LLAMA = """\
build: 5678 (0123abcd) with gcc-13 (GCC) 13.2.0 for x86_64-linux-gnu
ggml_cuda_init: GGML_CUDA_FORCE_CUBLAS: yes
  Device 0: NVIDIA L40S, compute capability 8.9, VMM: yes
llama_model_loader: loaded meta data with 20 pairs and 300 tensors from ./a b.gguf (version GGUF V3 (latest))
llama_model_loader: - kv   0:                       general.architecture str              = qwen2
llama_model_loader: - kv   5:                       qwen2.context_length u32              = 32768
llama_model_loader: - type q4_K:  120 tensors
print_info: file type   = Q4_K - Medium
llama_context: n_ctx         = 8192
llama_context: n_ubatch      = 256
llama_context: flash_attn    = 1
system_info: n_threads = 8 (n_threads_batch = 8) / 16 | CPU : AVX2 = 1 | AVX512 = 0 |
"""
VLLM = """\
INFO 03-04 10:00:00 [api_server.py:1] vLLM API server version 0.9.1
INFO 03-04 10:00:00 [api_server.py:2] non-default args: {'model': 'org/model', 'max_num_seqs': 64, 'seed': 7}
INFO 03-04 10:00:01 [core.py:3] Initializing a V1 LLM engine (v0.9.1) with config: model='org/model', \
dtype=torch.float16, tensor_parallel_size=4, enforce_eager=True, enable_prefix_caching=False
INFO 03-04 10:00:02 [cuda.py:4] Using FlashInfer backend on V1 engine.
INFO 03-04 10:00:02 [serving.py:5] Using default chat sampling params from model: {'temperature': 0.6}
"""
SGLANG_LOG = """\
[2025-03-04 10:00:00] server_args=ServerArgs(model_path='org/model', tp_size=2, disable_radix_cache=True, \
attention_backend=None, random_seed=42, enable_deterministic_inference=True)
[2025-03-04 10:00:01 TP0] Attention backend not explicitly specified. Use fa3 backend by default.
[2025-03-04 10:00:02 TP0] max_total_num_tokens=1000, chunked_prefill_size=2048, context_len=4096
"""
FREEZE = """\
numpy==2.1.0
torch==2.7.1+cu126
flash-attn==2.8.0
-e git+https://github.com/org/sglang.git@0123456789abcdef0123456789abcdef01234567#egg=sglang
vllm @ file:///w/vllm-0.9.1-cp312-cp312-linux_x86_64.whl
requests==2.32.0
"""
PIP_LIST = """\
Package            Version      Editable project location
------------------ ------------ -------------------------
numpy              2.1.0
torch              2.7.1+cu126
vllm               0.9.1        /w/vllm
"""
TRTLLM = """\
### System Info
- CPU architecture: aarch64
- GPU name: NVIDIA GH200 480GB
- TensorRT-LLM version: 0.17.0
- torch 2.6.0
- Driver Version: 560.35.03
"""
ROCMINFO = """\
ROCk module is loaded
=====================
HSA System Attributes
=====================
Runtime Version:         1.14
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD EPYC 9005 64-Core Processor
  Marketing Name:          AMD EPYC 9005 64-Core Processor
  Device Type:             CPU
  Compute Unit:            128
*******
Agent 2
*******
  Name:                    gfx942
  Marketing Name:          AMD Instinct MI300X
  Device Type:             GPU
  Compute Unit:            304
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
"""
ROCM_SMI = """\
============================ ROCm System Management Interface ============================
====================================== Product Info ======================================
GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X
GPU[0]\t\t: GFX Version: \t\tgfx942
GPU[1]\t\t: Card Series: \t\tAMD Instinct MI300X
GPU[1]\t\t: GFX Version: \t\tgfx942
==========================================================================================
Driver version: 6.10.5
Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK
              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)
==========================================================================================
0       2     0x74a1,   11111  45.0°C      141.0W    NPS1, SPX, 0        132Mhz  900Mhz
1       3     0x74a1,   22222  40.0°C      138.0W    NPS4, CPX, 0        131Mhz  900Mhz
================================== End of ROCm SMI Log ===================================
"""
AMD_SMI = """\
AMDSMI Tool: 26.0.0 | AMDSMI Library version: 26.0.0 | ROCm version: 7.0.1 | amdgpu version: 6.14.0
GPU: 0
    ASIC:
        MARKET_NAME: AMD Instinct MI325X
        ASIC_SERIAL: N/A
        NUM_COMPUTE_UNITS: 304
        TARGET_GRAPHICS_VERSION: gfx942
    LIMIT:
        PPT0:
            MAX_POWER_LIMIT: 1000 W
    DRIVER:
        NAME: amdgpu
        VERSION: 6.14.0
    VRAM:
        SIZE: 262144 MB
"""
NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.2        38                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3398 / 65536         |
+===========================+===============+====================================================+
package_name=Ascend-cann-toolkit
version=8.1.RC1
torch-npu==2.5.1
HCCL_DETERMINISTIC=true
"""
KINDS = {
    "sglang.check_env": SGLANG, "nvidia-smi": SMI, "tgi.env": TGI, "ollama.log": OLLAMA,
    "llama.cpp.log": LLAMA, "vllm.log": VLLM, "sglang.log": SGLANG_LOG, "pip.freeze": FREEZE,
    "pip.list": PIP_LIST,
    "tensorrt-llm.report": TRTLLM,
    "rocminfo": ROCMINFO, "rocm-smi": ROCM_SMI, "amd-smi": AMD_SMI, "npu-smi": NPU_SMI,
}  # fmt: skip


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
