"""Rules for Python packages and compiled kernels, and for the numeric libraries that they load."""

from __future__ import annotations

from . import sources
from .advice import BATCH, DECODE, INPUT, PRECISION, REPEAT, RESTART, SAMPLING
from .base import Rule, bitwise, harmless, in_section, numeric, token
from .conditions import (
    NOT_COMPILED,
    ONE_GPU,
    ONLY_ORIGIN,
    ONLY_PATCH,
    SAME_BUILDS,
    SAME_BUILDS_NOW_GONE,
    SAME_CHOICES,
    SAME_LOADED_COPY,
    SAME_VERSION,
    SAME_VERSION_BESIDE,
    crosses,
)

VLLM_DEFAULTS = (
    "since 0.8, fields that a request does not set come from the model's generation_config: other tokens"
)
_REBUILT = "a different build of the same version: different compiler, flags or patches"
_SAME_FILES = "the installed files are the same"

_FRAMEWORKS: tuple[Rule, ...] = in_section(
    "frameworks",
    # Python packages: the same files are the same code, whatever index they came from.
    harmless("*", _SAME_FILES, when=ONLY_ORIGIN),
    # torch: precision first, then what chooses kernels, then the release.
    numeric(
        "torch.*allow_tf32",
        "TF32 keeps 10 of the 23 mantissa bits of what is multiplied",
        PRECISION,
        sources.TORCH_CUDA,
    ),
    numeric(
        "torch.*matmul_precision", "allows products below fp32 precision", PRECISION, sources.TORCH_PRECISION
    ),
    numeric(
        "torch.*reduced_precision_reduction",
        "allows sums below fp32 precision",
        PRECISION,
        sources.TORCH_CUDA,
    ),
    numeric("torch.default_dtype", "tensors made without a dtype change type", PRECISION),
    bitwise(
        "torch.cuda.sdp_kernels", "a different attention kernel may be chosen", DECODE, sources.TORCH_SDPA
    ),
    bitwise("torch.cudnn.benchmark", "kernels are chosen by timing", RESTART, sources.TORCH),
    bitwise(
        "torch.*deterministic*",
        "decides whether kernels that are not deterministic may run",
        REPEAT,
        sources.TORCH,
    ),
    harmless(
        "torch.fill_uninitialized_memory", "only what reads uninitialised memory sees it", sources.TORCH
    ),
    bitwise("torch.build", _REBUILT, DECODE, sources.TORCH, SAME_VERSION),
    bitwise(
        "torch",
        "a patch release: nothing is promised across releases, not even these",
        DECODE,
        sources.TORCH,
        ONLY_PATCH,
    ),
    bitwise(
        "torch*",
        "nothing is promised across releases, commits, platforms, or settings",
        DECODE,
        sources.TORCH,
    ),
    token("tokenizers", "the same text may become different token ids", INPUT, sources.RELEASES),
    token(
        "transformers",
        "release 5 tokenizes by other code: the same text may become different token ids",
        INPUT,
        sources.TRANSFORMERS_5,
        crosses((5, 0)),
    ),
    bitwise(
        "transformers",
        "model code, its operations and their order may have changed",
        DECODE,
        sources.RELEASES,
    ),
    bitwise("numpy", "brings its own BLAS", DECODE, sources.OPENBLAS),
    harmless("safetensors", "reads the same bytes; what was read shows in the model's digests"),
    bitwise(
        "accelerate",
        "decides where layers are placed and in which dtype they are loaded",
        DECODE,
        sources.RELEASES,
    ),
    harmless("python*", "tensors are not computed by it; the packages it finds are listed separately"),
)

_KERNELS: tuple[Rule, ...] = in_section(
    "kernels",
    harmless("*", _SAME_FILES, when=ONLY_ORIGIN),
    bitwise("*", _REBUILT, DECODE, when=SAME_VERSION),
    harmless(
        "*_cache",
        "a cache of compiled kernels, of which an eager run on the CPU uses none",
        when=NOT_COMPILED,
    ),
    token(
        "vllm", VLLM_DEFAULTS, SAMPLING, (sources.VLLM_DEFAULTS, sources.VLLM_DEFAULTS_SEEN), crosses((0, 8))
    ),
    Rule(
        "*_cache",
        "different kernels were compiled, but what was chosen by timing is the same",
        RESTART,
        sources.TRITON_AUTOTUNE,
        SAME_CHOICES,
    ),
    bitwise(
        "vllm_compile_cache",
        "its key names what went in, not what was chosen: two builds under one key can differ",
        RESTART,
        (sources.VLLM_COMPILE, sources.MEGATRON_AUTOTUNE),
    ),
    bitwise(
        "vllm_autotune_cache",
        "different runners or tactics were fastest when it was measured",
        RESTART,
        sources.FLASHINFER_AUTOTUNE,
    ),
    bitwise("*_tuned_configs", "the block sizes of products come from these tables", DECODE),
    bitwise(
        "flashinfer_cache",
        "different kernels were compiled, or different tactics were fastest when it was measured, "
        "also from rank to rank",
        RESTART,
        (sources.FLASHINFER_AUTOTUNE, sources.SGLANG_TACTICS),
    ),
    bitwise(
        "flash*",
        "a different attention kernel splits and sums in a different order",
        BATCH,
        (sources.FLASH_ATTENTION, sources.FLASHINFER_SPLITS),
    ),
    bitwise(
        "triton*",
        "different machine code, and autotune winners that were chosen by timing",
        RESTART,
        (sources.TRITON_AUTOTUNE, sources.MEGATRON_AUTOTUNE),
    ),
    bitwise(
        "inductor*",
        "different generated kernels, and autotune winners that were chosen by timing",
        RESTART,
        sources.INDUCTOR_AUTOTUNE,
    ),
    bitwise(
        "*",
        "a different kernel or a different autotune choice may run",
        RESTART,
        (sources.MEGATRON_AUTOTUNE, sources.INDUCTOR_AUTOTUNE),
    ),
)


_LIBRARIES: tuple[Rule, ...] = in_section(
    "libraries",
    harmless(
        "*_copies",
        "the copy that is loaded is the same; the others compute nothing, though a restart may load one",
        sources.VERL_COPIES,
        when=SAME_LOADED_COPY,
    ),
    harmless(
        "*_copies", "the loaded build is the same, only its path or its package differs", when=SAME_BUILDS
    ),
    harmless("nccl*", "no collective runs where one GPU works on a request", when=ONE_GPU),
    bitwise(
        "*_copies", "a different copy of the library is loaded, or may be loaded", DECODE, sources.VERL_COPIES
    ),
    bitwise(
        "*_build_id",
        "a different build of the same version: the version that the library reports hides the build number",
        DECODE,
        (sources.VERL_COPIES, sources.CUBLAS),
        SAME_VERSION_BESIDE,
    ),
    bitwise(
        "cublas*",
        "a patch level of one toolkit: different kernels may be chosen; promised only for the same version",
        DECODE,
        sources.CUBLAS,
        ONLY_PATCH,
    ),
    bitwise(
        "cublas*", "promised only for one toolkit version, architecture and SM count", DECODE, sources.CUBLAS
    ),
    bitwise("cudnn*", "nothing is promised across versions", DECODE, sources.CUDNN),
    bitwise(
        "nccl_conf",
        "the file sets what NCCL's variables set; the environment wins over it",
        DECODE,
        sources.NCCL,
    ),
    bitwise(
        "nccl*",
        "collectives may choose a different algorithm and sum in a different order",
        DECODE,
        (sources.NCCL_NVLS, sources.NCCL_SIZES),
    ),
    bitwise(
        "rocm|hip*|miopen|cann",
        "a different toolkit brings different kernels and another compiler of them",
        DECODE,
    ),
    bitwise("nvrtc*", "kernels that are compiled at run time become different machine code", DECODE),
    bitwise("cuda_driver*", "the driver compiles PTX to machine code of its own", DECODE, sources.CUDA_JIT),
    bitwise(
        "cuda", "a different toolkit: its libraries promise nothing across versions", DECODE, sources.CUBLAS
    ),
    bitwise(
        "warnings",
        "a different library runs than expected, or no longer does",
        DECODE,
        (sources.VERL_COPIES, sources.NCCL_STATIC),
    ),
    bitwise(
        "installed_packages",
        "torch loads the libraries in these packages, unless other copies come first",
        DECODE,
        (sources.VERL_COPIES, sources.CUBLAS),
    ),
    harmless(
        "loaded",
        "what is loaded did not change; its file on disk did, and a restart loads a different one or none",
        when=SAME_BUILDS_NOW_GONE,
    ),
    harmless("loaded", "the same builds are loaded, only from a different path or package", when=SAME_BUILDS),
    bitwise(
        "loaded",
        "a different build of the code that computes is loaded",
        DECODE,
        (sources.TORCH, sources.MKL_CNR),
    ),
    bitwise(
        "*",
        "a different copy, build or version of a numeric library may be loaded",
        DECODE,
        sources.VERL_COPIES,
    ),
)

RULES: tuple[Rule, ...] = (*_FRAMEWORKS, *_KERNELS, *_LIBRARIES)
