"""Kinds of faults with more than one difference: two causes, absorbed origins, stale rows, noise."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from faults import plants
from faults.case import Case, Plant, Side, prompt
from faults.kinds import first_linear
from rip.replay.engines.hf.engine import HfEngine
from rip.replay.engines.hf.padding import StateCheck

BATCH = 3
_STALE = 2
"""The decode step whose row is stale."""
_UNREAD = 0
"""The channel that no later module reads."""


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    for model in ("llama", "qwen2", "gpt2"):
        rounds = in_batches(first_linear(model))
        both = planted(rounds, plants.output("layers.2.mlp", lambda out, _x: out * 1.5))
        together = {"batch_size": BATCH}
        yield Case(
            "two causes: batch and a module",
            "layers.2.mlp",
            model,
            Side(),
            Side(settings=together, plant=both),
            ("drift-grows",),
        )
    for model in ("llama", "qwen2"):
        name = "model.layers.2.mlp.down_proj.weight"
        yield Case(
            "two causes: batch and weights",
            "layers.2.mlp.down_proj",
            model,
            Side(),
            Side(
                settings={"batch_size": BATCH},
                plant=in_batches(first_linear(model)),
                model_changes={name: lambda values: values.mul_(1.5)},
            ),
            ("weights",),
        )
    for model in ("llama", "qwen2", "window"):
        read = unread_channel("layers.0.mlp")
        moved = plants.output("layers.0.mlp.up_proj", _first_rows)
        later = plants.rounding("layers.1.mlp.down_proj")
        yield Case(
            "origin absorbed",
            "layers.0.mlp.up_proj",
            model,
            Side(plant=read),
            Side(plant=planted(read, moved, later)),
            ("module",),
            "layers.0.mlp.up_proj",
        )
    for model, site in (("llama", "layers.1.mlp"), ("qwen2", "layers.0.mlp"), ("gpt2", "layers.1.mlp")):
        yield Case(
            "stale output",
            site,
            model,
            Side(),
            Side(plant=stale(site)),
            ("stale-output",),
            site,
            step=_STALE,
        )
    twice = {"repeat": 2}
    for model, site in (("llama", "layers.0.mlp.up_proj"), ("gpt2", "layers.0.attn.c_attn")):
        yield Case(
            "noise inside both lanes",
            site,
            model,
            Side(options=twice, plant=alternating(site, 0)),
            Side(options=twice, plant=alternating(site, 1)),
            ("not-repeatable",),
            site,
        )
    for model in ("mamba", "mamba2"):
        yield Case(
            "recurrent padding",
            "padding reaches the state",
            model,
            Side(),
            Side(settings={"batch_size": BATCH}, plant=padding_reaches_the_state),
            ("padding",),
        )
    shared = prompt(9, 10)
    prompts = tuple(shared + prompt(20 + index, 10) for index in range(BATCH + 1))
    for model in ("llama", "qwen2", "gpt2"):
        yield Case(
            "common beginnings in unequal passes",
            "one request is left over",
            model,
            Side(prompts=prompts),
            Side(prompts=prompts, settings={"batch_size": BATCH}, plant=in_batches(first_linear(model))),
            ("batch-shape",),
        )


def planted(*plants_: Plant) -> Plant:
    """Several faults at once."""

    def plant(engine: HfEngine, stack: ExitStack) -> None:
        for one in plants_:
            one(engine, stack)

    return plant


def in_batches(site: str) -> Plant:
    """A module that rounds otherwise where several sequences share the pass."""
    return plants.output(site, lambda out, _x: plants.last_bit(out) if out.shape[0] > 1 else out)


def unread_channel(mlp: str) -> Plant:
    """The projection behind an MLP's first channel gives it no weight."""

    def zero(values: torch.Tensor) -> None:
        values[:, _UNREAD] = 0

    return plants.weight(f"{mlp}.down_proj", zero)


def _first_rows(out: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    if out.shape[1] > 1:
        out[:, :4, _UNREAD] += 1
    return out


def padding_reaches_the_state(engine: HfEngine, stack: ExitStack) -> None:
    """The model does not know which columns are padding, and nothing measures whether that matters."""
    forward = engine.model.forward

    @functools.wraps(forward)  # the engine reads its parameters
    def without_mask(*arguments: Any, **named: Any) -> Any:
        return forward(*arguments, **{**named, "attention_mask": None})

    stack.enter_context(mock.patch.object(engine.model, "forward", without_mask))
    stack.enter_context(mock.patch.object(StateCheck, "tolerates_padding", True))


def stale(site: str) -> Plant:
    """In one decode step the module gives what it gave in the step before."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        last: dict[str, Any] = {"step": -1, "row": None}

        def on_output(_module: Any, _inputs: Any, out: torch.Tensor) -> torch.Tensor:
            last["step"] = -1 if out.shape[1] > 1 else last["step"] + 1
            given = last["row"] if last["step"] == _STALE else out
            last["row"] = out.clone()
            return given

        plants.module_of(engine, site).register_forward_hook(on_output)

    return plant


def alternating(site: str, first: int) -> Plant:
    """A module whose long passes alternate between two results; `first` says with which it begins."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        passes = {"long": first}

        def on_output(_module: Any, _inputs: Any, out: torch.Tensor) -> torch.Tensor:
            if out.shape[1] == 1:
                return out
            passes["long"] += 1
            return out if passes["long"] % 2 else out * 1.05

        plants.module_of(engine, site).register_forward_hook(on_output)

    return plant
