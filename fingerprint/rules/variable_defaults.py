"""What a variable means when it is not set, where its own document or source text says so."""

from __future__ import annotations

from . import sources
from .base import Source

_BY_SOURCE: dict[Source, dict[str, str]] = {
    sources.CUDA_VARIABLES: {"CUDA_FORCE_PTX_JIT": "0"},
    sources.TORCH_VARIABLES: {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0", "TORCH_CUDNN_V8_API_DISABLED": "0"},
    sources.INDUCTOR: {
        "TORCHINDUCTOR_DETERMINISTIC": "0",
        "TORCHINDUCTOR_BATCH_INVARIANT": "0",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "0",
        "TORCHINDUCTOR_USE_FAST_MATH": "0",
        "TORCHINDUCTOR_EMULATE_PRECISION_CASTS": "0",
        "TORCHINDUCTOR_SPLIT_REDUCTIONS": "1",
    },
    sources.VLLM_VARIABLES: {
        "VLLM_BATCH_INVARIANT": "0",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "1",
        "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
        "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
        "VLLM_MARLIN_USE_ATOMIC_ADD": "0",
        "VLLM_TRITON_FORCE_FIRST_CONFIG": "0",
    },
    sources.TENSORRT_LLM: {
        "FORCE_DETERMINISTIC": "0",
        "FORCE_ATTENTION_KERNEL_DETERMINISTIC": "0",
        "FORCE_MOE_KERNEL_DETERMINISTIC": "0",
        "FORCE_ALL_REDUCE_DETERMINISTIC": "0",
    },
    sources.LLAMA_BUILD: {"GGML_CUDA_CUBLAS_COMPUTE_TYPE": "auto", "GGML_CUDA_MMQ_PREC": "auto"},
    sources.PYTHON: {"PYTHONHASHSEED": "random"},
}

DEFAULTS: dict[str, tuple[str, Source]] = {
    name: (default, source) for source, defaults in _BY_SOURCE.items() for name, default in defaults.items()
}
"""Variable → its default, and who says so. A variable whose default depends on release or hardware is not
here: that it was set is then always a change with a risk."""
