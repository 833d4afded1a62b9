"""Ways to put a fault into an opened engine: into a parameter, a module's output, an attention, the KV cache,
the sampler or the stop rule.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from faults.case import Plant
from rip.replay.engines.hf.engine import HfEngine
from rip.replay.request.batches import PlannedSequence
from rip.schemas.lane import Setting
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Change = Callable[[torch.Tensor], None]
"""Changes a tensor in place."""
Attention = Callable[..., Any]
"""An attention function of transformers."""


def module_of(engine: HfEngine, site: str) -> nn.Module:
    """The module behind a site's name."""
    name = site.partition(":")[0]
    if name == "lm_head":
        return engine.model.lm_head
    base = getattr(engine.model, engine.model.base_model_prefix)
    return base.get_submodule(name.replace("layers.", "h.", 1) if hasattr(base, "h") else name)


def weight(site: str, change: Change, parameter: str = "weight") -> Plant:
    """A changed parameter of a module."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        with torch.no_grad():
            change(module_of(engine, site).get_parameter(parameter))

    return plant


def output(site: str, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Plant:
    """A changed output of a module: `change(output, input)` gives what comes out instead.

    Where a module returns several tensors the first one is changed.
    """

    def on_output(_module: nn.Module, inputs: Any, found: Any) -> Any:
        if isinstance(found, tuple):
            return (change(found[0].clone(), found[0]), *found[1:])
        return change(found.clone(), inputs[0] if inputs else found)

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        module_of(engine, site).register_forward_hook(on_output)

    return plant


def last_bit(values: torch.Tensor) -> torch.Tensor:
    """The same with the last bit of every number flipped: a rounding that depends on no machine's kernels."""
    bits = {2: torch.int16, 4: torch.int32}[values.element_size()]
    return torch.bitwise_xor(values.contiguous().view(bits), 1).view(values.dtype)


def rounding(site: str, when: Callable[[int, int], bool] = lambda _cached, _tokens: True) -> Plant:
    """A module that rounds otherwise, as kernels do that are chosen by the shape of a pass.

    Which kernels a machine chooses, and whether they round otherwise at all, is not known beforehand.

    Args:
        site: Of the module.
        when: Told the cached tokens and the tokens of a pass; true: in this one.
    """

    def plant(engine: HfEngine, stack: ExitStack) -> None:
        now = {"rounds": False}

        def on_pass(_module: nn.Module, _inputs: Any, named: dict[str, Any]) -> None:
            held = _held(named, 0)
            cached = 0 if held is None else int(held.get_seq_length())
            now["rounds"] = when(cached, named["input_ids"].shape[1])

        engine.model.register_forward_pre_hook(on_pass, with_kwargs=True)
        output(site, lambda out, _x: last_bit(out) if now["rounds"] else out)(engine, stack)

    return plant


def in_later_chunks(cached: int, tokens: int) -> bool:
    """A pass of a chunked prefill behind its first."""
    return cached > 0 and tokens > 1


def in_decode(_cached: int, tokens: int) -> bool:
    """A pass of one token."""
    return tokens == 1


def forward(site: str, compute: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> Plant:
    """A module that computes its output in another way: `compute(module, input)`."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        module_of(engine, site).register_forward_hook(lambda module, inputs, _out: compute(module, inputs[0]))

    return plant


def attention(layer_site: str, compute: Attention) -> Plant:
    """One attention module with an implementation of its own; masks are made as before."""

    def plant(engine: HfEngine, stack: ExitStack) -> None:
        ALL_ATTENTION_FUNCTIONS["planted"] = compute
        stack.callback(lambda: ALL_ATTENTION_FUNCTIONS.pop("planted"))
        module: Any = module_of(engine, layer_site)
        module.config = copy.copy(module.config)
        module.config._attn_implementation_internal = "planted"

    return plant


def math_kernel(*arguments: Any, **options: Any) -> Any:
    """The same attention by torch's plain composition, surely rounded otherwise than by a fused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        found, weights = sdpa_attention_forward(*arguments, **options)
    return last_bit(found), weights


def math_kernel_in_decode(module: nn.Module, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    """Another kernel for passes of one token, as engines have."""
    compute = math_kernel if query.shape[2] == 1 else sdpa_attention_forward
    return compute(module, query, *arguments, **options)


def eager_kernel(module: nn.Module, *arguments: Any, **options: Any) -> Any:
    """The model's own eager attention, surely rounded otherwise than a fused one."""
    compute = sys.modules[type(module).__module__].eager_attention_forward
    found, weights = compute(module, *arguments, **options)
    return last_bit(found), weights


def first_head_zero(*arguments: Any, **options: Any) -> Any:
    """Attention whose first head gives nothing."""
    found, weights = sdpa_attention_forward(*arguments, **options)
    found = found.clone()
    found[:, :, 0] = 0
    return found, weights


def other_scale(*arguments: Any, **options: Any) -> Any:
    """Attention with a temperature that is off by 2 %."""
    options["scaling"] = 1.02 * (options.get("scaling") or arguments[1].shape[-1] ** -0.5)
    return sdpa_attention_forward(*arguments, **options)


def positions_off_by_one(first: int) -> Plant:
    """Position ids are one too high from a position on, for the whole model."""

    def shifted(ids: torch.Tensor) -> torch.Tensor:
        return torch.where(ids >= first, ids + 1, ids)

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        base = getattr(engine.model, engine.model.base_model_prefix)
        if hasattr(base, "wpe"):
            base.wpe.register_forward_pre_hook(lambda _module, inputs: (shifted(inputs[0]),))
            return

        def on_input(_module: nn.Module, inputs: Any, named: dict[str, Any]) -> Any:
            if "position_ids" in named:
                return inputs, {**named, "position_ids": shifted(named["position_ids"])}
            return (inputs[0], shifted(inputs[1]), *inputs[2:]), named

        base.rotary_emb.register_forward_pre_hook(on_input, with_kwargs=True)

    return plant


def rotary_base(factor: float) -> Plant:
    """Another base of the rotary table."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        module = engine.model.model.rotary_emb
        module.inv_freq = module.inv_freq * factor

    return plant


def rotary_off_in_one_layer(site: str, first: int) -> Plant:
    """One attention module turns its queries and keys as if they stood one position later."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        seen = {"computed": 0}

        def on_input(_module: nn.Module, inputs: Any, named: dict[str, Any]) -> Any:
            tables = named["position_embeddings"]
            positions = named.get("position_ids")
            count = tables[0].shape[1]
            start = seen["computed"] if count == 1 else 0
            seen["computed"] = start + count
            at = torch.arange(start, start + count) if positions is None else positions[0]
            rotary = engine.model.model.rotary_emb
            moved = rotary(
                inputs[0] if inputs else named["hidden_states"], torch.where(at >= first, at + 1, at)[None]
            )
            return inputs, {**named, "position_embeddings": moved}

        module_of(engine, site).register_forward_pre_hook(on_input, with_kwargs=True)

    return plant


def cache(
    layer: int, change: Callable[[torch.Tensor, torch.Tensor], None], when: Callable[[int, int], bool]
) -> Plant:
    """A change of one layer's KV cache before a forward pass.

    Args:
        layer: Whose keys and values.
        change: Given keys and values [B, H, T, D], changes them in place.
        when: Told the cached tokens and the tokens of the pass that follows; true: now.
    """

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        def on_input(_module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
            held = _held(named, layer)
            if held is not None and when(int(held.get_seq_length()), named["input_ids"].shape[1]):
                _overwritten(held.layers[layer], change)

        engine.model.register_forward_pre_hook(on_input, with_kwargs=True)

    return plant


def cache_between_passes(
    layer: int, change: Callable[[torch.Tensor, torch.Tensor], None], filled: int
) -> Plant:
    """A change of one layer's KV cache behind the pass that fills it up to a number of tokens."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        def on_output(_module: nn.Module, inputs: Any, named: dict[str, Any], _output: Any) -> None:
            held = _held(named, layer)
            if held is not None and held.get_seq_length() == filled:
                _overwritten(held.layers[layer], change)

        engine.model.register_forward_hook(on_output, with_kwargs=True)

    return plant


def _held(named: Mapping[str, Any], layer: int) -> Any:
    """The KV cache among a model's arguments, where it holds something of the layer."""
    held = named.get("past_key_values", named.get("cache"))
    if held is None or len(held.layers) <= layer:
        return None
    keys = getattr(held.layers[layer], "keys", None)
    return held if keys is not None and keys.numel() else None


def _overwritten(entry: Any, change: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    # The tensors may be shared with what a tap still reads.
    entry.keys, entry.values = entry.keys.clone(), entry.values.clone()
    change(entry.keys, entry.values)


def sampler(change: Callable[[Any], None] | None = None, **said: Any) -> Plant:
    """A sampler that works with other values than the contract says, or was changed after it was made."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        made = engine.sampler_for

        def other(sequence: PlannedSequence) -> Any:
            found = made(_with(sequence, said))
            if change is not None:
                change(found)
            return found

        engine.sampler_for = other  # type: ignore[method-assign]

    return plant


def stop_rule(**said: Any) -> Plant:
    """A stop rule that follows other values than the contract says."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        made = engine.stop_rule_for
        engine.stop_rule_for = lambda sequence: made(_with(sequence, said))  # type: ignore[method-assign]

    return plant


def _with(sequence: PlannedSequence, said: Mapping[str, Any]) -> PlannedSequence:
    settings = {name: Setting(resolved=value, source="engine default") for name, value in said.items()}
    return replace(sequence, sampling={**sequence.sampling, **settings})
