"""The documents and issues that the rules rest on: only what was looked up and found to say it."""

from __future__ import annotations

from .base import Source


def _issue(repository: str, number: int, name: str) -> Source:
    return Source(f"{name} issue {number}", f"https://github.com/{repository}/issues/{number}")


# NVIDIA
CUBLAS = Source(
    "cuBLAS, Results reproducibility", "https://docs.nvidia.com/cuda/cublas/#results-reproducibility"
)
CUBLAS_EMULATION = Source(
    "cuBLAS, Floating point emulation", "https://docs.nvidia.com/cuda/cublas/#floating-point-emulation"
)
CUDNN = Source(
    "cuDNN, Reproducibility (determinism)",
    "https://docs.nvidia.com/deeplearning/cudnn/backend/latest/developer/misc.html",
)
CUDA_JIT = Source(
    "CUDA C++ Programming Guide, Just-in-time compilation",
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#just-in-time-compilation",
)
CUDA_VARIABLES = Source(
    "CUDA Programming Guide, CUDA environment variables",
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html",
)
CUDA_COMPATIBILITY = Source(
    "CUDA Compatibility, Forward compatibility",
    "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html",
)
MIG = Source(
    "NVIDIA, Multi-Instance GPU user guide", "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
)
NVML = Source("NVML API reference", "https://docs.nvidia.com/deploy/nvml-api/")
NCCL = Source(
    "NCCL, Environment variables", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
)
NCCL_NVLS = _issue("NVIDIA/nccl", 1497, "NCCL")
NCCL_SIZES = _issue("NVIDIA/nccl", 157, "NCCL")
NCCL_TOPOLOGY = _issue("NVIDIA/nccl", 1461, "NCCL")
NCCL_RANKS = _issue("NVIDIA/nccl", 23, "NCCL")
NCCL_STATIC = _issue("NVIDIA/nccl", 1171, "NCCL")
NCCL_HOSTS = _issue("NVIDIA/nccl", 2360, "NCCL")
MEGATRON = Source(
    "Megatron Core, Deterministic training",
    "https://docs.nvidia.com/megatron-core/developer-guide/nightly/user-guide/deterministic-training.html",
)
MEGATRON_AUTOTUNE = Source("Megatron-LM pull request 6966", "https://github.com/NVIDIA/Megatron-LM/pull/6966")
TRANSFORMER_ENGINE = Source(
    "Transformer Engine, Environment variables",
    "https://docs.nvidia.com/deeplearning/transformer-engine/envvars.html",
)
NIM = Source(
    "NVIDIA NIM for LLMs, Deterministic mode",
    "https://docs.nvidia.com/nim/large-language-models/latest/deterministic-mode.html",
)
TENSORRT_LLM = Source(
    "TensorRT-LLM, cpp/tensorrt_llm/common/envUtils.cpp",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/common/envUtils.cpp",
)

# PyTorch and what it stands on
TORCH = Source("PyTorch, Reproducibility", "https://docs.pytorch.org/docs/stable/notes/randomness.html")
TORCH_ACCURACY = Source(
    "PyTorch, Numerical accuracy", "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html"
)
TORCH_CUDA = Source("PyTorch, CUDA semantics", "https://docs.pytorch.org/docs/stable/notes/cuda.html")
TORCH_PRECISION = Source(
    "PyTorch, torch.set_float32_matmul_precision",
    "https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html",
)
TORCH_SDPA = Source(
    "PyTorch, scaled_dot_product_attention",
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
)
TORCH_VARIABLES = Source(
    "PyTorch, CUDA environment variables",
    "https://docs.pytorch.org/docs/stable/cuda_environment_variables.html",
)
TUNABLE_OP = Source(
    "PyTorch, TunableOp",
    "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/tunable/README.md",
)
TORCH_BACKENDS = Source("PyTorch, torch.backends", "https://docs.pytorch.org/docs/stable/backends.html")
INDUCTOR = Source(
    "PyTorch, torch/_inductor/config.py",
    "https://github.com/pytorch/pytorch/blob/main/torch/_inductor/config.py",
)
INDUCTOR_AUTOTUNE = _issue("pytorch/pytorch", 189121, "PyTorch")
TORCH_ISA = _issue("pytorch/pytorch", 155423, "PyTorch")
TRITON_AUTOTUNE = _issue("triton-lang/triton", 9368, "Triton")
FLASH_ATTENTION = _issue("Dao-AILab/flash-attention", 1897, "FlashAttention")
FLASHINFER_SPLITS = _issue("flashinfer-ai/flashinfer", 696, "FlashInfer")
FLASHINFER_TOP_K = _issue("flashinfer-ai/flashinfer", 2584, "FlashInfer")

FLASHINFER_AUTOTUNE = Source("FlashInfer, Autotuning", "https://docs.flashinfer.ai/autotuning.html")
VERL_COPIES = Source("verl pull request 6621", "https://github.com/verl-project/verl/pull/6621")

# CPU libraries and the system
MKL_CNR = Source(
    "oneMKL, Conditional numerical reproducibility control",
    "https://www.intel.com/content/www/us/en/docs/onemkl/developer-reference-c/2023-2/"
    "conditional-numerical-reproducibility-control.html",
)
MKL_THREADS = Source(
    "oneMKL, Reproducibility conditions",
    "https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-linux/2023-1/"
    "reproducibility-conditions.html",
)
ONEDNN_MATH = Source(
    "oneDNN, Floating-point math mode",
    "https://uxlfoundation.github.io/oneDNN/dev_guide_attributes_fpmath_mode.html",
)
ONEDNN_ISA = Source(
    "oneDNN, CPU dispatcher control",
    "https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html",
)
OPENBLAS = Source(
    "OpenBLAS, Runtime variables",
    "https://github.com/OpenMathLib/OpenBLAS/blob/develop/docs/runtime_variables.md",
)
HCCL = Source(
    "CANN, HCCL_DETERMINISTIC",
    "https://www.hiascend.com/document/detail/zh/canncommercial/850/maintenref/envvar/envref_07_0099.html",
)
LCCL = Source(
    "MindSpore Transformers, Environment variables",
    "https://www.mindspore.cn/mindformers/docs/en/master/env_variables.html",
)
ASCEND = Source(
    "verl, Deterministic computation on Ascend devices",
    "https://github.com/volcengine/verl/blob/main/docs/ascend_tutorial/ascend_consistency.rst",
)
CGROUP = Source("Linux, Control group v2", "https://docs.kernel.org/admin-guide/cgroup-v2.html")
PYTHON = Source(
    "Python, Command line and environment",
    "https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED",
)
TRANSFORMERS_5 = Source(
    "transformers, Migration guide to v5 (tokenization)",
    "https://github.com/huggingface/transformers/blob/main/MIGRATION_GUIDE_V5.md",
)
RELEASES = Source("the package's release notes")

# Engines
VLLM = Source("vLLM, Reproducibility", "https://docs.vllm.ai/en/latest/usage/reproducibility/")
VLLM_BATCH = Source("vLLM, Batch invariance", "https://docs.vllm.ai/en/latest/features/batch_invariance/")
VLLM_FAQ = Source("vLLM, Frequently asked questions", "https://docs.vllm.ai/en/latest/usage/faq/")
VLLM_PREEMPTION = Source(
    "vLLM, Optimization and tuning (preemption)", "https://docs.vllm.ai/en/latest/configuration/optimization/"
)
VLLM_VARIABLES = Source(
    "vLLM, Environment variables", "https://docs.vllm.ai/en/latest/configuration/env_vars/"
)
VLLM_SERVER = Source(
    "vLLM, OpenAI-compatible server (generation config)",
    "https://docs.vllm.ai/en/latest/serving/openai_compatible_server/",
)
VLLM_DEFAULTS = Source("vLLM pull request 12622", "https://github.com/vllm-project/vllm/pull/12622")
VLLM_DEFAULTS_SEEN = _issue("vllm-project/vllm", 15241, "vLLM")
VLLM_KV_SCALES = Source("vLLM pull request 11906", "https://github.com/vllm-project/vllm/pull/11906")
VLLM_COMPILE = Source(
    "vLLM, torch.compile integration (compilation cache)",
    "https://docs.vllm.ai/en/latest/design/torch_compile/",
)
VLLM_ASYNC = Source(
    "vLLM pull request 51287 (a report, not merged)", "https://github.com/vllm-project/vllm/pull/51287"
)
VLLM_ARGUMENTS = Source("vLLM, Engine arguments", "https://docs.vllm.ai/en/latest/configuration/engine_args/")
VLLM_FUSED_ALL_REDUCE = _issue("vllm-project/vllm", 51290, "vLLM")
VLLM_SEQUENCE_PARALLEL = _issue("vllm-project/vllm", 56370, "vLLM")
VLLM_MOE_COMBINE = Source("vLLM pull request 45683", "https://github.com/vllm-project/vllm/pull/45683")
VLLM_MOE_FINALIZE = Source(
    "vLLM pull request 54948 (a report, not merged)", "https://github.com/vllm-project/vllm/pull/54948"
)
VLLM_MOE_SPLIT_K = _issue("vllm-project/vllm", 56887, "vLLM")
VLLM_TOP_K = Source(
    "vLLM pull request 55122 (a report, not merged)", "https://github.com/vllm-project/vllm/pull/55122"
)
VLLM_LOGPROBS = _issue("vllm-project/vllm", 44319, "vLLM")
VLLM_FIRST_CONFIG = Source("vLLM pull request 42425", "https://github.com/vllm-project/vllm/pull/42425")
VLLM_GRAPHS = _issue("vllm-project/vllm", 28131, "vLLM")
VLLM_TP = _issue("vllm-project/vllm", 4076, "vLLM")
VLLM_PREFIX = _issue("vllm-project/vllm", 7845, "vLLM")
VLLM_PREFIX_ORDER = _issue("vllm-project/vllm", 42019, "vLLM")
SGLANG = Source(
    "SGLang, Deterministic inference", "https://docs.sglang.io/advanced_features/deterministic_inference.html"
)
SGLANG_IDLE_RANKS = Source(
    "SGLang pull request 35766 (a report, not merged)", "https://github.com/sgl-project/sglang/pull/35766"
)
SGLANG_TACTICS = Source("SGLang pull request 35343", "https://github.com/sgl-project/sglang/pull/35343")
LLAMA_CACHE = _issue("ggml-org/llama.cpp", 28368, "llama.cpp")
LLAMA_BUILD = Source(
    "llama.cpp, docs/build.md", "https://github.com/ggml-org/llama.cpp/blob/master/docs/build.md"
)
OLLAMA = Source("Ollama, FAQ", "https://docs.ollama.com/faq")
DEEPINFER = Source("DeepInfer's batch-invariance test")
