"""What the report's plots share: the frame that a curve is drawn in, and ticks at round numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """A picture and the rectangle in it that holds the curve, in pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


@dataclass(frozen=True)
class Ticks:
    """Where an axis has marks."""

    x: list[tuple[float, str]]
    """Place in pixels, and text."""
    y: list[tuple[float, str, str]]
    """Place in pixels, text, and its exponent: empty, or that of a power of ten."""


def nice_ticks(count: int, most: int) -> list[int]:
    """Indices 0, k, 2k, … below `count`, at most `most` of them, k being 1, 2 or 5 times a power of ten."""
    step = 1
    for step in (factor * 10**power for power in range(9) for factor in (1, 2, 5)):
        if (count - 1) // step + 1 <= most:
            break
    return list(range(0, count, step))
