"""A second, plain opinion on what a model computes: hooks that clone every output, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from rip.replay.row_summaries.row_hash_and_sketch import digests, hash_rows_reference
from rip.schemas.trace import Site

Pass = dict[tuple[str, str], list[torch.Tensor]]
"""(site name, part) → clone of every occurrence within one forward pass."""


@contextmanager
def plain_hooks(model: torch.nn.Module) -> Iterator[list[Pass]]:
    """Clones of everything that the modules below the head return, a dictionary for each forward pass."""
    passes: list[Pass] = []
    base = getattr(model, model.base_model_prefix)
    handles = [model.register_forward_pre_hook(lambda _module, _inputs: passes.append({}))]

    def watch(name: str, module: torch.nn.Module) -> None:
        def on_output(_module: Any, _inputs: Any, output: Any) -> None:
            for index, tensor in enumerate(output if isinstance(output, tuple) else (output,)):
                if isinstance(tensor, torch.Tensor):
                    passes[-1].setdefault((name, str(index)), []).append(tensor.clone())

        handles.append(module.register_forward_hook(on_output))

    for path, module in base.named_modules():
        if path:
            name = path.replace("h.", "layers.", 1) if path.startswith("h.") else path
            watch(name, module)
            if name.endswith((".self_attn.o_proj", ".attn.c_proj")):
                attention = name.rpartition(".")[0]

                def on_input(_module: Any, inputs: Any, attention: str = attention) -> None:
                    passes[-1].setdefault((attention, "attn"), []).append(inputs[0].clone())

                handles.append(module.register_forward_pre_hook(on_input))
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()


def row_of(seen: Pass, site: Site, batch: int, batch_row: int, tokens: int, column: int) -> torch.Tensor:
    """The row [W] of one token at one site of a pass of `batch` sequences × `tokens` columns."""
    tensor = seen[site.name, site.part or "0"][site.occurrence]
    if site.name.endswith((".gate", ".experts")):
        return tensor[batch_row * tokens + column].reshape(-1)
    if tensor.dim() == 4 and site.name.endswith(("q_norm", "k_norm")) and tensor.shape[1] != tokens:
        return tensor[batch_row, :, column].reshape(-1)
    return tensor[batch_row if tensor.shape[0] == batch else 0, column].reshape(-1)


def reference_hash(row: torch.Tensor) -> bytes:
    """The row hash by its definition."""
    bits = row.contiguous().view(torch.uint8).numpy()[None]
    return digests(hash_rows_reference(bits))[0].tobytes()


def bits_of(row: torch.Tensor) -> bytes:
    """A row's raw bits."""
    return np.ascontiguousarray(row.contiguous().view(torch.uint8).numpy()).tobytes()
