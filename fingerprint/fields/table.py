"""Every field of a fingerprint: what it is and where it is read. Its changes stand in the rules."""

from __future__ import annotations

from dataclasses import dataclass

from . import machine_fields as fields_machine
from . import model_fields as fields_model
from .variables import VARIABLES


@dataclass(frozen=True)
class Field:
    """One field, or several of one kind."""

    name: str
    """In its section, with shell wildcards."""
    meaning: str
    source: str
    """Where it is read."""


_FAMILIES = {
    "cublas": "cuBLAS and CUDA",
    "torch": "PyTorch",
    "inductor": "TorchInductor",
    "triton": "Triton",
    "nccl": "NCCL",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "nim": "NVIDIA NIM",
    "llama.cpp": "llama.cpp",
    "ollama": "Ollama",
    "cpu": "CPU libraries",
    "amd": "AMD ROCm",
    "transformer-engine": "Transformer Engine",
    "deepinfer": "DeepInfer",
    "seeds": "Python",
}
_VARIABLES = (
    ("batch_invariance", "the switches that promise results independent of the batch", ""),
    ("engine_seed", "the engine's own seed", "command line; the server"),
    ("on_policy_target", "SGLang: whose kernels to equal", "command line; the server"),
    *(
        (name, f"variable of {_FAMILIES[family]}", "")
        for family, names in VARIABLES.items()
        for name in names
    ),
)

FIELDS: dict[str, tuple[Field, ...]] = {
    section: tuple(Field(name, meaning, source or "the environment") for name, meaning, source in rows)
    for section, rows in {
        **fields_model.ROWS,
        **fields_machine.ROWS,
        "determinism": _VARIABLES,
    }.items()
}
"""Section → its fields, special names before wildcards."""
