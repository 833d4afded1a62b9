"""Texts as people paste them, in the formats of the tools they name; versions and devices are made up."""

from __future__ import annotations

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
