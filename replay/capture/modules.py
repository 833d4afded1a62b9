"""Torch modules as taps need them: canonical names, replaced calls, and where the rows of their outputs lie.

It knows module classes by their names and attributes, not sites.

Axes: B sequences in the batch, T columns of the pass, H heads, W elements of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
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


def first_three(names: Sequence[str]) -> str:
    """The first three of some names."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def sentence_about(names: Sequence[str], what: str) -> list[str]:
    """One sentence about some names, with their number in front and three of them behind; none about none."""
    return [f"{len(names)} {what}: {first_three(names)}"] if names else []


class Layout(Enum):
    """Where the token axis of an output lies. Found once, with sizes that differ for every axis."""

    BATCH_FIRST = "[B or 1, T, …]: 1 where all sequences share the rows (rotary tables)"
    HEADS_FIRST = "[B, H, T, D]: a norm of queries or keys behind the transpose"
    TIME_FIRST = "[T, B, …]: torch's recurrent and transformer modules, by default"
    CHANNELS_FIRST = "[B or 1, W, T]: convolutions"
    TABLE = "[T, W]: rows that all sequences share (learned positions)"
    FLAT = "[B·T, …]: routers and experts"

    def fits(self, shape: torch.Size, batch: int, tokens: int) -> bool:
        """Whether an output of this shape may have its rows so, in a pass of B sequences × T columns."""
        axes = len(shape)
        if self is Layout.BATCH_FIRST:
            return axes >= 2 and shape[0] in (batch, 1) and shape[1] == tokens
        if self is Layout.HEADS_FIRST:
            return axes == 4 and shape[0] == batch and shape[2] == tokens
        if self is Layout.TIME_FIRST:
            return axes >= 3 and shape[:2] == (tokens, batch)
        if self is Layout.CHANNELS_FIRST:
            return axes == 3 and shape[0] in (batch, 1) and shape[2] == tokens
        if self is Layout.TABLE:
            return axes == 2 and shape[0] == tokens
        return axes >= 1 and shape[0] == batch * tokens

    def sequences(self, shape: torch.Size, batch: int) -> int:
        """How many sequences have rows of their own in an output of this shape: B, or 1 for all."""
        if self is Layout.TABLE:
            return 1
        return shape[0] if self in (Layout.BATCH_FIRST, Layout.CHANNELS_FIRST) else batch

    def by_sequence(self, tensor: torch.Tensor) -> torch.Tensor:
        """An output with its rows sequence by sequence, token by token: a view."""
        if self is Layout.TIME_FIRST:
            return tensor.transpose(0, 1)
        return tensor.transpose(1, 2) if self in (Layout.HEADS_FIRST, Layout.CHANNELS_FIRST) else tensor


def layout_of(tensor: torch.Tensor, batch: int, tokens: int) -> Layout | None:
    """The layout of an output, or None where it has no row per token.

    Args:
        tensor: Output of a module.
        batch: B, different from all other sizes in the model.
        tokens: T, likewise. An output with a second axis of this size (attention weights) has rows that
            grow with the context; they are not observed.
    """
    shape = tensor.shape
    if not tensor.numel():
        return None
    # Layout, in order of preference → the axes that must not be as long as the pass.
    others = {
        Layout.BATCH_FIRST: shape[2:],
        Layout.HEADS_FIRST: (*shape[1:2], *shape[3:]),
        Layout.TIME_FIRST: shape[2:] if tokens > 1 else (),
        Layout.CHANNELS_FIRST: shape[1:2],
        Layout.FLAT: shape[1:] if tokens > 1 else (),
        Layout.TABLE: shape[1:],
    }
    fitting = (layout for layout, axes in others.items() if tokens not in axes)
    return next((layout for layout in fitting if layout.fits(shape, batch, tokens)), None)


@dataclass(frozen=True)
class RowShape:
    """How the rows of one site lie in its tensor."""

    layout: Layout
    width: int
    """W."""

    def of(self, tensor: torch.Tensor, batch: int, tokens: int) -> torch.Tensor | None:
        """The rows [B or 1, T, W] of an output, as a view where possible.

        Returns:
            None where this output has other axes than the one the site was discovered with, as when only
            some tokens went through the module.
        """
        if not self.layout.fits(tensor.shape, batch, tokens):
            return None
        sequences = self.layout.sequences(tensor.shape, batch)
        if tensor.numel() != sequences * tokens * self.width:
            return None
        tensor = tensor.detach()  # a program that trains has its own use for the graph
        return self.layout.by_sequence(tensor).reshape(sequences, tokens, self.width)
