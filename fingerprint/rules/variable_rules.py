"""Rules for the environment variables that change numerics, and for the switches that promise not to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import advice, sources
from .base import Rule, Source
from .conditions import DEFAULTS, ONE_GPU, means_the_same
from .sources import BY_CONSTRUCTION

if TYPE_CHECKING:
    from ...schemas.claim import Level

_TF32 = "TF32 keeps 10 of the 23 mantissa bits of what is multiplied"
_COLLECTIVE = "collectives may choose a different algorithm and sum in a different order"
_NO_COLLECTIVE = "no collective runs where one GPU works on a request"
_BATCH = "decides whether results may depend on the batch"
_DETERMINISTIC = "decides whether kernels that are not deterministic may run"
_INDUCTOR = "different kernels are generated or chosen"
_ISA = "chooses the instruction set of the CPU kernels"
_THREADS = "sums are split over a different number of threads"


def _variable(name: str, risk: Level, why: str, source: Source | tuple[Source, ...], replay: str) -> Rule:
    return Rule(f"determinism.{name}", risk, why, source, replay)


RULES: tuple[Rule, ...] = (
    *(
        Rule(
            f"determinism.{name}",
            None,
            "the default was written out, or taken out: the same setting",
            source,
            advice.NOTHING,
            means_the_same(default),
        )
        for name, (default, source) in DEFAULTS.items()
    ),
    _variable("batch_invariance", "bitwise", _BATCH, (sources.VLLM_BATCH, sources.SGLANG), advice.BATCH),
    _variable(
        "engine_seed",
        "token",
        "requests without a seed of their own draw from it",
        sources.VLLM,
        advice.SAMPLING,
    ),
    _variable(
        "on_policy_target",
        "bitwise",
        "chooses kernels that equal those of a trainer",
        sources.SGLANG,
        advice.DECODE,
    ),
    # cuBLAS and CUDA
    _variable(
        "CUBLAS_WORKSPACE_CONFIG",
        "bitwise",
        "the workspace decides which kernel runs, and whether streams disturb each other",
        sources.CUBLAS,
        advice.REPEAT,
    ),
    _variable(
        "CUBLASLT_WORKSPACE_SIZE",
        "bitwise",
        "kernels that need more workspace are no longer chosen",
        sources.TORCH_BACKENDS,
        advice.DECODE,
    ),
    _variable("NVIDIA_TF32_OVERRIDE", "numeric", _TF32, sources.TORCH_VARIABLES, advice.PRECISION),
    _variable(
        "CUBLAS_EMULAT*", "numeric", "fp32 products are emulated", sources.CUBLAS_EMULATION, advice.PRECISION
    ),
    _variable(
        "CUBLASLT_HEURISTICS_*",
        "bitwise",
        "a different table chooses the kernels",
        BY_CONSTRUCTION,
        advice.DECODE,
    ),
    _variable(
        "CUDA_FORCE_PTX_JIT",
        "bitwise",
        "machine code comes from the driver's compiler in place of the library's",
        sources.CUDA_VARIABLES,
        advice.DECODE,
    ),
    # PyTorch
    _variable(
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "numeric", _TF32, sources.TORCH_VARIABLES, advice.PRECISION
    ),
    _variable(
        "TORCH_BLAS_PREFER_CUBLASLT",
        "bitwise",
        "products go to cuBLASLt in place of cuBLAS",
        sources.TORCH_BACKENDS,
        advice.DECODE,
    ),
    _variable(
        "TORCH_CUDNN_V8_API_DISABLED",
        "bitwise",
        "a different interface of cuDNN chooses different kernels",
        sources.TORCH_VARIABLES,
        advice.DECODE,
    ),
    _variable("ATEN_CPU_CAPABILITY", "bitwise", _ISA, sources.TORCH_ISA, advice.DECODE),
    # Inductor and Triton
    _variable(
        "TORCHINDUCTOR_USE_FAST_MATH",
        "numeric",
        "allows approximate functions",
        sources.INDUCTOR,
        advice.PRECISION,
    ),
    _variable(
        "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
        "numeric",
        "intermediate results are rounded as in eager mode, or not",
        sources.INDUCTOR,
        advice.PRECISION,
    ),
    _variable(
        "TORCHINDUCTOR_NUMERICS",
        "numeric",
        "chooses how results are rounded",
        sources.INDUCTOR,
        advice.PRECISION,
    ),
    _variable(
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "bitwise",
        "kernels are chosen by timing",
        sources.INDUCTOR,
        advice.RESTART,
    ),
    _variable(
        "TORCHINDUCTOR_SPLIT_REDUCTIONS",
        "bitwise",
        "sums are split differently",
        sources.INDUCTOR,
        advice.DECODE,
    ),
    _variable(
        "TORCHINDUCTOR_DETERMINISTIC",
        "bitwise",
        "decides whether kernels are chosen by timing",
        sources.INDUCTOR,
        advice.RESTART,
    ),
    _variable("TORCHINDUCTOR_BATCH_INVARIANT", "bitwise", _BATCH, sources.INDUCTOR, advice.BATCH),
    _variable("TORCHINDUCTOR_*", "bitwise", _INDUCTOR, sources.INDUCTOR, advice.RESTART),
    _variable(
        "TRITON_*",
        "bitwise",
        "autotune winners are kept, shared or measured anew",
        (sources.TRITON_AUTOTUNE, sources.MEGATRON_AUTOTUNE),
        advice.RESTART,
    ),
    # NCCL
    Rule("determinism.NCCL_*", None, _NO_COLLECTIVE, BY_CONSTRUCTION, advice.NOTHING, ONE_GPU),
    _variable(
        "NCCL_ALGO",
        "bitwise",
        f"{_COLLECTIVE}. No one value suits all: Ring is needed to repeat a run, Tree to be independent "
        "of the batch, and torch's deterministic mode sets ^NVLS itself",
        (sources.NCCL, sources.MEGATRON, sources.NCCL_NVLS),
        advice.REPEAT,
    ),
    _variable(
        "NCCL_NVLS_ENABLE",
        "bitwise",
        "sums inside the switch were seen to differ between calls",
        (sources.NCCL_NVLS, sources.NCCL_HOSTS),
        advice.REPEAT,
    ),
    _variable(
        "NCCL_TOPO_FILE",
        "bitwise",
        "the order of the ranks in a collective follows the topology",
        (sources.NCCL_TOPOLOGY, sources.NCCL_RANKS),
        advice.REPEAT,
    ),
    _variable("NCCL_*", "bitwise", _COLLECTIVE, (sources.NCCL, sources.NCCL_SIZES), advice.DECODE),
    # vLLM
    _variable(
        "VLLM_FLOAT32_MATMUL_PRECISION",
        "numeric",
        "allows products below fp32 precision",
        sources.VLLM_VARIABLES,
        advice.PRECISION,
    ),
    _variable(
        "VLLM_USE_FLASHINFER_SAMPLER",
        "token",
        "a different sampler draws different numbers from the same seed",
        sources.VLLM_VARIABLES,
        advice.SAMPLING,
    ),
    _variable("VLLM_BATCH_INVARIANT", "bitwise", _BATCH, sources.VLLM_BATCH, advice.BATCH),
    _variable(
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "bitwise",
        "decides whether scheduling is deterministic, and changes the random state of the caller's code",
        sources.VLLM,
        advice.REPEAT,
    ),
    _variable(
        "VLLM_MARLIN_USE_ATOMIC_ADD",
        "bitwise",
        "atomic additions come in any order",
        sources.VLLM_VARIABLES,
        advice.REPEAT,
    ),
    _variable(
        "VLLM_TRITON_FORCE_FIRST_CONFIG",
        "bitwise",
        "decides whether kernels are chosen by timing",
        sources.VLLM_FIRST_CONFIG,
        advice.RESTART,
    ),
    Rule("determinism.VLLM_*ALLREDUCE*", None, _NO_COLLECTIVE, BY_CONSTRUCTION, advice.NOTHING, ONE_GPU),
    _variable("VLLM_*ALLREDUCE*", "bitwise", _COLLECTIVE, sources.VLLM_VARIABLES, advice.DECODE),
    _variable(
        "VLLM_ATTENTION_BACKEND",
        "bitwise",
        "a different kernel splits and sums in a different order",
        (sources.FLASH_ATTENTION, sources.VLLM_BATCH),
        advice.BATCH,
    ),
    _variable("VLLM_*", "bitwise", "different kernels or schedules", sources.VLLM_VARIABLES, advice.DECODE),
    # Other engines
    _variable("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "bitwise", _BATCH, sources.SGLANG, advice.BATCH),
    _variable(
        "SGLANG_*", "bitwise", "different split sizes, collectives or kernels", sources.SGLANG, advice.BATCH
    ),
    _variable("FORCE_*", "bitwise", _DETERMINISTIC, sources.TENSORRT_LLM, advice.REPEAT),
    _variable(
        "NIM_*",
        "bitwise",
        f"{_DETERMINISTIC}; FP8 is covered on H100 with NVLink only",
        sources.NIM,
        advice.REPEAT,
    ),
    _variable(
        "GGML_*",
        "numeric",
        "products are computed in a different precision",
        sources.LLAMA_BUILD,
        advice.PRECISION,
    ),
    _variable(
        "OLLAMA_KV_CACHE_TYPE",
        "token",
        "keys and values are rounded to a different type",
        sources.OLLAMA,
        advice.DECODE,
    ),
    _variable(
        "OLLAMA_*",
        "bitwise",
        "a different attention kernel, or different batches",
        sources.OLLAMA,
        advice.BATCH,
    ),
    _variable("DEEPINFER_*", "bitwise", _BATCH, sources.DEEPINFER, advice.BATCH),
    # CPU
    _variable(
        "MKL_CBWR",
        "bitwise",
        "fixes, or frees, the code path of every MKL function",
        sources.MKL_CNR,
        advice.DECODE,
    ),
    _variable(
        "MKL_DYNAMIC",
        "bitwise",
        "the number of threads may change during a run",
        sources.MKL_THREADS,
        advice.REPEAT,
    ),
    _variable("MKL_NUM_THREADS", "bitwise", _THREADS, sources.MKL_THREADS, advice.THREADS),
    _variable("MKL_*", "bitwise", _ISA, sources.MKL_CNR, advice.DECODE),
    _variable(
        "ONEDNN_DEFAULT_FPMATH_MODE",
        "numeric",
        "allows products below fp32 precision",
        sources.ONEDNN_MATH,
        advice.PRECISION,
    ),
    _variable("ONEDNN_*", "bitwise", _ISA, sources.ONEDNN_ISA, advice.DECODE),
    _variable("OMP_*", "bitwise", _THREADS, sources.MKL_THREADS, advice.THREADS),
    _variable("OPENBLAS_NUM_THREADS", "bitwise", _THREADS, sources.OPENBLAS, advice.THREADS),
    _variable("OPENBLAS_*", "bitwise", "chooses the kernels of OpenBLAS", sources.OPENBLAS, advice.DECODE),
    # Others
    _variable("HIPBLASLT_ALLOW_TF32", "numeric", _TF32, sources.TORCH_CUDA, advice.PRECISION),
    _variable("NVTE_*", "bitwise", _DETERMINISTIC, sources.TRANSFORMER_ENGINE, advice.REPEAT),
    _variable(
        "PYTHONHASHSEED",
        "bitwise",
        "sets are iterated in a different order",
        sources.PYTHON,
        advice.RESTART,
    ),
)
