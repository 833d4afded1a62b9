"""Rules for the Python packages that compute, and for the kernels that were compiled or chosen."""

from __future__ import annotations

from . import advice, sources
from .base import Rule
from .conditions import ONLY_ORIGIN, ONLY_PATCH, SAME_CHOICES, SAME_VERSION
from .sources import BY_CONSTRUCTION

_REBUILT = "a different build of the same version: different compiler, flags or patches"
_SAME_FILES = "the installed files are the same"

RULES: tuple[Rule, ...] = (
    # Python packages: the same files are the same code, whatever index they came from.
    Rule("frameworks.*", None, _SAME_FILES, BY_CONSTRUCTION, advice.NOTHING, ONLY_ORIGIN),
    Rule("kernels.*", None, _SAME_FILES, BY_CONSTRUCTION, advice.NOTHING, ONLY_ORIGIN),
    # torch: precision first, then what chooses kernels, then the release.
    Rule(
        "frameworks.torch.*allow_tf32",
        "numeric",
        "TF32 keeps 10 of the 23 mantissa bits of what is multiplied",
        sources.TORCH_CUDA,
        advice.PRECISION,
    ),
    Rule(
        "frameworks.torch.*matmul_precision",
        "numeric",
        "allows products below fp32 precision",
        sources.TORCH_PRECISION,
        advice.PRECISION,
    ),
    Rule(
        "frameworks.torch.*reduced_precision_reduction",
        "numeric",
        "allows sums below fp32 precision",
        sources.TORCH_CUDA,
        advice.PRECISION,
    ),
    Rule(
        "frameworks.torch.default_dtype",
        "numeric",
        "tensors made without a dtype change type",
        BY_CONSTRUCTION,
        advice.PRECISION,
    ),
    Rule(
        "frameworks.torch.cuda.sdp_kernels",
        "bitwise",
        "a different attention kernel may be chosen",
        sources.TORCH_SDPA,
        advice.DECODE,
    ),
    Rule(
        "frameworks.torch.cudnn.benchmark",
        "bitwise",
        "kernels are chosen by timing",
        sources.TORCH,
        advice.RESTART,
    ),
    Rule(
        "frameworks.torch.*deterministic*",
        "bitwise",
        "decides whether kernels that are not deterministic may run",
        sources.TORCH,
        advice.REPEAT,
    ),
    Rule(
        "frameworks.torch.fill_uninitialized_memory",
        None,
        "only what reads uninitialised memory sees it",
        sources.TORCH,
        advice.NOTHING,
    ),
    Rule("frameworks.torch.build", "bitwise", _REBUILT, sources.TORCH, advice.DECODE, SAME_VERSION),
    Rule(
        "frameworks.torch",
        "bitwise",
        "a patch release: nothing is promised across releases, not even these",
        sources.TORCH,
        advice.DECODE,
        ONLY_PATCH,
    ),
    Rule(
        "frameworks.torch*",
        "bitwise",
        "nothing is promised across releases, commits, platforms, or settings",
        sources.TORCH,
        advice.DECODE,
    ),
    Rule(
        "frameworks.tokenizers",
        "token",
        "the same text may become different token ids",
        sources.RELEASES,
        advice.INPUT,
    ),
    Rule(
        "frameworks.transformers",
        "bitwise",
        "model code, its operations and their order may have changed",
        sources.RELEASES,
        advice.DECODE,
    ),
    Rule("frameworks.numpy", "bitwise", "brings its own BLAS", sources.OPENBLAS, advice.DECODE),
    Rule(
        "frameworks.safetensors",
        None,
        "reads the same bytes; what was read shows in the model's digests",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule(
        "frameworks.accelerate",
        "bitwise",
        "decides where layers are placed and in which dtype they are loaded",
        sources.RELEASES,
        advice.DECODE,
    ),
    Rule(
        "frameworks.python*",
        None,
        "tensors are not computed by it; the packages it finds are listed separately",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    # Kernels.
    Rule("kernels.*", "bitwise", _REBUILT, BY_CONSTRUCTION, advice.DECODE, SAME_VERSION),
    Rule(
        "kernels.*_cache",
        None,
        "different kernels were compiled, but what was chosen by timing is the same",
        sources.TRITON_AUTOTUNE,
        advice.RESTART,
        SAME_CHOICES,
    ),
    Rule(
        "kernels.vllm_compile_cache",
        "bitwise",
        "its key names what went in, not what was chosen: two builds under one key can differ",
        (sources.VLLM_COMPILE, sources.MEGATRON_AUTOTUNE),
        advice.RESTART,
    ),
    Rule(
        "kernels.vllm_autotune_cache",
        "bitwise",
        "different runners or tactics were fastest when it was measured",
        sources.FLASHINFER_AUTOTUNE,
        advice.RESTART,
    ),
    Rule(
        "kernels.*_tuned_configs",
        "bitwise",
        "the block sizes of products come from these tables",
        BY_CONSTRUCTION,
        advice.DECODE,
    ),
    Rule(
        "kernels.flashinfer_cache",
        "bitwise",
        "different kernels were compiled, or different tactics were fastest when it was measured",
        sources.FLASHINFER_AUTOTUNE,
        advice.RESTART,
    ),
    Rule(
        "kernels.flash*",
        "bitwise",
        "a different attention kernel splits and sums in a different order",
        (sources.FLASH_ATTENTION, sources.FLASHINFER_SPLITS),
        advice.BATCH,
    ),
    Rule(
        "kernels.triton*",
        "bitwise",
        "different machine code, and autotune winners that were chosen by timing",
        (sources.TRITON_AUTOTUNE, sources.MEGATRON_AUTOTUNE),
        advice.RESTART,
    ),
    Rule(
        "kernels.inductor*",
        "bitwise",
        "different generated kernels, and autotune winners that were chosen by timing",
        sources.INDUCTOR_AUTOTUNE,
        advice.RESTART,
    ),
    Rule(
        "kernels.*",
        "bitwise",
        "a different kernel or a different autotune choice may run",
        (sources.MEGATRON_AUTOTUNE, sources.INDUCTOR_AUTOTUNE),
        advice.RESTART,
    ),
)
