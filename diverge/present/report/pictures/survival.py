"""The survival curve of agreement: a step curve of shares with its interval, as SVG paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .axes import Frame, Ticks, nice_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .....schemas.sequences import SurvivalPoint

FRAME = Frame(width=720, height=220, left=48, right=704, top=12, bottom=182)


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
        return round(FRAME.left + (FRAME.right - FRAME.left) * step / span, 1)

    def y(share: float) -> float:
        return round(FRAME.top + (FRAME.bottom - FRAME.top) * (1 - share), 1)

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
        frame=FRAME,
        ticks=Ticks(
            x=[(x(step), str(step)) for step in nice_ticks(span, 12)],
            y=[(y(share), f"{share:g}", "") for share in (0.0, 0.25, 0.5, 0.75, 1.0)],
        ),
        line=path(steps([point.share for point in points])),
        band=path([*low, *reversed(high)]) + "Z",
        half=None if half_at is None else x(half_at),
    )
