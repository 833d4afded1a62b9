"""Sections on many sequences: survival of agreement, divergence rates, causes, growth of drift."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..format import drift, plain, plural, request_name
from ..sequence_sentences import MANY, cause_label, dependence_line, growth_line, proportion
from .pictures.step_charts import Curve, draw_survival

if TYPE_CHECKING:
    from ....schemas.sequences import Patterns
    from ....schemas.verdict import Verdict
    from .reading.result import ResultData

MAX_RATES = 40
MAX_GROUPS = 8


@dataclass(frozen=True)
class Pattern:
    """One finding over many sequences."""

    title: str
    lede: str
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    curve: Curve | None = None
    folded: bool = False
    """The rows repeat the curve."""
    notes: list[str] = field(default_factory=list)


def patterns(verdict: Verdict, data: ResultData) -> list[Pattern]:
    """The patterns that a result holds; of few sequences only a jump, for shares of so few say nothing."""
    found = verdict.patterns
    if found is None:
        return []
    growth = [*_dependence(found), *_growth(found)]
    if found.sequences < MANY:
        return growth if found.jump is not None or found.dependence is not None else []
    if not found.diverging.count:
        return growth
    return [*_survival(found), *_rates(data), *_groups(data), *_causes(found), *growth]


def _dependence(found: Patterns) -> list[Pattern]:
    if found.dependence is None:
        return []
    line = plain(dependence_line(found.dependence))
    return [Pattern(title="What damage goes with", lede=f"{line[0].upper()}{line[1:]}.")]


def _survival(found: Patterns) -> list[Pattern]:
    lede = f"Diverging: {proportion(found.diverging)}, with the 95 % interval (Wilson)."
    if found.survival:
        lede += (
            f" Median divergence step: {found.half_at}."
            if found.half_at is not None
            else " No median divergence step: more than half never diverge."
        )
        lede += (
            " The curve is the share of sequences still equal after a step (Kaplan-Meier; sequences that end"
            " without diverging are censored)."
        )
    return [
        Pattern(
            title="How long sequences stay equal",
            lede=lede,
            heads=["step", "sequences at risk", "share still equal", "95 % interval"],
            rows=[
                [
                    str(point.step),
                    f"{point.at_risk:,}",
                    f"{point.share:.3f}",
                    f"{point.low:.3f} to {point.high:.3f}",
                ]
                for point in found.survival
            ],
            curve=draw_survival(found.survival, found.half_at) if found.survival else None,
            folded=True,
        )
    ]


def _rates(data: ResultData) -> list[Pattern]:
    rows = [
        [
            _dimension(rate.dimension),
            plain(rate.value),
            f"{rate.diverging:,} of {rate.sequences:,}",
            f"{rate.share:.2f}",
            f"{rate.low:.2f} to {rate.high:.2f}",
        ]
        for rate in data.rates(MAX_RATES)
    ]
    lede = "Share of sequences with a property that diverge; for a step, of those that reach it."
    heads = ["by", "value", "diverging", "share", "95 % interval"]
    notes = [f"The first {MAX_RATES} rows; all are in the view divergence_rates."]
    return [Pattern("Divergence rates", lede, heads, rows, notes=notes[: len(rows) == MAX_RATES])]


def _dimension(name: str) -> str:
    """`batch_size_b` → `batch size in B`."""
    sides = {"_a": " in A", "_b": " in B"}
    return plain(name.removesuffix(name[-2:]) + sides[name[-2:]] if name[-2:] in sides else name).replace(
        "_", " "
    )


def _groups(data: ResultData) -> list[Pattern]:
    rows = [
        [
            _dimension(one.dimension),
            f"{plain(one.value_1)}: {one.diverging_1:,} of {one.sequences_1:,}",
            f"{plain(one.value_2)}: {one.diverging_2:,} of {one.sequences_2:,}",
            f"{one.difference:+.2f}",
            f"{one.low:+.2f} to {one.high:+.2f}",
        ]
        for one in data.unlike_groups(MAX_GROUPS)
    ]
    if not rows:
        return []
    lede = "Groups whose 95 % interval of the difference excludes zero. Of many, some do by chance."
    heads = ["by", "group 1", "group 2", "difference of shares", "95 % interval"]
    return [Pattern("Groups with different divergence rates", lede, heads, rows)]


def _causes(found: Patterns) -> list[Pattern]:
    if not found.causes:
        return []
    ranked = sorted(found.causes.items(), key=lambda item: -item[1])
    notes = (
        [f"{plural(found.not_diagnosed, 'more diverging sequence')} not diagnosed: too many."]
        if found.not_diagnosed
        else []
    )
    return [
        Pattern(
            title="First-ranked causes",
            lede="",
            heads=["cause", "sequences"],
            rows=[[plain(cause_label(cause)), f"{count:,}"] for cause, count in ranked],
            notes=notes,
        )
    ]


def _growth(found: Patterns) -> list[Pattern]:
    if not found.watched_site or (found.growth is None and found.jump is None):
        return []
    lines = []
    if found.growth is not None:
        lines.append(growth_line(found.growth, plain(found.watched_site)))
    jump = found.jump
    if jump is None:
        lines.append("No jump: no position leaves the range of the positions before.")
    else:
        at = (
            f"position {jump.position}"
            if jump.step is None
            else f"step {jump.step} (position {jump.position})"
        )
        lines.append(
            f"Drift jumps in {plural(found.jumps, 'sequence')}; the largest jump is at {at} of"
            f" {request_name(jump.request_id, jump.sample)}, at {plain(jump.site)}: {drift(jump.drift)}, at"
            f" most {drift(jump.before)} before. A jump is an event; rounding alone grows steadily."
        )
    return [Pattern(title="How drift grows", lede=" ".join(lines))]
