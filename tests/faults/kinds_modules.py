"""Kinds of faults in how one module computes: its kernel, its precision, its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from faults import plants
from faults.case import Case, Plant
from faults.kinds import PLACES, an_op, hooked
from rip.replay.engines.hf.engine import HfEngine
from torch import nn


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    yield from _kernels()
    yield from _rows()


def _kernels() -> Iterator[Case]:
    for model, site in PLACES:
        plant = plants.forward(site, split_reduction)
        yield hooked("reduction order of one GEMM", model, site, plant, named=an_op("add.Tensor"))
        if model != "llama-bf16":
            plant = plants.forward(site, cast_down)
            yield hooked("dtype cast in one module", model, site, plant, named=an_op("_to_copy.default"))
    for model, site in (
        ("llama", "layers.0.input_layernorm"),
        ("llama", "layers.2.post_attention_layernorm"),
        ("llama-bf16", "layers.1.input_layernorm"),
        ("qwen2", "layers.1.post_attention_layernorm"),
        ("window", "layers.0.input_layernorm"),
        ("mixtral", "layers.2.input_layernorm"),
    ):
        added = an_op("add.Tensor")
        plant = plants.forward(site, norm_in_bfloat16)
        yield hooked("norm epsilon in a different precision", model, site, plant, named=added)
        yield hooked("norm epsilon ten times larger", model, site, _epsilon(site, 10), named=added)
    for model, site in (
        ("gpt2", "layers.0.mlp.act"),
        ("gpt2", "layers.2.mlp.act"),
        ("llama", "layers.1.mlp.act_fn"),
        ("qwen2", "layers.0.mlp.act_fn"),
    ):
        plant = plants.output(site, another_gelu)
        yield hooked("different activation function", model, site, plant, named=an_op("gelu.default"))
    for model, site in (*PLACES[:6], ("llama", "layers.1"), ("gpt2", "layers.0"), ("llama", "layers.2.mlp")):
        plant = plants.output(site, negate_first)
        yield hooked("sign flip in one channel", model, site, plant, named=an_op("mul_.Tensor"))
    for model, site in (("llama", "layers.0.mlp"), ("qwen2", "layers.1.self_attn"), ("gpt2", "layers.2.mlp")):
        plant = plants.output(site, negate)
        yield hooked("whole output negated", model, site, plant, named=an_op("neg.default"))
        yield hooked("output scaled", model, site, plants.output(site, half), named=an_op("mul.Tensor"))


def _epsilon(site: str, factor: float) -> Plant:
    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        module: Any = plants.module_of(engine, site)
        module.variance_epsilon = max(module.variance_epsilon, 1e-6) * factor * 10

    return plant


def _rows() -> Iterator[Case]:
    for kind, value in (("NaN in one row", float("nan")), ("infinity in one row", float("inf"))):
        for model, site, at in (
            ("llama", "layers.0.mlp.up_proj", 0),
            ("llama", "layers.2.self_attn.o_proj", 7),
            ("llama-bf16", "layers.1.mlp.down_proj", 12),
            ("qwen2", "layers.1.input_layernorm", 3),
            ("gpt2", "layers.0.mlp.c_fc", 20),
            ("mixtral", "layers.1.self_attn.v_proj", 9),
        ):
            plant = plants.output(site, at_position(at, value))
            yield hooked(kind, model, site, plant, ("non-finite",), at, an_op("fill_.Tensor"))
    for model, site, at in (
        ("llama", "layers.0.mlp.up_proj", 4),
        ("llama", "layers.2.self_attn.o_proj", 13),
        ("llama-bf16", "layers.1.mlp.down_proj", 9),
        ("qwen2", "layers.1.input_layernorm", 3),
        ("gpt2", "layers.0.mlp.c_fc", 20),
        ("window", "layers.1.self_attn.q_proj", 11),
    ):
        plant = plants.output(site, at_position(at, None))
        yield hooked("one row wrong", model, site, plant, ("one-row",), at, an_op("mul_.Tensor"))


def split_reduction(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The inner dimension in two parts that are added at the end."""
    weight: Any = module.weight if isinstance(module, nn.Linear) else module.weight.T
    half = x.shape[-1] // 2
    first, second = (
        nn.functional.linear(x[..., part], weight[:, part]) for part in (slice(None, half), slice(half, None))
    )
    return first + second if module.bias is None else first + second + module.bias


def cast_down(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Computed in bfloat16."""
    weight: Any = module.weight if isinstance(module, nn.Linear) else module.weight.T
    bias = None if module.bias is None else module.bias.to(torch.bfloat16)
    return nn.functional.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16), bias).to(x.dtype)


def norm_in_bfloat16(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Epsilon and variance in bfloat16, the rest as it should be."""
    short = x.to(torch.bfloat16)
    epsilon = getattr(module, "variance_epsilon", 1e-6)
    scale = torch.rsqrt(short.pow(2).mean(-1, keepdim=True) + epsilon).to(x.dtype)
    return module.weight * (x * scale)  # type: ignore[operator]


def negate_first(out: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    out[..., 0] *= -1
    return out


def negate(out: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    return -out


def another_gelu(_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x)


def half(out: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    return out * 0.5


def at_position(position: int, value: float | None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A change of the rows of one position of a prompt: to a value, or (None) to twice what they were."""

    def change(out: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
        if out.shape[1] > position:
            if value is None:
                out[:, position] *= 2
            else:
                out[:, position, 0] = value
        return out

    return change
