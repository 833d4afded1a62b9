"""Parts that the sentences of several findings have in common."""

from __future__ import annotations

from collections.abc import Sequence

from ....schemas.findings.statement import ModuleKind, SequenceName
from ..format import listed

_NAMED = 4
"""Sequences, or spans of positions, that a sentence names."""
_MODULES: dict[ModuleKind, str] = {
    "attention": "the attention",
    "embeddings": "the embedding table",
    "positions": "the position table",
    "router": "the router",
    "experts": "the experts",
    "norm": "the norm",
    "output head": "the output head",
    "linear layer": "the linear layer",
    "activation": "the activation function",
    "module": "the module",
}


def at(site: str | None, position: int | None) -> str:
    """A row."""
    return "a row that was not observed" if site is None else f"{site} at position {position}"


def module(kind: ModuleKind, site: str) -> str:
    """A module by its kind and site."""
    name = _MODULES[kind]
    return f"the module {site}" if name == f"the {site}" else f"{name} {site}"


def sequence(name: SequenceName) -> str:
    """A sequence by its request."""
    return f"{name.request_id} sample {name.sample}" if name.sample else name.request_id


def sequences(names: Sequence[SequenceName], with_position: bool = False) -> str:
    """Sequences, where wanted with the position at which each begins to differ."""
    return listed(
        [
            f"{sequence(name)} at position {name.position}" if with_position else sequence(name)
            for name in names
        ],
        _NAMED,
    )


def spans(positions: Sequence[int]) -> str:
    """`3–9, 12`."""
    found: list[list[int]] = []
    for position in positions:
        if found and position == found[-1][1] + 1:
            found[-1][1] = position
        else:
            found.append([position, position])
    shown = [str(a) if a == b else f"{a}–{b}" for a, b in found[:_NAMED]]
    return ", ".join(shown) + (", …" if len(found) > _NAMED else "")


def experts(a: Sequence[int] | None, b: Sequence[int] | None) -> str:
    """`experts 3, 1 in A and 3, 0 in B`; empty: not known."""
    if a is None or b is None:
        return ""
    one, other = (", ".join(map(str, chosen)) for chosen in (a, b))
    return f"{'experts' if len(a) > 1 else 'expert'} {one} in A and {other} in B"


def times(factor: float) -> str:
    """`×1563`."""
    return f"×{factor:.0f}" if factor < 1e5 else f"×{factor:.1e}"


def ulp_size(count: float) -> str:
    """`0.27 ULP`."""
    if count >= 1e4:
        text = f"{count:.1e}"
    elif count >= 100:
        text = f"{count:,.0f}"
    else:
        text = f"{count:.2g}"
    return f"{text} ULP"


def ulps(count: float, dtype: str) -> str:
    """`0.27 ULP (bfloat16)`."""
    return f"{ulp_size(count)} ({dtype})"
