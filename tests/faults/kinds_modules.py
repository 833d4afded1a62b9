"""Kinds of faults inside one module: its weights, its kernel, its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from faults import plants
from faults.lab import PROMPTS, Case, Plant, Side
from rip.replay.engines.hf import HfEngine
from torch import nn

MODULE = ("module",)
LLAMA = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")
GPT2 = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")

PLACES: tuple[tuple[str, str], ...] = (
    ("llama", "layers.0.self_attn.q_proj"),
    ("llama", "layers.1.mlp.down_proj"),
    ("llama-bf16", "layers.1.self_attn.v_proj"),
    ("llama-bf16", "layers.2.mlp.gate_proj"),
    ("qwen2", "layers.0.self_attn.k_proj"),
    ("qwen2", "layers.2.self_attn.o_proj"),
    ("gpt2", "layers.1.attn.c_attn"),
    ("gpt2", "layers.2.mlp.c_proj"),
    ("window", "layers.1.mlp.up_proj"),
    ("mixtral", "layers.1.self_attn.q_proj"),
)
"""Linear layers of several models and depths."""


def hooked(
    kind: str, model: str, site: str, plant: Plant, causes: tuple[str, ...] = MODULE, at: int | None = None
) -> Case:
    """A fault that changes the output of one site."""
    where = site if at is None else f"{site} at {at}"
    return Case(kind, where, model, Side(), Side(plant=plant), causes, site, at)


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


def linear(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A linear layer; GPT-2's stores its weight transposed."""
    weight: Any = module.weight if isinstance(module, nn.Linear) else module.weight.T
    return nn.functional.linear(x, weight, module.bias)


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


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    yield from _weights()
    yield from _kernels()
    yield from _rows()
    yield from _attention()
    yield from _experts()


def _weights() -> Iterator[Case]:
    for model, site in PLACES:
        yield hooked("one-ulp weight", model, site, plants.weight(site, one_ulp))
        yield hooked("one weight row wrong", model, site, plants.weight(site, scale_first))
        yield hooked("quantized layer", model, site, plants.weight(site, quantize))
        yield hooked("permuted output channels", model, site, plants.weight(site, swap_halves))
        yield hooked("wrong weight tensor", model, site, from_other_layer(site))
    for model, site, parameter in (
        ("qwen2", "layers.0.self_attn.q_proj", "bias"),
        ("qwen2", "layers.1.self_attn.k_proj", "bias"),
        ("qwen2", "layers.2.self_attn.v_proj", "bias"),
        ("gpt2", "layers.0.attn.c_attn", "bias"),
        ("gpt2", "layers.1.mlp.c_fc", "bias"),
        ("gpt2", "layers.2.ln_1", "bias"),
    ):
        plant = plants.weight(site, lambda values: values.zero_(), parameter)
        yield hooked("bias dropped", model, site, plant)
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
                "embedding row wrong", f"token {token}", model, Side(), Side(plant=plant), MODULE, site
            )
    for model, norm in (("llama", "norm"), ("qwen2", "norm"), ("gpt2", "ln_f"), ("mixtral", "norm")):
        yield hooked("final norm wrong", model, norm, plants.weight(norm, scale_first))
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
        )
    for model, site in PLACES:
        name = site.replace("layers.", "transformer.h.", 1) if model == "gpt2" else f"model.{site}"
        changed = Side(model_changes={f"{name}.weight": scale_first})
        yield Case("tensor changed on disk", site, model, Side(), changed, ("weights",), site)


def from_other_layer(site: str) -> Plant:
    """The tensor of the neighbouring layer in place of the layer's own."""

    def plant(engine: HfEngine, _stack: ExitStack) -> None:
        parts = site.split(".")
        other = ".".join([parts[0], str((int(parts[1]) + 1) % 3), *parts[2:]])
        with torch.no_grad():
            plants.module_of(engine, site).weight.copy_(plants.module_of(engine, other).weight)  # type: ignore

    return plant


def _kernels() -> Iterator[Case]:
    for model, site in PLACES:
        yield hooked("reduction order of one GEMM", model, site, plants.forward(site, split_reduction))
        if model != "llama-bf16":
            yield hooked("dtype cast in one module", model, site, plants.forward(site, cast_down))
    for model, site in (
        ("llama", "layers.0.input_layernorm"),
        ("llama", "layers.2.post_attention_layernorm"),
        ("llama-bf16", "layers.1.input_layernorm"),
        ("qwen2", "layers.1.post_attention_layernorm"),
        ("window", "layers.0.input_layernorm"),
        ("mixtral", "layers.2.input_layernorm"),
    ):
        yield hooked("norm epsilon in another precision", model, site, plants.forward(site, norm_in_bfloat16))
        yield hooked("norm epsilon ten times larger", model, site, _epsilon(site, 10))
    for model, site in (
        ("gpt2", "layers.0.mlp.act"),
        ("gpt2", "layers.2.mlp.act"),
        ("llama", "layers.1.mlp.act_fn"),
        ("qwen2", "layers.0.mlp.act_fn"),
    ):
        yield hooked("another activation function", model, site, plants.output(site, another_gelu))
    for model, site in (*PLACES[:6], ("llama", "layers.1"), ("gpt2", "layers.0"), ("llama", "layers.2.mlp")):
        yield hooked("sign flip in one channel", model, site, plants.output(site, negate_first))
    for model, site in (("llama", "layers.0.mlp"), ("qwen2", "layers.1.self_attn"), ("gpt2", "layers.2.mlp")):
        yield hooked("whole output negated", model, site, plants.output(site, negate))
        yield hooked("output scaled", model, site, plants.output(site, half))


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
            yield hooked(kind, model, site, plants.output(site, at_position(at, value)), ("non-finite",), at)
    for model, site, at in (
        ("llama", "layers.0.mlp.up_proj", 4),
        ("llama", "layers.2.self_attn.o_proj", 13),
        ("llama-bf16", "layers.1.mlp.down_proj", 9),
        ("qwen2", "layers.1.input_layernorm", 3),
        ("gpt2", "layers.0.mlp.c_fc", 20),
        ("window", "layers.1.self_attn.q_proj", 11),
    ):
        yield hooked(
            "one row wrong", model, site, plants.output(site, at_position(at, None)), ("one-row",), at
        )


def _attention() -> Iterator[Case]:
    places = [("llama", layer) for layer in range(3)]
    places += [("llama-bf16", 0), ("llama-bf16", 2), ("qwen2", 1), ("window", 0), ("mixtral", 1)]
    for model, layer in places:
        site = f"layers.{layer}.self_attn"
        for kind, compute in (
            ("another attention kernel in one layer", plants.math_kernel),
            ("one attention head zero", plants.first_head_zero),
            ("attention scale wrong", plants.other_scale),
        ):
            yield hooked(kind, model, f"{site}:attn", plants.attention(site, compute))
        at = 3 + 2 * layer
        yield hooked(
            "RoPE off by one in one layer",
            model,
            f"{site}:attn",
            plants.rotary_off_in_one_layer(site, at),
            at=at,
        )
    for model in ("llama", "llama-bf16", "qwen2", "gpt2", "window"):
        for at in (1, 6, 13):
            site = "wpe" if model == "gpt2" else "rotary_emb:0"
            yield hooked(
                "positions off by one", model, site, plants.positions_off_by_one(at), ("positions",), at
            )
    for model in ("llama", "qwen2", "window", "mixtral"):
        for factor in (0.9, 1.1):
            yield Case(
                "another RoPE base",
                f"factor {factor}",
                model,
                Side(),
                Side(plant=plants.rotary_base(factor)),
                ("positions",),
                "rotary_emb:0",
                1,
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
            )
        for expert in (0, 2):
            plant = plants.weight(
                f"{site}.experts", lambda values, expert=expert: values[expert].mul_(1.5), "down_proj"
            )
            case = hooked("weights of one expert", "mixtral", f"{site}.experts", plant)
            yield Case(case.kind, f"{case.where} expert {expert}", *_rest(case))
        yield hooked(
            "router weights one ulp", "mixtral", f"{site}.gate:0", plants.weight(f"{site}.gate", one_ulp)
        )
        yield Case(
            "router tie",
            site,
            "mixtral",
            Side(plant=_tied_router(site, False)),
            Side(plant=_tied_router(site, True)),
            ("moe-routing",),
            f"{site}.gate:2",
        )


def _rest(case: Case) -> tuple[Any, ...]:
    return case.model, case.a, case.b, case.causes, case.site, case.position


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
