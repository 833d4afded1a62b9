"""Kinds of faults in the parameters of one module: in memory, and on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import torch
from faults import plants
from faults.case import PROMPTS, Case, Plant, Side
from faults.kinds import MODULE, PLACES, a_weight, hooked
from rip.replay.engines.hf.engine import HfEngine

TIED = ("gpt2", "gemma3")
"""Models whose output head is the embedding."""


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    for model, site in PLACES:
        named = a_weight(site)
        yield hooked("one-ulp weight", model, site, plants.weight(site, one_ulp), named=named)
        yield hooked("one weight row wrong", model, site, plants.weight(site, scale_first), named=named)
        yield hooked("quantized layer", model, site, plants.weight(site, quantize), named=named)
        yield hooked("permuted output channels", model, site, plants.weight(site, swap_halves), named=named)
        yield hooked("wrong weight tensor", model, site, from_other_layer(site), named=named)
    for model, site, parameter in (
        ("qwen2", "layers.0.self_attn.q_proj", "bias"),
        ("qwen2", "layers.1.self_attn.k_proj", "bias"),
        ("qwen2", "layers.2.self_attn.v_proj", "bias"),
        ("gpt2", "layers.0.attn.c_attn", "bias"),
        ("gpt2", "layers.1.mlp.c_fc", "bias"),
        ("gpt2", "layers.2.ln_1", "bias"),
    ):
        plant = plants.weight(site, lambda values: values.zero_(), parameter)
        yield hooked("bias dropped", model, site, plant, named=a_weight(site, parameter))
    for model, site in (
        ("llama", "embed_tokens"),
        ("llama-bf16", "embed_tokens"),
        ("gpt2", "wte"),
        ("gemma3", "embed_tokens"),
    ):
        for at in (0, 5, 12):
            token = PROMPTS[0][at]
            plant = plants.weight(site, lambda values, token=token: values[token].mul_(1.5))
            yield Case(
                "embedding row wrong",
                f"token {token}",
                model,
                Side(),
                Side(plant=plant),
                MODULE,
                site,
                named=a_weight(site, origins=("logits",) if model in TIED else ()),
            )
    for model, norm in (("llama", "norm"), ("qwen2", "norm"), ("gpt2", "ln_f"), ("mixtral", "norm")):
        plant = plants.weight(norm, scale_first)
        yield hooked("final norm wrong", model, norm, plant, named=a_weight(norm))
    unused = next(token for token in range(6, 128) if all(token not in prompt for prompt in PROMPTS))
    for model in ("llama", "llama-bf16", "gpt2", "gemma3", "mixtral"):
        plant = plants.weight("lm_head", lambda values: values[unused].mul_(1.5))
        yield Case(
            "output head row wrong",
            "unused token",
            model,
            Side(),
            Side(plant=plant),
            MODULE,
            "lm_head",
            step=-1,
            named=a_weight({"gpt2": "wte", "gemma3": "embed_tokens"}.get(model, "lm_head")),
        )
    for model, site in PLACES:
        name = site.replace("layers.", "transformer.h.", 1) if model == "gpt2" else f"model.{site}"
        changed = Side(model_changes={f"{name}.weight": scale_first})
        named = a_weight(site)
        yield Case("tensor changed on disk", site, model, Side(), changed, ("weights",), site, named=named)


def one_ulp(parameter: torch.Tensor) -> None:
    """One unit in the last place of the largest weight of the first output channel."""
    if parameter.dim() == 1:
        entries = parameter
    else:  # GPT-2 stores its weights transposed
        entries = parameter[:, 0] if parameter.shape[0] < parameter.shape[1] else parameter[0]
    bits = {2: torch.int16, 4: torch.int32}[entries.element_size()]
    largest = int(entries.abs().argmax())
    entries[largest : largest + 1].view(bits).add_(1)


def scale_first(parameter: torch.Tensor) -> None:
    """A wrong first row."""
    parameter[0] *= 1.5


def quantize(parameter: torch.Tensor) -> None:
    """To eight bits and back, one scale for each row."""
    scale = parameter.abs().amax(dim=-1, keepdim=True) / 127
    parameter.copy_(torch.round(parameter / scale) * scale)


def swap_halves(parameter: torch.Tensor) -> None:
    """Rows permuted, as a wrong order of shards leaves them."""
    parameter.copy_(torch.roll(parameter, parameter.shape[0] // 2, dims=0))


def from_other_layer(site: str) -> Plant:
    """The tensor of the neighbouring layer in place of the layer's own."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        parts = site.split(".")
        other = ".".join([parts[0], str((int(parts[1]) + 1) % 3), *parts[2:]])
        with torch.no_grad():
            plants.module_of(engine, site).weight.copy_(plants.module_of(engine, other).weight)  # type: ignore

    return plant
