"""Both sides of a comparison in this process, B under a planted fault, for zoom."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from fakes.replaying import planned, run_one
from rip.diverge.op_comparison.compare_reruns import ZoomTarget, zoom
from rip.replay.engines.hf.engine import HfEngine
from rip.replay.op_recording.rerun import run_side
from rip.replay.request.batches import Batch
from rip.schemas.zoom import Rerun, SideRun, Zoom
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PROMPT = (10, 20, 30, 40, 50, 60, 70)
Fault = Callable[[nn.Module], AbstractContextManager[object]]
"""Plants itself in a causal language model, until the context ends."""


def no_fault(model: nn.Module) -> AbstractContextManager[object]:
    return nullcontext()


class Zooming:
    """A sequence of one engine, run without and with a fault; A's tokens are forced in both."""

    def __init__(self, engine: HfEngine, prompt: Sequence[int] = PROMPT, steps: int = 6) -> None:
        self.engine = engine
        self.model = engine.model
        golden = run_one(engine, prompt, max_tokens=steps).token_ids[len(prompt) :]
        self.batch = Batch((planned(0, prompt, golden=golden),))
        self.runs = 0

    def run(self, request: Rerun, *faults: Fault, batch: Batch | None = None) -> SideRun:
        self.runs += 1
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fault(self.model))
            return run_side(self.engine, batch or self.batch, "golden-decode", 0, request)

    def under(self, *faults: Fault, batch_b: Batch | None = None, **more: Any) -> Zoom:
        return zoom(
            self.run, lambda request: self.run(request, *faults, batch=batch_b), ZoomTarget("r0", **more)
        )


@contextmanager
def changed(parameter: torch.Tensor, change: Callable[[torch.Tensor], object]) -> Iterator[None]:
    before = parameter.detach().clone()
    with torch.no_grad():
        change(parameter)
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(before)


@contextmanager
def computing(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The module with another forward."""
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward


def scale_row(weight: torch.Tensor) -> None:
    weight[0] *= 1.5


def weight_element(model: nn.Module) -> AbstractContextManager[object]:
    return changed(model.model.layers[1].mlp.up_proj.weight, lambda weight: weight[3, 5].mul_(1.5))


def embedding_row(model: nn.Module) -> AbstractContextManager[object]:
    return changed(model.model.embed_tokens.weight, lambda weight: weight[30].mul_(1.5))


def head_row(model: nn.Module) -> AbstractContextManager[object]:
    return changed(model.lm_head.weight, scale_row)


def epsilon(model: nn.Module) -> AbstractContextManager[object]:
    norm = model.model.layers[1].post_attention_layernorm

    def forward(x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-3)
        return norm.weight * wide.to(x.dtype)

    return computing(norm, forward)


def norm_without_upcast(model: nn.Module) -> AbstractContextManager[object]:
    norm = model.model.layers[1].input_layernorm

    def forward(x: torch.Tensor) -> torch.Tensor:
        half = x.to(torch.float16)
        half = half * torch.rsqrt(half.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
        return norm.weight * half.to(x.dtype)

    return computing(norm, forward)


def split_reduction(model: nn.Module) -> AbstractContextManager[object]:
    linear = model.model.layers[2].mlp.down_proj

    def forward(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x[..., :half] @ linear.weight[:, :half].t() + x[..., half:] @ linear.weight[:, half:].t()

    return computing(linear, forward)


def cast_module(model: nn.Module) -> AbstractContextManager[object]:
    linear = model.model.layers[2].self_attn.q_proj

    def forward(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.half(), linear.weight.half()).to(x.dtype)

    return computing(linear, forward)


@contextmanager
def another_kernel(model: nn.Module) -> Iterator[None]:
    """One attention module with torch's plain composition in place of its fused kernel."""

    def plain(*arguments: Any, **options: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return sdpa_attention_forward(*arguments, **options)

    attention = model.model.layers[1].self_attn
    ALL_ATTENTION_FUNCTIONS["another"] = plain
    before = attention.config
    attention.config = copy.copy(before)
    attention.config._attn_implementation_internal = "another"
    try:
        yield
    finally:
        attention.config = before
        del ALL_ATTENTION_FUNCTIONS["another"]


@contextmanager
def rope_off_by_one(model: nn.Module) -> Iterator[None]:
    rotary = model.model.rotary_emb
    own = rotary.forward

    def forward(x: torch.Tensor, position_ids: torch.Tensor, *rest: Any) -> Any:
        return own(x, position_ids + 1, *rest)

    with computing(rotary, forward):
        yield


@contextmanager
def corrupted_cache(model: nn.Module) -> Iterator[None]:
    """Behind the prefill, the keys of one cached position of layer 1 are overwritten."""

    def corrupt(_module: nn.Module, _args: Any, options: dict[str, Any], output: Any) -> None:
        if options["input_ids"].shape[1] > 1:
            output.past_key_values.layers[1].keys[:, :, 2] += 1

    handle = model.register_forward_hook(corrupt, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def overwritten_cache(model: nn.Module) -> Iterator[None]:
    """As the first decode step begins, the same is done: by ops of that pass, outside every layer."""
    done = []

    def corrupt(_module: nn.Module, _args: Any, options: dict[str, Any]) -> None:
        if options["input_ids"].shape[1] == 1 and not done:
            cache = options.get("past_key_values") or options["cache"]
            cache.layers[1].keys[:, :, 2] += 1
            done.append(True)

    handle = model.register_forward_pre_hook(corrupt, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def flipped_in_decode(model: nn.Module) -> Iterator[None]:
    def flip(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return -output if output.shape[1] == 1 else output

    handle = model.model.layers[1].mlp.gate_proj.register_forward_hook(flip)
    try:
        yield
    finally:
        handle.remove()
