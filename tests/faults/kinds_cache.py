"""Kinds of faults in what earlier passes left behind: the KV cache, its blocks, chunks, the decode path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from faults import plants
from faults.case import LENGTHS, Case, Named, Plant, Side
from faults.kinds import FLASH, LAST_BIT, PLACES, an_op, first_linear, hooked
from rip.replay.engines.hf.engine import HfEngine
from rip.schemas.lane import Setting
from rip.schemas.trace import HEADER_KEY, TraceHeader
from torch import nn

BLOCK = 16
NOT_COMPUTED = (
    "num_tokens",
    "cached_tokens",
    "topk_ids",
    "topk_logits",
    "topk_logprobs",
    "next_logprob",
    "logsumexp",
    "logits_hash",
)
"""Columns that a row from a cache has no value of, beside its sites."""
KV = ("kv-cache",)
DECODE = ("decode-path",)
MODELS = ("llama", "llama-bf16", "qwen2", "mixtral")
SCALED = an_op("mul_.Tensor", module="")
"""What zoom must name of `scale_block`, whose ops run before the model's own."""


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    yield from _decode()
    yield from _corrupted()
    yield from _boundaries()


def attn(model: str, layer: int) -> str:
    """The site of an attention's output."""
    return f"layers.{layer}.attn:attn" if model == "gpt2" else f"layers.{layer}.self_attn:attn"


def _decode() -> Iterator[Case]:
    for model, site in PLACES:
        yield Case(
            "decode reads stale weights",
            site,
            model,
            Side(),
            Side(plant=stale_in_decode(site)),
            DECODE,
            site,
            step=0,
            named=an_op("mm.default", "addmm.default"),
        )
    for model, layer in (("llama", 0), ("llama", 2), ("qwen2", 1), ("llama-bf16", 1), ("mixtral", 2)):
        site = attn(model, layer)
        plant = plants.attention(site.partition(":")[0], plants.math_kernel_in_decode)
        yield hooked(
            "different attention kernel in decode", model, site, plant, DECODE, named=an_op(FLASH, LAST_BIT)
        )


def stale_in_decode(site: str) -> Plant:
    """Passes of one token read an older copy of the weights, as a captured graph does."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        module = plants.module_of(engine, site)
        stale: Any = module.weight.detach() * 1.01  # type: ignore[operator]

        def on_output(module: nn.Module, inputs: Any, out: torch.Tensor) -> torch.Tensor:
            if inputs[0].shape[1] > 1:
                return out
            weight = stale if isinstance(module, nn.Linear) else stale.T
            return nn.functional.linear(inputs[0], weight, module.bias)

        module.register_forward_hook(on_output)

    return plant


def scale_block(start: int, stop: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def change(keys: torch.Tensor, values: torch.Tensor) -> None:
        keys[:, :, start:stop] *= -1
        values[:, :, start:stop] *= 2

    return change


def _swap_rows(keys: torch.Tensor, values: torch.Tensor) -> None:
    for tensor in (keys, values):
        tensor[:2] = tensor[:2].flip(0)


def _late(keys: torch.Tensor, values: torch.Tensor) -> None:
    """The newest entry was not written: the place still holds the one before."""
    for tensor in (keys, values):
        tensor[:, :, -1] = tensor[:, :, -2]


def at_decode(step: int, prompt: int = LENGTHS[0]) -> Callable[[int, int], bool]:
    return lambda cached, tokens: tokens == 1 and cached == prompt + step


def _corrupted() -> Iterator[Case]:
    for model in MODELS:
        for layer in (0, 2):
            for step in (0, 3):
                at = LENGTHS[0] + step
                plant = plants.cache(layer, scale_block(0, BLOCK), at_decode(step))
                yield hooked("KV block corrupted", model, attn(model, layer), plant, KV, at, SCALED)
        for layer in (0, 2):
            at = LENGTHS[0] + 1
            plant = plants.cache_between_passes(layer, scale_block(4, 9), at)
            taken = Named("outside", ("tensors.0",))
            yield hooked("KV overwritten between passes", model, attn(model, layer), plant, KV, at, taken)
    for model in ("llama", "llama-bf16", "gpt2", "qwen2"):
        for layer in (0, 1):
            plant = plants.cache(layer, _late, at_decode(2))
            at, copied = LENGTHS[0] + 2, an_op("copy_.default", module="")
            yield hooked("stale KV entry", model, attn(model, layer), plant, KV, at, copied)
    longest = max(LENGTHS)
    together = {"batch_size": 3}
    for model in MODELS[:3]:
        for layer in (0, 1):
            for step in (0, 4):
                plant = plants.cache(layer, _swap_rows, at_decode(step, longest))
                yield Case(
                    "KV of a different request",
                    f"{attn(model, layer)} at step {step}",
                    model,
                    Side(settings=together),
                    Side(settings=together, plant=plant),
                    KV,
                    attn(model, layer),
                    step=step,
                    named=an_op("flip.default", module=""),
                )


def _boundaries() -> Iterator[Case]:
    chunked = {"prefill_chunk": BLOCK}
    for model in MODELS:
        for layer in (0, 2):
            plant = plants.cache(
                layer, scale_block(0, 4), lambda cached, tokens: cached == BLOCK and tokens > 1
            )
            yield Case(
                "KV corrupted at a block boundary",
                attn(model, layer),
                model,
                Side(settings=chunked),
                Side(settings=chunked, plant=plant),
                KV,
                attn(model, layer),
                BLOCK,
                named=SCALED,
            )
            yield Case(
                "prefix cache corrupted",
                attn(model, layer),
                model,
                Side(settings=chunked, rewrite=warm),
                Side(settings=chunked, plant=plant, rewrite=warm),
                KV,
                attn(model, layer),
                BLOCK,
                named=SCALED,
            )
    for model in ("llama", "window", "qwen2", "gpt2", "mixtral", "gemma3"):
        plant = plants.rounding(first_linear(model), plants.in_later_chunks)
        yield Case(
            "prefix cache warm",
            f"{BLOCK} tokens",
            model,
            Side(),
            Side(settings=chunked, plant=plant, rewrite=warm),
            ("cache-boundary",),
        )
        for chunk in (5, 8):
            yield Case(
                "prefill chunked differently",
                f"{chunk} tokens",
                model,
                Side(),
                Side(settings={"prefill_chunk": chunk}, plant=plant),
                ("prefill-chunk", "cache-boundary"),
            )


def warm(table: pa.Table) -> pa.Table:
    """A real run in two chunks as a server with a prefix cache tells it: the first block was not computed.

    The numbers of what comes after the block are those of the run.
    """
    cached = pc.less(table["position"], BLOCK)
    schema = table.schema
    empty = [None] * schema.field("site_hash").type.list_size
    hashes = zip(cached.to_pylist(), table["site_hash"].to_pylist(), strict=True)
    shown = {
        "site_hash": [empty if skip else row for skip, row in hashes],
    }
    for name in NOT_COMPUTED:
        values = table[name].to_pylist()
        shown[name] = [
            None if skip else value for skip, value in zip(cached.to_pylist(), values, strict=True)
        ]
    for name, values in shown.items():
        column = pa.array(values, schema.field(name).type)
        table = table.set_column(schema.get_field_index(name), schema.field(name), column)
    header = TraceHeader.from_json(schema.metadata[HEADER_KEY], "warm")
    chunk = Setting(resolved=0, source="engine default")
    settings = {**header.lane.settings, "prefill_chunk": chunk}
    header = header.model_copy(update={"lane": header.lane.model_copy(update={"settings": settings})})
    return table.replace_schema_metadata({HEADER_KEY: header.to_json().encode()})
