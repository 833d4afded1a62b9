"""Kinds of faults in what surrounds a run: the prompt, the lane's settings, who shares the batch, repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from faults import plants
from faults.case import LENGTHS, PROMPTS, Case, Plant, Side
from faults.kinds import an_op, first_linear
from faults.kinds_weights import scale_first
from rip.replay.engines.hf.engine import HfEngine
from torch import nn

MODELS = ("llama", "llama-bf16", "qwen2", "gpt2", "mixtral")


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    yield from _prompts()
    yield from _lanes()
    yield from _batches()


def _prompts() -> Iterator[Case]:
    for model in MODELS:
        for at in (1, 10):
            yield _prompt(
                "one token more in the prompt",
                f"at {at}",
                model,
                _each(lambda p, at=at: (*p[:at], 7, *p[at:])),
                "prompt-insertion",
            )
        yield _prompt(
            "two tokens missing in the prompt",
            "at 4",
            model,
            _each(lambda p: (*p[:4], *p[6:])),
            "prompt-insertion",
        )
        yield _prompt(
            "prompt truncated at its end", "3 tokens", model, _each(lambda p: p[:-3]), "prompt-truncated"
        )
        yield _prompt(
            "prompt truncated at its beginning", "4 tokens", model, _each(lambda p: p[4:]), "prompt-truncated"
        )
        yield _prompt(
            "different token in the prompt",
            "at 5",
            model,
            _each(lambda p: (*p[:5], p[5] - 1 if p[5] > 6 else 9, *p[6:])),
            "prompt",
        )


def _each(change: Any) -> Sequence[Sequence[int]]:
    return [change(prompt) for prompt in PROMPTS]


def _prompt(kind: str, where: str, model: str, prompts: Sequence[Sequence[int]], cause: str) -> Case:
    return Case(kind, where, model, Side(), Side(prompts=prompts), (cause,))


def _lanes() -> Iterator[Case]:
    eager, golden = {"attention": "eager"}, {"mode": "golden-prefill"}
    for model in MODELS:
        attention = "layers.0.attn" if model == "gpt2" else "layers.0.self_attn"
        yield Case(
            "attention implementation",
            "whole lane",
            model,
            Side(),
            Side(settings=eager, plant=plants.attention(attention, plants.eager_kernel)),
            ("attention-backend",),
        )
        other = "float32" if model == "llama-bf16" else "bfloat16"
        yield Case("dtype", f"to {other}", model, Side(), Side(settings={"dtype": other}), ("dtype",))
        yield Case(
            "scoring against decoding",
            "golden-prefill",
            model,
            Side(plant=plants.rounding(first_linear(model), plants.in_decode)),
            Side(options=golden, golden=True),
            ("prefill-decode",),
        )


def _batches() -> Iterator[Case]:
    for model in MODELS:
        plant = plants.rounding(first_linear(model))
        for size in (2, 3):
            together = Side(settings={"batch_size": size}, plant=plant)
            yield Case("batch size", f"{size}", model, Side(), together, ("batch-shape",))
        for count in (1, 4):
            beside = Side(options={"fill": count}, plant=plant)
            yield Case("neighbours", f"{count}", model, Side(), beside, ("batch-shape",))
    three = {"batch_size": 3}
    for model in MODELS:
        right = {**three, "padding_side": "right"}
        yield Case(
            "left versus right padding",
            "batch of 3",
            model,
            Side(settings=three),
            Side(settings=right, plant=plants.rounding(first_linear(model))),
            ("padding",),
        )
    same = (PROMPTS[0],) * 3
    for model, site in (
        ("llama", "layers.0.mlp.up_proj"),
        ("llama", "layers.2.self_attn.q_proj"),
        ("llama-bf16", "layers.1.self_attn.o_proj"),
        ("qwen2", "layers.1.mlp.down_proj"),
        ("gpt2", "layers.0.attn.c_attn"),
    ):
        yield Case(
            "identical rows of one batch differ",
            site,
            model,
            Side(settings=three, prompts=same),
            Side(settings=three, prompts=same, plant=plants.output(site, _second_row)),
            ("batch-rows",),
            site,
            named=an_op("mul_.Tensor"),
        )
        twice = {"repeat": 2}
        yield Case(
            "a run that does not repeat itself",
            site,
            model,
            Side(options=twice),
            Side(options=twice, plant=_in_every_other_pass(site)),
            ("not-repeatable",),
            site,
        )


def _second_row(out: torch.Tensor, _x: torch.Tensor) -> torch.Tensor:
    out[1] *= 1.05
    return out


def _in_every_other_pass(site: str) -> Plant:
    """A module whose long passes alternate between two results, as a race does."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        passes = {"long": 0}

        def on_output(_module: nn.Module, _inputs: Any, out: torch.Tensor) -> torch.Tensor:
            if out.shape[1] == 1:
                return out
            passes["long"] += 1
            return out if passes["long"] % 2 else out * 1.05

        plants.module_of(engine, site).register_forward_hook(on_output)

    return plant


def no_fault() -> Iterator[Case]:
    """Pairs of runs in which nothing was changed: nothing may be found."""
    families = (
        "llama",
        "llama-bf16",
        "qwen2",
        "qwen3",
        "gpt2",
        "mixtral",
        "mixtral-top1",
        "window",
        "gemma3",
    )
    hot = {"temperature": 0.9, "seed": 5}
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("alone", {}),
        ("batch of 3", {"settings": {"batch_size": 3}}),
        ("sampled", {"sampling": hot}),
        ("sampled in a batch", {"sampling": hot, "settings": {"batch_size": 2}}),
        ("chunked", {"settings": {"prefill_chunk": 8}}),
        ("twice", {"options": {"repeat": 2}}),
        ("neighbours", {"options": {"fill": 3}}),
        ("eager", {"settings": {"attention": "eager"}}),
        ("seed of the worker", {"sampling": {**hot, "seed_scope": "worker"}}),
        ("scored", {"options": {"mode": "golden-prefill"}, "golden": True}),
        ("forced", {"options": {"mode": "golden-decode"}, "golden": True}),
        ("identical rows", {"settings": {"batch_size": 3}, "prompts": (PROMPTS[0],) * 3}),
    )
    for family in families:
        for where, about in ways:
            side = Side(**about)
            yield Case("no fault", where, family, side, Side(**about, plant=_nothing), ())
    for family in families[:2]:
        unread = Side(plant=plants.weight("embed_tokens", lambda values: scale_first(values[:1])))
        yield Case("no fault", "a weight that no token reads", family, Side(), unread, ())


def _nothing(_engine: HfEngine, _stack: ExitStack) -> None:
    """A second run of its own."""


assert min(LENGTHS) > 11
