"""What the families of kinds share: where faults are planted, and how a case of one module is made."""

from __future__ import annotations

from faults.case import Case, Named, Plant, Side

MODULE = ("module",)
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
BOTH_TABLES = ("rotary_emb:0", "rotary_emb:1")
"""Cosines and sines."""
FLASH = "_scaled_dot_product_flash_attention_for_cpu.default"
LAST_BIT = "bitwise_xor.Scalar"
"""What zoom names of `plants.last_bit`, where the kernels before it gave the same bits."""


def first_linear(model: str) -> str:
    """The first linear layer of a model."""
    return "layers.0.attn.c_attn" if model == "gpt2" else "layers.0.self_attn.q_proj"


def hooked(
    kind: str,
    model: str,
    site: str,
    plant: Plant,
    causes: tuple[str, ...] = MODULE,
    at: int | None = None,
    named: Named | None = None,
) -> Case:
    """A fault that changes the output of one site."""
    where = site if at is None else f"{site} at {at}"
    return Case(kind, where, model, Side(), Side(plant=plant), causes, site, at, named=named)


def an_op(*names: str, module: str | None = None, origins: tuple[str, ...] = ()) -> Named:
    """Zoom must name one of these ATen ops."""
    return Named("op", tuple(f"aten.{name}" for name in names), module, origins)


def a_weight(site: str, parameter: str = "weight", origins: tuple[str, ...] = ()) -> Named:
    """Zoom must name this parameter of the site's module."""
    return Named("weight", (f"{site.partition(':')[0]}.{parameter}",), origins=origins)


def shifted_positions() -> Named:
    """What zoom must name of `plants.positions_off_by_one`."""
    return an_op("where.self", origins=BOTH_TABLES)
