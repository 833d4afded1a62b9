"""Rules for the environment variables that change numerics, and for the switches that promise not to."""

from __future__ import annotations

from . import sources
from .advice import BATCH, DECODE, PRECISION, REPEAT, RESTART, SAMPLING, THREADS
from .base import Rule, bitwise, harmless, in_section, numeric, token
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
    bitwise("batch_invariance", _BATCH, BATCH, (sources.VLLM_BATCH, sources.SGLANG)),
    token("engine_seed", "requests without a seed of their own draw from it", SAMPLING, sources.VLLM),
    bitwise("on_policy_target", "chooses kernels that equal those of a trainer", DECODE, sources.SGLANG),
    # cuBLAS and CUDA
    bitwise(
        "CUBLAS_WORKSPACE_CONFIG",
        "the workspace decides which kernel runs, and whether streams disturb each other",
        REPEAT,
        sources.CUBLAS,
    ),
    bitwise(
        "CUBLASLT_WORKSPACE_SIZE",
        "kernels that need more workspace are no longer chosen",
        DECODE,
        sources.TORCH_BACKENDS,
    ),
    numeric("NVIDIA_TF32_OVERRIDE", _TF32, PRECISION, sources.TORCH_VARIABLES),
    numeric("CUBLAS_EMULAT*", "fp32 products are emulated", PRECISION, sources.CUBLAS_EMULATION),
    bitwise("CUBLASLT_HEURISTICS_*", "a different table chooses the kernels", DECODE),
    bitwise(
        "CUDA_FORCE_PTX_JIT",
        "machine code comes from the driver's compiler in place of the library's",
        DECODE,
        sources.CUDA_VARIABLES,
    ),
    # PyTorch
    numeric("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", _TF32, PRECISION, sources.TORCH_VARIABLES),
    bitwise(
        "TORCH_BLAS_PREFER_CUBLASLT",
        "products go to cuBLASLt in place of cuBLAS",
        DECODE,
        sources.TORCH_BACKENDS,
    ),
    bitwise(
        "TORCH_CUDNN_V8_API_DISABLED",
        "a different interface of cuDNN chooses different kernels",
        DECODE,
        sources.TORCH_VARIABLES,
    ),
    bitwise("ATEN_CPU_CAPABILITY", _ISA, DECODE, sources.TORCH_ISA),
    bitwise(
        "PYTORCH_TUNABLEOP_*",
        "each product's kernel is chosen by timing, or read from a file of earlier choices",
        RESTART,
        sources.TUNABLE_OP,
    ),
    # Inductor and Triton
    numeric("TORCHINDUCTOR_USE_FAST_MATH", "allows approximate functions", PRECISION, sources.INDUCTOR),
    numeric(
        "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
        "intermediate results are rounded as in eager mode, or not",
        PRECISION,
        sources.INDUCTOR,
    ),
    numeric("TORCHINDUCTOR_NUMERICS", "chooses how results are rounded", PRECISION, sources.INDUCTOR),
    bitwise("TORCHINDUCTOR_MAX_AUTOTUNE", "kernels are chosen by timing", RESTART, sources.INDUCTOR),
    bitwise("TORCHINDUCTOR_SPLIT_REDUCTIONS", "sums are split differently", DECODE, sources.INDUCTOR),
    bitwise(
        "TORCHINDUCTOR_DETERMINISTIC",
        "decides whether kernels are chosen by timing",
        RESTART,
        sources.INDUCTOR,
    ),
    bitwise("TORCHINDUCTOR_BATCH_INVARIANT", _BATCH, BATCH, sources.INDUCTOR),
    bitwise("TORCHINDUCTOR_*", _INDUCTOR, RESTART, sources.INDUCTOR),
    bitwise(
        "TRITON_*",
        "autotune winners are kept, shared or measured anew",
        RESTART,
        (sources.TRITON_AUTOTUNE, sources.MEGATRON_AUTOTUNE),
    ),
    # NCCL
    harmless("NCCL_*", _NO_COLLECTIVE, when=ONE_GPU),
    bitwise(
        "NCCL_ALGO",
        f"{_COLLECTIVE}. No one value suits all: Ring is needed to repeat a run, Tree to be independent "
        "of the batch, and torch's deterministic mode sets ^NVLS itself",
        REPEAT,
        (sources.NCCL, sources.MEGATRON, sources.NCCL_NVLS),
    ),
    bitwise(
        "NCCL_NVLS_ENABLE",
        "sums inside the switch were seen to differ between calls",
        REPEAT,
        (sources.NCCL_NVLS, sources.NCCL_HOSTS),
    ),
    bitwise(
        "NCCL_TOPO_FILE",
        "the order of the ranks in a collective follows the topology",
        REPEAT,
        (sources.NCCL_TOPOLOGY, sources.NCCL_RANKS),
    ),
    bitwise("NCCL_*", _COLLECTIVE, DECODE, (sources.NCCL, sources.NCCL_SIZES)),
    # vLLM
    numeric(
        "VLLM_FLOAT32_MATMUL_PRECISION",
        "allows products below fp32 precision",
        PRECISION,
        sources.VLLM_VARIABLES,
    ),
    token(
        "VLLM_USE_FLASHINFER_SAMPLER",
        "a different sampler draws different numbers from the same seed",
        SAMPLING,
        sources.VLLM_VARIABLES,
    ),
    bitwise("VLLM_BATCH_INVARIANT", _BATCH, BATCH, sources.VLLM_BATCH),
    bitwise(
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "decides whether scheduling is deterministic, and changes the random state of the caller's code",
        REPEAT,
        sources.VLLM,
    ),
    bitwise(
        "VLLM_MARLIN_USE_ATOMIC_ADD", "atomic additions come in any order", REPEAT, sources.VLLM_VARIABLES
    ),
    bitwise(
        "VLLM_TRITON_FORCE_FIRST_CONFIG",
        "decides whether kernels are chosen by timing",
        RESTART,
        sources.VLLM_FIRST_CONFIG,
    ),
    bitwise(
        "VLLM_USE_V2_MODEL_RUNNER",
        "a different model runner: it prepares batches, samples and captures graphs by other code",
        DECODE,
        sources.VLLM_VARIABLES,
    ),
    bitwise(
        "VLLM_*FLASHINFER_MOE*",
        "other kernels compute the experts; some add their results by atomic operations, in any order",
        REPEAT,
        (sources.VLLM_VARIABLES, sources.VLLM_MOE_FINALIZE),
    ),
    bitwise(
        "VLLM_ROCM_*",
        "kernels of AITER, or others in their place, compute attention, products, norms or experts",
        DECODE,
        sources.VLLM_VARIABLES,
    ),
    bitwise(
        "VLLM_FLASH_ATTN_*",
        "a different attention kernel, or a different number of splits",
        BATCH,
        (sources.VLLM_VARIABLES, sources.FLASH_ATTENTION),
    ),
    harmless("VLLM_*ALLREDUCE*", _NO_COLLECTIVE, when=ONE_GPU),
    bitwise("VLLM_*ALLREDUCE*", _COLLECTIVE, DECODE, sources.VLLM_VARIABLES),
    bitwise(
        "VLLM_ATTENTION_BACKEND",
        "a different kernel splits and sums in a different order",
        BATCH,
        (sources.FLASH_ATTENTION, sources.VLLM_BATCH),
    ),
    bitwise("VLLM_*", "different kernels or schedules", DECODE, sources.VLLM_VARIABLES),
    # Other engines
    bitwise("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", _BATCH, BATCH, sources.SGLANG),
    bitwise("SGLANG_*", "different split sizes, collectives or kernels", BATCH, sources.SGLANG),
    bitwise("FORCE_*", _DETERMINISTIC, REPEAT, sources.TENSORRT_LLM),
    bitwise("NIM_*", f"{_DETERMINISTIC}; FP8 is covered on H100 with NVLink only", REPEAT, sources.NIM),
    numeric("GGML_*", "products are computed in a different precision", PRECISION, sources.LLAMA_BUILD),
    token("OLLAMA_KV_CACHE_TYPE", "keys and values are rounded to a different type", DECODE, sources.OLLAMA),
    bitwise("OLLAMA_*", "a different attention kernel, or different batches", BATCH, sources.OLLAMA),
    bitwise("DEEPINFER_*", _BATCH, BATCH, sources.DEEPINFER),
    # CPU
    bitwise("MKL_CBWR", "fixes, or frees, the code path of every MKL function", DECODE, sources.MKL_CNR),
    bitwise("MKL_DYNAMIC", "the number of threads may change during a run", REPEAT, sources.MKL_THREADS),
    bitwise("MKL_NUM_THREADS", _THREADS, THREADS, sources.MKL_THREADS),
    bitwise("MKL_*", _ISA, DECODE, sources.MKL_CNR),
    numeric(
        "ONEDNN_DEFAULT_FPMATH_MODE", "allows products below fp32 precision", PRECISION, sources.ONEDNN_MATH
    ),
    bitwise("ONEDNN_*", _ISA, DECODE, sources.ONEDNN_ISA),
    bitwise("OMP_*", _THREADS, THREADS, sources.MKL_THREADS),
    bitwise("OPENBLAS_NUM_THREADS", _THREADS, THREADS, sources.OPENBLAS),
    bitwise("OPENBLAS_*", "chooses the kernels of OpenBLAS", DECODE, sources.OPENBLAS),
    # AMD and Ascend
    numeric("HIPBLASLT_ALLOW_TF32", _TF32, PRECISION, sources.TORCH_CUDA),
    bitwise("HSA_*", "kernels of another architecture are loaded than that of the GPU", DECODE),
    harmless("HCCL_*|LCCL_*", _NO_COLLECTIVE, when=ONE_GPU),
    bitwise("HCCL_*", "collectives may add in any order, or in a fixed one", REPEAT, sources.HCCL),
    bitwise("LCCL_*", "collectives may add in any order, or in a fixed one", REPEAT, sources.LCCL),
    bitwise(
        "CLOSE_MATMUL_K_SHIFT|ATB_*",
        "products are split and added in a different order",
        REPEAT,
        sources.ASCEND,
    ),
    # Others
    bitwise("NVTE_*", _DETERMINISTIC, REPEAT, sources.TRANSFORMER_ENGINE),
    bitwise("PYTHONHASHSEED", "sets are iterated in a different order", RESTART, sources.PYTHON),
)
