"""Sentences on many sequences: agreement of samples and texts, divergence rates, survival, drift jumps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .findings.labels import LABELS
from .format import drift, number, plain, plural, request_name

if TYPE_CHECKING:
    from ...schemas.sequences import Agreement, Dependence, DriftJump, Patterns, Proportion, TraceAgreement
    from ...schemas.verdict import FirstText


MANY = 8
"""Sequences from which on shares, survival and causes are shown."""
STEADY = 2.0
"""Ratio up to which drift counts as steady."""
_SHOWN = 4


def text_sides(first: FirstText) -> list[tuple[str, str, str]]:
    """For A and B: the side, the common text before the first differing character, and what follows."""
    return [("A", plain(first.before), plain(first.a)), ("B", plain(first.before), plain(first.b))]


def proportion(share: Proportion) -> str:
    """`3 of 8, 0.38 (0.14 to 0.69)`."""
    return f"{share.count:,} of {share.of:,}: {share.share:.2f} ({share.low:.2f} to {share.high:.2f})"


def agreement_rows(found: Agreement) -> list[tuple[str, str, str]]:
    """What, its name, and the share with its interval."""
    rows = []
    for name, side in (("A", found.a), ("B", found.b), ("A and B together", found.both)):
        if side is not None:
            rows.append((f"{name}: all samples of a request equal", _tar(side), proportion(side.all_agree)))
    if found.pairs is not None:
        rows.append(("sample i of A equals sample i of B", "pairs", proportion(found.pairs)))
    return rows


def _tar(side: TraceAgreement) -> str:
    most = f"…{side.most_samples}" if side.most_samples != side.samples else ""
    return f"TARr@{side.samples}{most}"


def unique_line(found: Agreement) -> str | None:
    """Distinct outputs of a request; None where every request ran once."""
    sides = [
        ("A", [(one.unique_a, one.samples_a) for one in found.requests]),
        ("B", [(one.unique_b, one.samples_b) for one in found.requests]),
    ]
    counted = []
    for name, counts in sides:
        several = [unique for unique, samples in counts if samples > 1]
        if several:
            span = str(min(several)) if min(several) == max(several) else f"{min(several)} to {max(several)}"
            counted.append(f"{span} in {name}")
    return f"distinct outputs per request: {', '.join(counted)}" if counted else None


def pattern_lines(found: Patterns) -> list[str]:
    """Rates, survival, causes and growth; of few sequences only a jump."""
    lines: list[str] = []
    if found.sequences >= MANY:
        lines.append(f"diverging sequences: {proportion(found.diverging)}")
        if found.survival:
            lines += _survival(found)
        if found.causes:
            named = list(found.causes.items())
            more = f", {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            shown = ", ".join(f"{cause_label(name)} ({count})" for name, count in named[:_SHOWN])
            lines.append(f"first-ranked causes: {shown}{more}")
        if found.not_diagnosed:
            lines.append(f"not diagnosed: {plural(found.not_diagnosed, 'more diverging sequence')}")
        if found.growth is not None and found.jump is None:
            line = growth_line(found.growth, found.watched_site).rstrip(".")
            lines.append(f"{line[0].lower()}{line[1:]}; no jump")
    if found.jump is not None:
        lines.append(_jump(found.jump, found))
    if found.dependence is not None:
        lines.append(dependence_line(found.dependence))
    return [plain(line) for line in lines]


def cause_label(name: str) -> str:
    """What a cause is called, by its id."""
    return LABELS.get(name, "no cause found" if name == "unknown" else name)


def dependence_line(found: Dependence) -> str:
    """What damage goes with, with its counter-examples."""
    what, value = found.property, found.property.value
    damage = "tokens diverge" if found.damage == "tokens part" else "rows differ"
    exceptions = f"; not in {_listed(found.exceptions)}" if found.exceptions else "; no exception"
    if what.kind == "begins at the last prompt row":
        return (
            f"differences begin at the last row of the prompt: {_counts(found.having)} sequences{exceptions}"
        )
    if what.kind == "begins at a position modulo":
        place = f"at positions that leave {value} when divided by {what.modulus}"
        return f"differences begin {place}: {_counts(found.having)} sequences{exceptions}"
    names = {
        "prompt length modulo": f"prompts whose length leaves {value} when divided by {what.modulus}",
        "batch row": f"batch row {value} of B",
        "neighbour": f"the neighbour {value}",
    }
    others = "" if found.others is None else f", elsewhere {_counts(found.others)}"
    spared = f"; not damaged with it: {_listed(found.spared)}" if found.spared else ""
    damaged = f"; damaged without it: {_listed(found.exceptions)}" if found.exceptions else ""
    return f"{damage} with {names[what.kind]}: {_counts(found.having)} sequences{others}{spared}{damaged}"


def _counts(share: Proportion) -> str:
    return f"{share.count:,} of {share.of:,}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def growth_line(growth: float, site: str) -> str:
    """How drift changes over the positions.

    Args:
        growth: Median drift in the last quarter of the positions over that in the first.
        site: Where.
    """
    if math.isfinite(growth) and 1 / STEADY <= growth <= STEADY:
        trend = "is steady over the positions"
    else:
        trend = "grows with the position" if growth > 1 else "shrinks with the position"
    return f"Drift at {site} {trend}: its median in the last quarter is {number(growth)} × that in the first."


def _survival(found: Patterns) -> list[str]:
    point = found.survival[-1]
    share = (
        f"still equal after step {point.step} (Kaplan-Meier): {point.share:.2f}"
        f" ({point.low:.2f} to {point.high:.2f})"
    )
    return [share] if found.half_at is None else [f"median divergence step: {found.half_at}", share]


def _jump(jump: DriftJump, found: Patterns) -> str:
    where = f"step {jump.step}" if jump.step is not None else "prompt"
    count = f"; {plural(found.jumps, 'sequence')} with a jump" if found.jumps > 1 else ""
    return (
        f"drift jumps at position {jump.position} ({where}) of {request_name(jump.request_id, jump.sample)},"
        f" first at {jump.site}: {drift(jump.drift)} at {found.watched_site}, at most {drift(jump.before)}"
        f" before{count}"
    )
