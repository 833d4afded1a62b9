"""Words for what many sequences show together, and for how both sides lie to a reference. Plain text out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .agreement import proportion
from .findings.labels import LABELS
from .findings.reference import reference_sentence
from .findings.sentence import sentence
from .format import drift, number, plain, plural

if TYPE_CHECKING:
    from ...schemas.reference import Reference
    from ...schemas.sequences import DriftJump, Patterns

MANY = 8
"""Sequences from which on shares, survival and causes say something together."""
STEADY = 2.0
"""Times within which drift is said to stay as large."""
_SHOWN = 4


def reference_lines(found: Reference) -> list[str]:
    """The verdict and what it rests on."""
    lines = [reference_sentence(found)]
    if found.rows:
        dtypes = f"{found.dtype_a} in A, {found.dtype_b} in B, {found.dtype_reference} in the reference"
        lines.append(
            f"{plural(found.rows, 'position')} × {plural(found.sites, 'site')}"
            + (f"; {dtypes}" if found.dtype_a else "")
        )
    if found.separated and found.first is not None:
        lines.append(f"at {found.first.site} half of its rows are farther than any row of the other side")
    return [*lines, *(sentence(note) for note in found.notes)]


def pattern_lines(found: Patterns) -> list[str]:
    """Rates, survival, causes and growth; of few sequences only a jump."""
    lines: list[str] = []
    if found.sequences >= MANY:
        lines.append(f"sequences that diverge: {proportion(found.diverging)}")
        if found.survival:
            lines.append(_survival(found))
        if found.causes:
            named = list(found.causes.items())
            more = f", {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            said = ", ".join(f"{cause_label(name)} ({count})" for name, count in named[:_SHOWN])
            lines.append(f"first-ranked causes: {said}{more}")
        if found.not_diagnosed:
            lines.append(f"{plural(found.not_diagnosed, 'diverging sequence')} were not diagnosed")
        if found.growth is not None and found.jump is None:
            line = growth_line(found.growth, found.watched_site).rstrip(".")
            lines.append(f"{line[0].lower()}{line[1:]}; it has no jump")
    if found.jump is not None:
        lines.append(_jump(found.jump, found))
    return [plain(line) for line in lines]


def cause_label(name: str) -> str:
    """What a cause is called, by its id."""
    return LABELS.get(name, "no cause named" if name == "unknown" else name)


def growth_line(growth: float, site: str) -> str:
    """How drift changes along the positions, in a sentence.

    Args:
        growth: Median drift in the last quarter of the positions over that in the first.
        site: Where.
    """
    if math.isfinite(growth) and 1 / STEADY <= growth <= STEADY:
        told = "stays about as large along the positions"
    else:
        told = "grows along the positions" if growth > 1 else "becomes smaller along the positions"
    return (
        f"Drift at {site} {told}: its median in the last quarter of them is {number(growth)} times that in"
        " the first."
    )


def _survival(found: Patterns) -> str:
    point = found.survival[-1]
    half = "" if found.half_at is None else f"; half have parted by step {found.half_at}"
    return (
        f"sequences that still agree after step {point.step} (Kaplan-Meier): {point.share:.2f} "
        f"({point.low:.2f} to {point.high:.2f}){half}"
    )


def _jump(jump: DriftJump, found: Patterns) -> str:
    where = f"step {jump.step}" if jump.step is not None else "in the prompt"
    others = f"; {plural(found.jumps, 'sequence')} jump" if found.jumps > 1 else ""
    return (
        f"drift jumps at position {jump.position} ({where}) of request {jump.request_id!r} sample "
        f"{jump.sample}, first at {jump.site}: at {found.watched_site} {drift(jump.drift)}, before it at "
        f"most {drift(jump.before)}{others}"
    )
