"""Kinds of faults in attention, positions, masks and the routing to experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from faults import plants
from faults.case import Case, Plant, Side
from faults.kinds import BOTH_TABLES, FLASH, LAST_BIT, MODULE, a_weight, an_op, hooked, shifted_positions
from faults.kinds_weights import one_ulp
from rip.replay.engines.hf.engine import HfEngine
from torch import nn


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    yield from _attention()
    yield from _positions()
    yield from _experts()


def _attention() -> Iterator[Case]:
    places = [("llama", layer) for layer in range(3)]
    places += [("llama-bf16", 0), ("llama-bf16", 2), ("qwen2", 1), ("window", 0), ("mixtral", 1)]
    for model, layer in places:
        site = f"layers.{layer}.self_attn"
        for kind, compute, ops in (
            ("different attention kernel in one layer", plants.math_kernel, (FLASH, LAST_BIT)),
            ("one attention head zero", plants.first_head_zero, ("fill_.Tensor",)),
            ("attention scale wrong", plants.other_scale, (FLASH,)),
        ):
            yield hooked(kind, model, f"{site}:attn", plants.attention(site, compute), named=an_op(*ops))
        at = 3 + 2 * layer
        yield hooked(
            "RoPE off by one in one layer",
            model,
            f"{site}:attn",
            plants.rotary_off_in_one_layer(site, at),
            at=at,
            named=an_op("where.self"),
        )


def _positions() -> Iterator[Case]:
    for model in ("llama", "llama-bf16", "qwen2", "gpt2", "window"):
        for at in (1, 6, 13):
            site = "wpe" if model == "gpt2" else "rotary_emb:0"
            plant = plants.positions_off_by_one(at)
            yield hooked("positions off by one", model, site, plant, ("positions",), at, shifted_positions())
    for model in ("llama", "qwen2", "window", "mixtral"):
        for factor in (0.9, 1.1):
            yield Case(
                "different RoPE base",
                f"factor {factor}",
                model,
                Side(),
                Side(plant=plants.rotary_base(factor)),
                ("positions",),
                "rotary_emb:0",
                1,
                named=a_weight("rotary_emb", "inv_freq", BOTH_TABLES),
            )
    for width, at in ((7, 7), (9, 8), (6, 6)):
        yield Case(
            "sliding window off by one",
            f"width {width}",
            "window",
            Side(),
            Side(plant=_window(width)),
            MODULE,
            "layers.0.self_attn:attn",
            at,
            # The mask is made once, outside of every layer, and each layer takes it.
            named=an_op(
                "sub.Tensor", module="", origins=("layers.1.self_attn:attn", "layers.2.self_attn:attn")
            ),
        )


def _window(width: int) -> Plant:
    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        engine.model.config.sliding_window = width

    return plant


def _experts() -> Iterator[Case]:
    for layer in range(3):
        site = f"layers.{layer}.mlp"
        for at in (0, 6, 13):
            yield hooked(
                "one expert flipped",
                "mixtral",
                f"{site}.gate:2",
                _flip_expert(site, at),
                ("moe-routing",),
                at,
                an_op("copy_.default"),
            )
        for expert in (0, 2):
            plant = plants.weight(
                f"{site}.experts", lambda values, expert=expert: values[expert].mul_(1.5), "down_proj"
            )
            named = a_weight(f"{site}.experts", "down_proj")
            case = hooked("weights of one expert", "mixtral", f"{site}.experts", plant, named=named)
            yield replace(case, where=f"{case.where} expert {expert}")
        plant = plants.weight(f"{site}.gate", one_ulp)
        # The router's logits, and what the same module makes of them.
        named = a_weight(f"{site}.gate", origins=(f"{site}.gate:1", f"{site}.gate:2"))
        yield hooked("router weights one ulp", "mixtral", f"{site}.gate:0", plant, named=named)
        yield Case(
            "router tie",
            site,
            "mixtral",
            Side(plant=_tied_router(site, False)),
            Side(plant=_tied_router(site, True)),
            ("moe-routing",),
            f"{site}.gate:2",
            named=an_op("rsub.Scalar"),
        )


def _flip_expert(site: str, position: int) -> Plant:
    """The second expert of one position of a prompt is another one."""

    def on_output(_module: nn.Module, _inputs: Any, found: Any) -> Any:
        logits, scores, chosen = found
        if len(chosen) > position:
            chosen = chosen.clone()
            chosen[position, 1] = next(e for e in range(4) if e not in chosen[position].tolist())
        return logits, scores, chosen

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        plants.module_of(engine, f"{site}.gate").register_forward_hook(on_output)

    return plant


def _tied_router(site: str, other: bool) -> Plant:
    """Two experts with equal router weights, hence equal scores: which one is taken is nobody's promise."""

    def on_output(_module: nn.Module, _inputs: Any, found: Any) -> Any:
        logits, scores, chosen = found
        pair = (chosen == 1) | (chosen == 2)
        lone = pair.sum(dim=-1, keepdim=True) == 1
        return logits, scores, torch.where(pair & lone, 3 - chosen if other else chosen, chosen)

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        gate: Any = plants.module_of(engine, f"{site}.gate")
        with torch.no_grad():
            gate.weight[2] = gate.weight[1]
        gate.register_forward_hook(on_output)

    return plant
