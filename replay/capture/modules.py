"""Torch modules as taps need them: their canonical names, what they return, and their calls replaced.

It knows module classes by their names and attributes, not sites or rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

ATTENTION_OUTPUT = "attn"
"""Part name of the attention output before its projection (the input of o_proj)."""

OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")
"""What models call the linear layer behind the attention heads."""

RENAMED = (("h.", "layers."), ("blocks.", "layers."), ("decoder.", ""))
"""Beginnings of module paths that other model families use → the canonical ones."""

Output = int | str
"""Which of a module's outputs: its index in the returned tuple, or its key in the returned dict."""

Call = Callable[..., Any]
"""Runs a module."""


@contextmanager
def replace_calls(replacements: Mapping[nn.Module, Callable[[Call], Call]]) -> Iterator[None]:
    """Each module's call is replaced by what its replacement makes of it, until the context ends."""
    before: list[tuple[nn.Module, Any]] = []
    try:
        for module, replacement in replacements.items():
            own = module._compiled_call_impl
            # Not forward hooks: they send every call of the module through torch's slow path, which
            # costs more than the summaries, and turn torch's fused transformer layers off. Torch calls
            # this attribute in place of the module's own call, hooks included, so that the outputs seen
            # are those that the model goes on with.
            module._compiled_call_impl = replacement(own or module._call_impl)
            before.append((module, own))
        yield
    finally:
        for module, own in reversed(before):
            module._compiled_call_impl = own


def is_compiled(module: nn.Module) -> bool:
    """True where torch.compile or torch.jit runs what is inside this module: its children are not called."""
    return (
        is_compiled_wrapper(module)
        or isinstance(module, torch.jit.ScriptModule)
        or hasattr(module._compiled_call_impl, "_torchdynamo_orig_callable")
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def is_compiled_wrapper(module: nn.Module) -> bool:
    """What torch.compile(module) returns; what is set on it is set on the module inside it."""
    return isinstance(getattr(module, "_orig_mod", None), nn.Module)


def canonical_name(path: str) -> str:
    """A module path with the root stripped, as the trace names sites (`layers.4.mlp`)."""
    for old, new in RENAMED:
        if path.startswith(old):
            return new + path[len(old) :]
    return path


def base_model(model: nn.Module) -> nn.Module:
    """The module whose children are observed: without the head, so that names carry no root."""
    prefix: str = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else None
    return base if isinstance(base, nn.Module) else model


def attention_projection(module: nn.Module) -> nn.Module | None:
    """The output projection of an attention module, else None."""
    if "attention" not in type(module).__name__.lower():
        return None
    for name in OUTPUT_PROJECTIONS:
        child = getattr(module, name, None)
        if isinstance(child, nn.Module):
            return child
    return None


def tensors_of(output: object) -> list[tuple[Output, torch.Tensor]]:
    """The tensors a module returned, each with its index in the returned tuple or its key in the dict."""
    if isinstance(output, torch.Tensor):
        return [(0, output)]
    if isinstance(output, Mapping):
        return [(str(key), item) for key, item in output.items() if isinstance(item, torch.Tensor)]
    if not isinstance(output, tuple | list):
        return []
    return [(index, item) for index, item in enumerate(output) if isinstance(item, torch.Tensor)]


def some_of(names: Sequence[str]) -> str:
    """The first three of some names."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
