"""What a first difference is: which kind of module it lies in, and how large it is beside rounding."""

from __future__ import annotations

import re

from .around import Pattern
from .evidence import Evidence

ROUNDING = 4.0
"""Largest drift of one module with equal inputs, in units of the last place of its dtype, that another kernel
or another order of a sum explains. Measured on the fault corpus: up to 2.7 (docs/causes.md)."""
_KINDS: tuple[tuple[str, str], ...] = (
    (r":attn$", "the attention"),
    (r"(^|\.)(embed_tokens|wte)$|Embedding$", "the table of embeddings"),
    (r"[Rr]otary|(^|\.)wpe", "the table of positions"),
    (r"Router|(^|\.)gate(:|$)", "the router"),
    (r"Experts|(^|\.)experts$", "the experts"),
    (r"[Nn]orm(\s|$)|(^|\.)ln_", "the norm"),
    (r"lm_head", "the output head"),
    (r"Linear|Conv1D|_proj(\s|$)", "the linear layer"),
    (r"[Aa]ct", "the activation function"),
)
"""What a site is, by its label and the class of its module."""


def kind_of(seen: Pattern) -> str:
    """What kind of module the first difference lies in; empty: none that is known."""
    text = f"{seen.site.label()} {seen.site.module}"
    if seen.site.part == "attn":
        return "the attention"
    name = re.sub(r":\d+$", "", seen.site.label())
    for pattern, kind in _KINDS:
        if re.search(pattern, name) or re.search(pattern, seen.site.module):
            if kind == "the table of embeddings" and re.search(r"wpe|[Rr]otary", text):
                continue
            return kind
    return ""


def what_remains(kind: str) -> str:
    """What of such a module can be wrong where its inputs are equal."""
    return {
        "the attention": "its kernel, mask, scale or positions",
        "the norm": "its weights, epsilon or kernel",
        "the activation function": "another function or kernel",
        "the table of embeddings": "its rows of some tokens",
    }.get(kind, "its weights or its kernel")


def label_of(seen: Pattern) -> str:
    """The site of the first difference, for people."""
    return seen.site.label()


def is_attention(seen: Pattern | None) -> bool:
    """The first difference is the output of an attention, before its projection."""
    return seen is not None and seen.site.part == "attn"


def beyond_rounding(seen: Pattern | None) -> bool:
    """The first differing row is farther off than another kernel of the same module leaves it."""
    size = None if seen is None else seen.in_epsilons
    return size is not None and size > ROUNDING


def stands_alone(e: Evidence) -> bool:
    """An origin, and nothing in settings, shapes or environment differs."""
    alone = not (e.setting_differences or e.circumstances or e.shapes_differ)
    return alone and e.first_site is not None and e.first_site.is_origin and not e.nonfinite


def size_of(seen: Pattern) -> list[str]:
    """How large the drift of the module is, with equal inputs."""
    units = seen.in_epsilons
    if units is None or seen.drift is None:
        return []
    if units <= ROUNDING:
        told = "as another kernel, another order of a sum or one ulp in a weight leave"
    else:
        told = "more than rounding in this dtype leaves"
    return [
        f"its drift is {seen.drift:.2g}, {units:,.2g} units of the last place of {seen.site.dtype}: {told}"
    ]


def row_of_b(seen: Pattern) -> list[str]:
    """What of the row differs."""
    found = []
    if seen.relation:
        found.append(
            f"B's row is {seen.relation} A's"
            if seen.relation.endswith("times")
            else f"B's row is {seen.relation}"
        )
    if seen.lanes == 1:
        found.append(
            "only one of the sketch's 16 lanes differs: one output channel, as a row of weights or bias moves"
        )
    elif seen.lanes is not None and seen.lanes < 8:
        found.append(f"only {seen.lanes} of the sketch's 16 lanes differ: a few output channels")
    return found


def elsewhere(seen: Pattern) -> list[str]:
    """Where else the site differs or does not."""
    found = []
    if kind_of(seen) == "the table of embeddings":
        again = f" (and at {len(seen.again)} more positions)" if seen.again else ""
        found.append(f"it is looked up by the token at position {seen.position}{again}")
    if seen.equal_before or seen.equal_after:
        found.append(
            f"with equal inputs it is equal at {seen.equal_before} positions before and {seen.equal_after} "
            f"behind, and differs at {seen.differing_after} behind"
        )
    if seen.sequences > 1:
        found.append(f"in {seen.here_too} of {seen.sequences} differing sequences the difference begins here")
    return found
