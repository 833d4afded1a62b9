"""Rules for the environment variables that change numerics, and for the switches that promise not to."""

from __future__ import annotations

from . import sources
from .advice import BATCH, DECODE, PRECISION, REPEAT, RESTART, SAMPLING, THREADS
from .base import BY_CONSTRUCTION, Rule, bitwise, harmless, in_section, numeric, token
from .conditions import DEFAULTS, ONE_GPU, means_the_same

_TF32 = "TF32 keeps 10 of the 23 mantissa bits of what is multiplied"
_COLLECTIVE = "collectives may choose a different algorithm and sum in a different order"
_NO_COLLECTIVE = "no collective runs where one GPU works on a request"
_BATCH = "decides whether results may depend on the batch"
_DETERMINISTIC = "decides whether kernels that are not deterministic may run"
_INDUCTOR = "different kernels are generated or chosen"
_ISA = "chooses the instruction set of the CPU kernels"
_THREADS = "sums are split over a different number of threads"


RULES: tuple[Rule, ...] = in_section(
    "determinism",
    *(
        harmless(
            name,
            "the default was written out, or taken out: the same setting",
            source,
            when=means_the_same(default),
        )
        for name, (default, source) in DEFAULTS.items()
    ),
    bitwise("batch_invariance", _BATCH, (sources.VLLM_BATCH, sources.SGLANG), BATCH),
    token("engine_seed", "requests without a seed of their own draw from it", sources.VLLM, SAMPLING),
    bitwise("on_policy_target", "chooses kernels that equal those of a trainer", sources.SGLANG, DECODE),
    # cuBLAS and CUDA
    bitwise(
        "CUBLAS_WORKSPACE_CONFIG",
        "the workspace decides which kernel runs, and whether streams disturb each other",
        sources.CUBLAS,
        REPEAT,
    ),
    bitwise(
        "CUBLASLT_WORKSPACE_SIZE",
        "kernels that need more workspace are no longer chosen",
        sources.TORCH_BACKENDS,
        DECODE,
    ),
    numeric("NVIDIA_TF32_OVERRIDE", _TF32, sources.TORCH_VARIABLES, PRECISION),
    numeric("CUBLAS_EMULAT*", "fp32 products are emulated", sources.CUBLAS_EMULATION, PRECISION),
    bitwise("CUBLASLT_HEURISTICS_*", "a different table chooses the kernels", BY_CONSTRUCTION, DECODE),
    bitwise(
        "CUDA_FORCE_PTX_JIT",
        "machine code comes from the driver's compiler in place of the library's",
        sources.CUDA_VARIABLES,
        DECODE,
    ),
    # PyTorch
    numeric("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", _TF32, sources.TORCH_VARIABLES, PRECISION),
    bitwise(
        "TORCH_BLAS_PREFER_CUBLASLT",
        "products go to cuBLASLt in place of cuBLAS",
        sources.TORCH_BACKENDS,
        DECODE,
    ),
    bitwise(
        "TORCH_CUDNN_V8_API_DISABLED",
        "a different interface of cuDNN chooses different kernels",
        sources.TORCH_VARIABLES,
        DECODE,
    ),
    bitwise("ATEN_CPU_CAPABILITY", _ISA, sources.TORCH_ISA, DECODE),
    # Inductor and Triton
    numeric("TORCHINDUCTOR_USE_FAST_MATH", "allows approximate functions", sources.INDUCTOR, PRECISION),
    numeric(
        "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
        "intermediate results are rounded as in eager mode, or not",
        sources.INDUCTOR,
        PRECISION,
    ),
    numeric("TORCHINDUCTOR_NUMERICS", "chooses how results are rounded", sources.INDUCTOR, PRECISION),
    bitwise("TORCHINDUCTOR_MAX_AUTOTUNE", "kernels are chosen by timing", sources.INDUCTOR, RESTART),
    bitwise("TORCHINDUCTOR_SPLIT_REDUCTIONS", "sums are split differently", sources.INDUCTOR, DECODE),
    bitwise(
        "TORCHINDUCTOR_DETERMINISTIC",
        "decides whether kernels are chosen by timing",
        sources.INDUCTOR,
        RESTART,
    ),
    bitwise("TORCHINDUCTOR_BATCH_INVARIANT", _BATCH, sources.INDUCTOR, BATCH),
    bitwise("TORCHINDUCTOR_*", _INDUCTOR, sources.INDUCTOR, RESTART),
    bitwise(
        "TRITON_*",
        "autotune winners are kept, shared or measured anew",
        (sources.TRITON_AUTOTUNE, sources.MEGATRON_AUTOTUNE),
        RESTART,
    ),
    # NCCL
    harmless("NCCL_*", _NO_COLLECTIVE, when=ONE_GPU),
    bitwise(
        "NCCL_ALGO",
        f"{_COLLECTIVE}. No one value suits all: Ring is needed to repeat a run, Tree to be independent "
        "of the batch, and torch's deterministic mode sets ^NVLS itself",
        (sources.NCCL, sources.MEGATRON, sources.NCCL_NVLS),
        REPEAT,
    ),
    bitwise(
        "NCCL_NVLS_ENABLE",
        "sums inside the switch were seen to differ between calls",
        (sources.NCCL_NVLS, sources.NCCL_HOSTS),
        REPEAT,
    ),
    bitwise(
        "NCCL_TOPO_FILE",
        "the order of the ranks in a collective follows the topology",
        (sources.NCCL_TOPOLOGY, sources.NCCL_RANKS),
        REPEAT,
    ),
    bitwise("NCCL_*", _COLLECTIVE, (sources.NCCL, sources.NCCL_SIZES), DECODE),
    # vLLM
    numeric(
        "VLLM_FLOAT32_MATMUL_PRECISION",
        "allows products below fp32 precision",
        sources.VLLM_VARIABLES,
        PRECISION,
    ),
    token(
        "VLLM_USE_FLASHINFER_SAMPLER",
        "a different sampler draws different numbers from the same seed",
        sources.VLLM_VARIABLES,
        SAMPLING,
    ),
    bitwise("VLLM_BATCH_INVARIANT", _BATCH, sources.VLLM_BATCH, BATCH),
    bitwise(
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "decides whether scheduling is deterministic, and changes the random state of the caller's code",
        sources.VLLM,
        REPEAT,
    ),
    bitwise(
        "VLLM_MARLIN_USE_ATOMIC_ADD", "atomic additions come in any order", sources.VLLM_VARIABLES, REPEAT
    ),
    bitwise(
        "VLLM_TRITON_FORCE_FIRST_CONFIG",
        "decides whether kernels are chosen by timing",
        sources.VLLM_FIRST_CONFIG,
        RESTART,
    ),
    harmless("VLLM_*ALLREDUCE*", _NO_COLLECTIVE, when=ONE_GPU),
    bitwise("VLLM_*ALLREDUCE*", _COLLECTIVE, sources.VLLM_VARIABLES, DECODE),
    bitwise(
        "VLLM_ATTENTION_BACKEND",
        "a different kernel splits and sums in a different order",
        (sources.FLASH_ATTENTION, sources.VLLM_BATCH),
        BATCH,
    ),
    bitwise("VLLM_*", "different kernels or schedules", sources.VLLM_VARIABLES, DECODE),
    # Other engines
    bitwise("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", _BATCH, sources.SGLANG, BATCH),
    bitwise("SGLANG_*", "different split sizes, collectives or kernels", sources.SGLANG, BATCH),
    bitwise("FORCE_*", _DETERMINISTIC, sources.TENSORRT_LLM, REPEAT),
    bitwise("NIM_*", f"{_DETERMINISTIC}; FP8 is covered on H100 with NVLink only", sources.NIM, REPEAT),
    numeric("GGML_*", "products are computed in a different precision", sources.LLAMA_BUILD, PRECISION),
    token("OLLAMA_KV_CACHE_TYPE", "keys and values are rounded to a different type", sources.OLLAMA, DECODE),
    bitwise("OLLAMA_*", "a different attention kernel, or different batches", sources.OLLAMA, BATCH),
    bitwise("DEEPINFER_*", _BATCH, sources.DEEPINFER, BATCH),
    # CPU
    bitwise("MKL_CBWR", "fixes, or frees, the code path of every MKL function", sources.MKL_CNR, DECODE),
    bitwise("MKL_DYNAMIC", "the number of threads may change during a run", sources.MKL_THREADS, REPEAT),
    bitwise("MKL_NUM_THREADS", _THREADS, sources.MKL_THREADS, THREADS),
    bitwise("MKL_*", _ISA, sources.MKL_CNR, DECODE),
    numeric(
        "ONEDNN_DEFAULT_FPMATH_MODE", "allows products below fp32 precision", sources.ONEDNN_MATH, PRECISION
    ),
    bitwise("ONEDNN_*", _ISA, sources.ONEDNN_ISA, DECODE),
    bitwise("OMP_*", _THREADS, sources.MKL_THREADS, THREADS),
    bitwise("OPENBLAS_NUM_THREADS", _THREADS, sources.OPENBLAS, THREADS),
    bitwise("OPENBLAS_*", "chooses the kernels of OpenBLAS", sources.OPENBLAS, DECODE),
    # Others
    numeric("HIPBLASLT_ALLOW_TF32", _TF32, sources.TORCH_CUDA, PRECISION),
    bitwise("NVTE_*", _DETERMINISTIC, sources.TRANSFORMER_ENGINE, REPEAT),
    bitwise("PYTHONHASHSEED", "sets are iterated in a different order", sources.PYTHON, RESTART),
)
