"""Rules for the numeric libraries: CUDA's and the CPU's, which copy is loaded, and of which build."""

from __future__ import annotations

from . import advice, sources
from .base import Rule
from .conditions import (
    ONE_GPU,
    ONLY_PATCH,
    SAME_BUILDS,
    SAME_BUILDS_NOW_GONE,
    SAME_LOADED_COPY,
    SAME_VERSION_BESIDE,
)
from .sources import BY_CONSTRUCTION

RULES: tuple[Rule, ...] = (
    Rule(
        "libraries.*_copies",
        None,
        "the copy that is loaded is the same; the others compute nothing, though a restart may load one",
        sources.VERL_COPIES,
        advice.NOTHING,
        SAME_LOADED_COPY,
    ),
    Rule(
        "libraries.*_copies",
        None,
        "the loaded build is the same, only its path or its package differs",
        BY_CONSTRUCTION,
        advice.NOTHING,
        SAME_BUILDS,
    ),
    Rule(
        "libraries.nccl*",
        None,
        "no collective runs where one GPU works on a request",
        BY_CONSTRUCTION,
        advice.NOTHING,
        ONE_GPU,
    ),
    Rule(
        "libraries.*_copies",
        "bitwise",
        "a different copy of the library is loaded, or may be loaded",
        sources.VERL_COPIES,
        advice.DECODE,
    ),
    Rule(
        "libraries.*_build_id",
        "bitwise",
        "a different build of the same version: the version that the library reports hides the build number",
        (sources.VERL_COPIES, sources.CUBLAS),
        advice.DECODE,
        SAME_VERSION_BESIDE,
    ),
    Rule(
        "libraries.cublas*",
        "bitwise",
        "a patch level of one toolkit: different kernels may be chosen; promised only for the same version",
        sources.CUBLAS,
        advice.DECODE,
        ONLY_PATCH,
    ),
    Rule(
        "libraries.cublas*",
        "bitwise",
        "promised only for one toolkit version, architecture and SM count",
        sources.CUBLAS,
        advice.DECODE,
    ),
    Rule("libraries.cudnn*", "bitwise", "nothing is promised across versions", sources.CUDNN, advice.DECODE),
    Rule(
        "libraries.nccl_conf",
        "bitwise",
        "the file sets what NCCL's variables set; the environment wins over it",
        sources.NCCL,
        advice.DECODE,
    ),
    Rule(
        "libraries.nccl*",
        "bitwise",
        "collectives may choose a different algorithm and sum in a different order",
        (sources.NCCL_NVLS, sources.NCCL_SIZES),
        advice.DECODE,
    ),
    Rule(
        "libraries.nvrtc*",
        "bitwise",
        "kernels that are compiled at run time become different machine code",
        BY_CONSTRUCTION,
        advice.DECODE,
    ),
    Rule(
        "libraries.cuda_driver*",
        "bitwise",
        "the driver compiles PTX to machine code of its own",
        sources.CUDA_JIT,
        advice.DECODE,
    ),
    Rule(
        "libraries.cuda",
        "bitwise",
        "a different toolkit: its libraries promise nothing across versions",
        sources.CUBLAS,
        advice.DECODE,
    ),
    Rule(
        "libraries.warnings",
        "bitwise",
        "a different library runs than expected, or no longer does",
        (sources.VERL_COPIES, sources.NCCL_STATIC),
        advice.DECODE,
    ),
    Rule(
        "libraries.installed_packages",
        "bitwise",
        "torch loads the libraries in these packages, unless other copies come first",
        (sources.VERL_COPIES, sources.CUBLAS),
        advice.DECODE,
    ),
    Rule(
        "libraries.loaded",
        None,
        "what is loaded did not change; its file on disk did, and a restart loads a different one or none",
        BY_CONSTRUCTION,
        advice.NOTHING,
        SAME_BUILDS_NOW_GONE,
    ),
    Rule(
        "libraries.loaded",
        None,
        "the same builds are loaded, only from a different path or package",
        BY_CONSTRUCTION,
        advice.NOTHING,
        SAME_BUILDS,
    ),
    Rule(
        "libraries.loaded",
        "bitwise",
        "a different build of the code that computes is loaded",
        (sources.TORCH, sources.MKL_CNR),
        advice.DECODE,
    ),
    Rule(
        "libraries.*",
        "bitwise",
        "a different copy, build or version of a numeric library may be loaded",
        sources.VERL_COPIES,
        advice.DECODE,
    ),
)
