"""What a change puts at risk: a table of rules, each with its reason and its source. It measures nothing.

Official documents promise bitwise equality only. So a rule names the level in doubt; whether it was really
lost is unknown until a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..schemas.claim import Level

NO_RULE = "no rule, replay to know"


@dataclass(frozen=True)
class Rule:
    """One row: which fields, the level at risk (None: none directly), why, and who says so."""

    pattern: str
    """`section.field`, with shell wildcards."""
    risk: Level | None
    why: str
    source: str

    def text(self) -> str:
        """Reason and source in one line."""
        return f"{self.why} ({self.source})"


# The letters of the table: the level at risk.
_B: Level = "bitwise"
_T: Level = "numeric"
_K: Level = "token"
_S: Level = "semantic"

# Sources that stand in several rows.
_PLAIN = "by construction"
_TORCH = "PyTorch, Reproducibility"
_CUBLAS = "cuBLAS, Results reproducibility"
_NCCL = "NCCL, Environment variables"
_VLLM = "vLLM, Batch invariance and Reproducibility"
_VLLM_SAMPLING = "vLLM, Sampling parameters"
_CNR = "oneMKL, Conditional Numerical Reproducibility"
_RELEASES = "the package's release notes"

# Reasons that stand in several rows.
_ROUNDS = "another dtype rounds every operation differently"
_KV = "keys and values are rounded to another type"
_TF32 = "TF32 keeps 10 of the 23 mantissa bits of what is multiplied"
_BELOW_FP32 = "allows products below fp32 precision"
_THREADS = "sums are split over another number of threads"
_ISA = "chooses the instruction set of the CPU kernels"
_DETERMINISTIC = "decides whether deterministic kernels are used"
_BATCH = "decides whether results may depend on the batch"

_TABLE: tuple[tuple[str, Level | None, str, str], ...] = (
    # The request contract and the model.
    ("model.generation_config_sha256", _S, "engines take silent sampling defaults from it", _VLLM_SAMPLING),
    ("model.quantization_method", _S, "other weights and other kernels compute every product", _PLAIN),
    ("model.dtype", _T, _ROUNDS, _PLAIN),
    ("model.*", _S, "another model, or another configuration of it", _PLAIN),
    ("tokenizer.*", _S, "the same text becomes other token ids", _PLAIN),
    ("template.*", _S, "the same messages become another prompt", _PLAIN),
    ("sampling.model_defaults", _K, "fields that a request leaves silent take other values", _VLLM_SAMPLING),
    ("sampling.*", _K, "the same logits and seed may choose another token", _PLAIN),
    # The engine and how it lays out the work.
    ("engine.dtype", _T, _ROUNDS, _PLAIN),
    ("engine.kv_cache_dtype", _T, _KV, _PLAIN),
    ("engine.attention_backend", _B, "another kernel adds in another order", "FlashAttention issue 1897"),
    ("engine.*", _B, "promised only for the same hardware and engine version", _VLLM),
    ("parallelism.*", _B, "a split sum is added in another order", "vLLM issue 7645"),
    ("cache.*", _B, "a cached prefix was computed in another shape", "vLLM 5543, llama.cpp 28368"),
    ("replica.*", _B, "another replica may be configured differently", "NCCL issue 2360"),
    # Frameworks, libraries, hardware.
    ("frameworks.torch.*allow_tf32", _T, _TF32, _TORCH),
    ("frameworks.torch.*matmul_precision", _T, _BELOW_FP32, "PyTorch, set_float32_matmul_precision"),
    (
        "frameworks.torch.*reduced_precision_reduction",
        _T,
        "allows sums below fp32",
        "PyTorch, CUDA semantics",
    ),
    ("frameworks.torch.default_dtype", _T, "tensors made without a dtype change type", "PyTorch"),
    ("frameworks.torch.cuda.sdp_kernels", _B, "another attention kernel may be chosen", "PyTorch, SDPA"),
    ("frameworks.torch.cudnn.benchmark", _B, "kernels are chosen by timing", _TORCH),
    ("frameworks.torch*", _B, "nothing is promised across releases, commits, platforms, settings", _TORCH),
    ("frameworks.transformers", _B, "model code and its operations may have changed", _RELEASES),
    ("frameworks.tokenizers", _K, "the same text may become other token ids", _RELEASES),
    ("libraries.cublas*", _B, "promised only for one toolkit version, architecture and SM count", _CUBLAS),
    ("libraries.cudnn", _B, "nothing is promised across versions", "cuDNN, Reproducibility"),
    ("libraries.nccl", _B, "collectives may add in another order (several GPUs)", "NCCL issues 1497, 157"),
    ("libraries.*", _B, "another kernel or compiler build may run", _CUBLAS),
    ("gpus.*", _B, "promised only for one architecture and SM count", _CUBLAS),
    ("driver.*", _B, "the driver compiles PTX to machine code of its own", "CUDA, Just-in-time compilation"),
    ("kernels.*", _B, "another kernel or autotune choice may run", "Megatron-LM 6966, PyTorch 189121"),
    ("cpu.*threads", _B, _THREADS, _CNR),
    ("cpu.*cpus", _B, "the default number of threads follows it", _CNR),
    ("cpu.cgroup_quota", None, "limits time, not the number of threads", "Linux, cgroup v2"),
    ("cpu.*", _B, "kernels are chosen by instruction set and core", f"{_CNR}; PyTorch issue 88718"),
    ("os.*", _B, "another C library or kernel runs beneath the same packages", _TORCH),
    # Environment variables.
    ("determinism.batch_invariance", _B, _BATCH, _VLLM),
    ("determinism.*TF32*", _T, _TF32, "NVIDIA, TF32; ROCm, hipBLASLt"),
    ("determinism.CUBLAS_EMULAT*", _T, "fp32 products are emulated", "cuBLAS, Floating point emulation"),
    (
        "determinism.CUDA_FORCE_PTX_JIT",
        _B,
        "machine code comes from the driver",
        "CUDA, Environment variables",
    ),
    ("determinism.CUBLAS*", _B, "workspace and heuristics choose the kernel", _CUBLAS),
    ("determinism.TORCHINDUCTOR_*", _B, "other kernels are generated or chosen", "PyTorch, Inductor config"),
    ("determinism.TORCH_*", _B, "another library or kernel is chosen", "PyTorch, Environment variables"),
    ("determinism.ATEN_CPU_CAPABILITY", _B, _ISA, "PyTorch issue 88718"),
    ("determinism.TRITON_*", _B, "autotune choices may be shared or measured anew", "Triton issue 9368"),
    ("determinism.NCCL_*", _B, "collectives may add in another order; no one value suits all", _NCCL),
    ("determinism.VLLM_FLOAT32_MATMUL_PRECISION", _T, _BELOW_FP32, _VLLM),
    ("determinism.VLLM_USE_FLASHINFER_SAMPLER", _K, "another sampler draws differently", _VLLM),
    ("determinism.VLLM_BATCH_INVARIANT", _B, _BATCH, _VLLM),
    ("determinism.VLLM_*", _B, "other kernels, collectives or schedules", _VLLM),
    (
        "determinism.SGLANG_*",
        _B,
        "other kernels, split sizes or collectives",
        "SGLang, Deterministic inference",
    ),
    ("determinism.FORCE_*", _B, _DETERMINISTIC, "TensorRT-LLM, Environment variables"),
    ("determinism.NIM_*", _B, _DETERMINISTIC, "NVIDIA NIM, Configuration"),
    ("determinism.GGML_*", _T, "products are computed in another precision", "llama.cpp, CUDA backend"),
    ("determinism.OLLAMA_KV_CACHE_TYPE", _T, _KV, "Ollama, FAQ"),
    ("determinism.OLLAMA_*", _B, "another attention kernel or batch", "Ollama, FAQ"),
    ("determinism.MKL_*", _B, "chooses code path or threads", _CNR),
    ("determinism.ONEDNN_DEFAULT_FPMATH_MODE", _T, _BELOW_FP32, "oneDNN, Floating-point math mode"),
    ("determinism.ONEDNN_MAX_CPU_ISA", _B, _ISA, "oneDNN, CPU dispatcher control"),
    ("determinism.OMP_NUM_THREADS", _B, _THREADS, _CNR),
    ("determinism.OPENBLAS_*", _B, "chooses kernels or threads", "OpenBLAS, Runtime variables"),
    ("determinism.NVTE_*", _B, "allows kernels that are not deterministic", "Transformer Engine"),
    ("determinism.DEEPINFER_*", _B, _BATCH, "DeepInfer, Deterministic inference"),
    ("determinism.PYTHONHASHSEED", _B, "sets come in another order", "Python, Environment variables"),
)

RULES: tuple[Rule, ...] = tuple(Rule(*row) for row in _TABLE)
"""The first row that fits counts; special rows stand before general ones."""


def rule_for(section: str, field: str) -> Rule | None:
    """The rule for a field, or None where nobody has stated one."""
    name = f"{section}.{field}"
    return next((rule for rule in RULES if fnmatchcase(name, rule.pattern)), None)
