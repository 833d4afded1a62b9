"""Two charts over steps: margins against drift, and how many answers still agree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...format import number
from .axes import Frame, Ticks, nice_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .....schemas.sequences import SurvivalPoint
    from ..reading.rows import Margins


FRAME = Frame(width=1040, height=264, left=62, right=1024, top=26, bottom=224)
ZERO_GAP = 18
"""Pixels between the smallest power of ten and the line for exact zeros."""


@dataclass(frozen=True)
class Plot:
    """Everything that the template needs to draw the plot."""

    id: str
    frame: Frame
    """Its lower edge is the line where values of exactly 0 stand."""
    ticks: Ticks
    margin_a: str
    """SVG path."""
    margin_b: str
    drift: str
    at_risk: list[tuple[float, float]]
    """Left and width of the bins where the drift could have swapped the candidates."""
    divergence: float | None
    risky: int
    """How many bins are at risk."""
    bin_width: int
    data: dict[str, Any] = field(default_factory=dict)


def draw_margins(name: str, margins: Margins, first_step: int | None) -> Plot | None:
    """Lay out the plot; None where no margin was recorded."""
    everything = (*margins.margin_a, *margins.margin_b, *margins.drift)
    numbers = [value for value in everything if value is not None and 0 < value < math.inf]
    if not numbers:
        return None
    low = math.floor(math.log10(min(numbers)))
    high = math.ceil(math.log10(max(numbers)) + 1e-9)
    low = max(min(low, high - 2), high - 9)
    count = len(margins.steps)
    pitch = (FRAME.right - FRAME.left) / max(count, 1)
    floor = FRAME.bottom - ZERO_GAP

    def x(index: float) -> float:
        return round(FRAME.left + pitch * (index + 0.5), 1)

    def y(value: float) -> float:
        if value <= 0:
            return float(FRAME.bottom)
        share = (max(math.log10(value), low) - low) / (high - low)
        return round(floor - share * (floor - FRAME.top), 1)

    def curve(values: list[float | None]) -> str:
        points = [f"{x(i):g} {y(v):g}" for i, v in enumerate(values) if v is not None and math.isfinite(v)]
        return "M" + "L".join(points) + "h0" if points else ""  # h0: a lone point is drawn as a dot

    risky = [
        index
        for index, (margin, moved) in enumerate(zip(margins.margin_a, margins.drift, strict=True))
        if margin is not None and moved is not None and moved > 0 and margin <= 2 * moved
    ]
    return Plot(
        id=name,
        frame=FRAME,
        ticks=Ticks(
            x=[(x(index), str(margins.steps[index])) for index in nice_ticks(count, 14)],
            y=[
                *((y(10.0**exponent), "10", str(exponent)) for exponent in range(low, high + 1)),
                (float(FRAME.bottom), "0", ""),
            ],
        ),
        margin_a=curve(margins.margin_a),
        margin_b=curve(margins.margin_b),
        drift=curve(margins.drift),
        at_risk=[(round(FRAME.left + pitch * index, 1), round(pitch, 1)) for index in risky],
        divergence=None if first_step is None else x(first_step // margins.width),
        risky=len(risky),
        bin_width=margins.width,
        data={
            "left": FRAME.left,
            "pitch": pitch,
            "steps": margins.steps,
            "width": margins.width,
            "a": [number(v) for v in margins.margin_a],
            "b": [number(v) for v in margins.margin_b],
            "d": [number(v) for v in margins.drift],
        },
    )


SURVIVAL = Frame(width=720, height=220, left=48, right=704, top=12, bottom=182)


@dataclass(frozen=True)
class Curve:
    """A step curve of shares from 0 to 1 with its interval, as SVG paths."""

    title: str
    frame: Frame
    ticks: Ticks
    line: str
    band: str
    half: float | None
    """Where at most half are left."""


def draw_survival(points: Sequence[SurvivalPoint], half_at: int | None) -> Curve:
    """Lay out the curve.

    Args:
        points: Steps at which a sequence diverged, ascending, with the share that still agrees after each.
        half_at: The first step at which at most half still agree.
    """
    last = max(point.step for point in points)
    span = max(last + 1, 1)

    def x(step: float) -> float:
        return round(SURVIVAL.left + (SURVIVAL.right - SURVIVAL.left) * step / span, 1)

    def y(share: float) -> float:
        return round(SURVIVAL.top + (SURVIVAL.bottom - SURVIVAL.top) * (1 - share), 1)

    def steps(shares: list[float]) -> list[tuple[float, float]]:
        corners, before = [(x(0), y(1.0))], 1.0
        for point, share in zip(points, shares, strict=True):
            corners += [(x(point.step), y(before)), (x(point.step), y(share))]
            before = share
        return [*corners, (x(span), y(before))]

    def path(corners: list[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{left:g} {top:g}" for left, top in corners)

    low, high = steps([point.low for point in points]), steps([point.high for point in points])
    return Curve(
        title="Share of sequences that still agree, by step",
        frame=SURVIVAL,
        ticks=Ticks(
            x=[(x(step), str(step)) for step in nice_ticks(span, 12)],
            y=[(y(share), f"{share:g}", "") for share in (0.0, 0.25, 0.5, 0.75, 1.0)],
        ),
        line=path(steps([point.share for point in points])),
        band=path([*low, *reversed(high)]) + "Z",
        half=None if half_at is None else x(half_at),
    )
