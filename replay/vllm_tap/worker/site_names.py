"""Canonical names for what vLLM's modules return: fused projections and residual streams taken apart.

It knows class names and attributes of vLLM's modules, and imports none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....schemas.trace import Site
from ...capture.modules import ATTENTION_OUTPUT, Output, canonical_name

if TYPE_CHECKING:
    import torch
    from torch import nn

ROOTS = ("model", "transformer")
"""What vLLM's models call the module that holds the layers; no part of a canonical name."""

FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Projections that vLLM runs as one GEMM → the ones of the checkpoint, for models that do not say."""

GATED = "act_and_mul"
"""Name of a gated activation's output, which no module of the checkpoint's own returns."""

LAYER = re.compile(r"(?P<group>(?:.*\.)?layers)\.(?P<index>\d+)(?P<inside>\..+)?")


@dataclass
class Call:
    """One run of one module within a forward pass."""

    module: nn.Module
    path: str
    """In the model; for a module that all layers share, the path in the layer that ran it."""
    occurrence: int
    """Which run under that path."""
    run: int
    """Which run of the module at all."""
    outputs: list[tuple[Output, torch.Tensor]] = field(default_factory=list)
    sharded: bool = False
    has_children: bool = False
    began_shards: bool = False


class Naming:
    """Names the outputs of one forward pass.

    Args:
        calls: Every call, in the order in which they ended. Their tensors are alive.
        tokens: Token rows of the pass.
        tp: This rank's index and the number of ranks of tensor parallelism.
        packed: Fused projections of this model → what they consist of.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        tokens: int,
        tp: tuple[int, int],
        packed: Mapping[str, Sequence[str]],
    ) -> None:
        self._tokens, self._tp, self._packed = tokens, tp, {**FUSED, **packed}
        self._made_before: dict[int, set[int]] = {}
        """Call → the tensors that calls before it returned."""
        self._layer_before: dict[int, str] = {}
        """First call of a layer, or a call behind all layers → the layer that had just ended."""
        made: set[int] = set()
        seen: set[str] = set()
        last: str | None = None
        for call in calls:
            self._made_before[id(call)] = set(made)
            made |= {id(tensor) for _, tensor in call.outputs}
            match = LAYER.fullmatch(canonical_path(call.path))
            if match is None:
                if last is not None:
                    self._layer_before[id(call)] = last
                continue
            last = f"{match['group']}.{match['index']}"
            if last not in seen and int(match["index"]) > 0:
                self._layer_before[id(call)] = f"{match['group']}.{int(match['index']) - 1}"
            seen.add(last)

    def has_rows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a row for each token."""
        return tensor.dim() > 0 and tensor.shape[0] == self._tokens and tensor.numel() > 0

    def in_causal_order(self, call: Call) -> list[tuple[Output, torch.Tensor]]:
        """The outputs of a call: the sum that a fused norm returns comes before what it made of it."""
        return call.outputs[::-1] if self._is_fused_norm(call) else call.outputs

    def sites_of(self, call: Call, output: Output, tensor: torch.Tensor) -> list[tuple[Site, int]]:
        """The sites in one output's rows, each with its first element; none if they are shown elsewhere."""
        path = canonical_path(call.path)
        rows = self._with_rows(call)
        made = self._made_before[id(call)]
        handed_on = call.has_children and all(id(item) in made for _, item in call.outputs)
        if not path or (len(rows) > 1 and handed_on):
            # The model itself, whose output is its last norm's; or a (hidden, residual) pair whose two
            # tensors were observed where they were made.
            return []
        part = "" if rows == [output] else str(output)
        kind = type(call.module).__name__
        if self._is_fused_norm(call):
            # Fused add and norm: (normed, sum). The sum is the residual stream as the layer before left it.
            before = self._layer_before.get(id(call))
            if output == rows[0]:
                part = ""
            elif before is not None:
                path, part = before, ""
        parent, _, last = path.rpartition(".")
        if kind.endswith("AndMul"):
            path = f"{parent}.{GATED}"  # act(gate) · up, where the checkpoint's act_fn is act(gate) alone
        if last == ATTENTION_OUTPUT and "attn" in parent.rpartition(".")[2] and "Attention" in kind:
            path, part = parent, ATTENTION_OUTPUT
        width = tensor.numel() // self._tokens
        names, sizes = self._packed.get(last, ()), partition_sizes(call.module)
        if part or len(names) < 2 or len(names) != len(sizes) or sum(sizes) != width:
            return [(self._site(call, path, part, tensor, width), 0)]
        found, first = [], 0
        for name, size in zip(names, sizes, strict=True):
            found.append((self._site(call, f"{parent}.{name}", "", tensor, size), first))
            first += size
        return found

    def _with_rows(self, call: Call) -> list[Output]:
        return [index for index, item in call.outputs if self.has_rows(item)]

    def _is_fused_norm(self, call: Call) -> bool:
        """Whether a call added to the residual stream and normed the sum: (normed, sum)."""
        return len(self._with_rows(call)) == 2 and "norm" in type(call.module).__name__.lower()

    def _site(self, call: Call, name: str, part: str, tensor: torch.Tensor, width: int) -> Site:
        shard = f"tp{self._tp[0]}of{self._tp[1]}" if call.sharded else ""
        return Site(
            name=name,
            occurrence=call.occurrence,
            part=".".join(filter(None, (part, shard))),
            module=type(call.module).__name__,
            dtype=str(tensor.dtype).removeprefix("torch."),
            width=width,
            sharded=call.sharded,
        )


def partition_sizes(module: nn.Module) -> Sequence[int]:
    """Elements of each projection in a fused one's rows on this rank; empty where they lie in pieces."""
    if getattr(module, "gather_output", False) and getattr(module, "tp_size", 1) > 1:
        return ()  # gathered rank by rank, so every projection lies in pieces
    sizes = getattr(module, "output_partition_sizes", ())
    return sizes if all(isinstance(size, int) for size in sizes) else ()


def canonical_path(path: str) -> str:
    """A module's path in vLLM as the trace names it: `model.layers.0.mlp` is `layers.0.mlp`."""
    names = path.split(".")
    at = next((index for index, name in enumerate(names[:2]) if name in ROOTS), None)
    if at is not None:
        del names[at]
    return canonical_name(".".join(names))
