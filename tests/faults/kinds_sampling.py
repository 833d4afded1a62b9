"""Kinds of faults behind the logits: the sampler, its random state, the stop rule, the limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from faults import plants
from faults.case import NEW_TOKENS, Case, Plant, Side
from rip.replay.row_summaries.rows import SamplerRecord

MODELS = ("llama", "llama-bf16", "qwen2", "gpt2", "mixtral", "window")
HOT = {"temperature": 1.0, "seed": 7, "top_k": 0, "top_p": 1.0}
GREEDY: dict[str, Any] = {}


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    for seed in (7, 8):
        hot = {**HOT, "seed": seed}
        for model in MODELS:
            yield from _sampled(model, hot)
    for model in MODELS:
        yield from _processed(model)
        yield from _stopped(model)


def _case(
    kind: str, where: str, model: str, sampling: dict[str, Any], plant: Plant, *causes: str, **side: Any
) -> Case:
    return Case(
        kind,
        where,
        model,
        Side(sampling=sampling, **side),
        Side(sampling=sampling, plant=plant, **side),
        causes,
    )


def _sampled(model: str, hot: dict[str, Any]) -> Iterator[Case]:
    where = f"seed {hot['seed']}"
    yield _case("silent top_k", where, model, hot, plants.sampler(top_k=3), "sampling-filter")
    yield _case("silent top_p", where, model, hot, plants.sampler(top_p=0.5), "sampling-filter")
    yield _case("silent min_p", where, model, hot, plants.sampler(min_p=0.3), "sampling-filter")
    yield _case("silent temperature", where, model, hot, plants.sampler(temperature=0.6), "logits-processing")
    yield _case("RNG offset by one", where, model, hot, plants.sampler(skip_one), "rng")
    yield _case(
        "RNG offset by one, not counted", where, model, hot, plants.sampler(skip_one_uncounted), "rng"
    )
    yield _case(
        "different seed than stated", where, model, hot, plants.sampler(seed=hot["seed"] + 100), "rng"
    )
    yield _case(
        "candidate order changed", where, model, hot, plants.sampler(by_probability), "candidate-order"
    )
    yield _case(
        "seed scope worker versus request",
        where,
        model,
        hot,
        plants.sampler(seed_scope="worker"),
        "seed-scope",
    )
    yield Case(
        "different top_k stated",
        where,
        model,
        Side(sampling=hot),
        Side(sampling={**hot, "top_k": 3}),
        ("sampling-contract",),
    )


def skip_one(sampler: Any) -> None:
    sampler._draws.next()


def skip_one_uncounted(sampler: Any) -> None:
    sampler._draws.next()
    sampler._draws.drawn = 0


def by_probability(sampler: Any) -> None:
    """Candidates are laid out by their probability, not by their ids."""

    def choose(logits_V: torch.Tensor, _tokens: Any) -> tuple[int, SamplerRecord]:
        order = torch.argsort(logits_V, descending=True, stable=True)
        offset = sampler._draws.drawn
        draw = sampler._draws.next()
        mass = torch.exp(logits_V.double() - logits_V.double().max())[order]
        cumulative = torch.cumsum(mass, dim=0)
        place = int(torch.searchsorted(cumulative, draw * cumulative[-1], right=True))
        top = int(order[0])
        return int(order[min(place, len(order) - 1)]), SamplerRecord(top, float(logits_V[top]), draw, offset)

    sampler.choose = choose


def _processed(model: str) -> Iterator[Case]:
    penalised = {"repetition_penalty": 1.6}
    yield _case(
        "repetition penalty ignored",
        "greedy",
        model,
        penalised,
        plants.sampler(repetition_penalty=1.0),
        "logits-processing",
    )
    biased = {"logit_bias": {str(token): 20.0 for token in range(60, 70)}}
    yield _case(
        "logit bias ignored", "greedy", model, biased, plants.sampler(logit_bias={}), "logits-processing"
    )
    forbidden = {"frequency_penalty": 2.0}
    yield _case(
        "frequency penalty ignored",
        "greedy",
        model,
        forbidden,
        plants.sampler(frequency_penalty=0.0),
        "logits-processing",
    )


def _stopped(model: str) -> Iterator[Case]:
    if model != "qwen2":  # it says special tokens here, which no stop string reads
        words = {"stop": [f"w{index} " for index in range(6, 110)]}
        yield _case("stop string ignored", "many words", model, words, plants.stop_rule(stop=[]), "stop-rule")
    ids = {"stop_token_ids": list(range(6, 80))}
    yield _case(
        "stop token ignored", "many ids", model, ids, plants.stop_rule(stop_token_ids=[]), "stop-rule"
    )
    yield _case("output limit one lower", "greedy", model, GREEDY, _shorter(NEW_TOKENS - 1), "length-limit")
    yield _case("output limit half", "greedy", model, GREEDY, _shorter(NEW_TOKENS // 2), "length-limit")


def _shorter(most: int) -> Plant:
    """A limit that the contract does not state."""
    return plants.stop_rule(max_tokens=most)
