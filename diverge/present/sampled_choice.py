"""What is known of a token that was drawn: for one, margin and drift decide nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .format import number

if TYPE_CHECKING:
    from ...schemas.findings.statement import Side

_DIGITS = 4
"""Of a draw: enough to find it in a trace."""


def sampled_choice(
    sampled: Sequence[Side], draws: tuple[float | None, float | None], moved: float | None
) -> str:
    """`sampled: the same draw 0.2737 picks a different token; probabilities moved by up to 0.01`.

    Args:
        sampled: The sides that drew the token; empty: it was no draw, and nothing is said.
        draws: Of A and B, uniform in [0, 1); None: not recorded.
        moved: Largest difference of a candidate's probability; None: not known.
    """
    if not sampled:
        return ""
    if len(sampled) == 1:
        return f"sampled in {sampled[0]} only, greedy in {'B' if sampled[0] == 'A' else 'A'}"
    a, b = draws
    if a is None or b is None:
        return "sampled: draws not recorded"
    if a != b:
        return f"sampled: different draws {_draw(a, b)} and {_draw(b, a)}"
    how = f"; probabilities moved by up to {number(moved)}" if moved and math.isfinite(moved) else ""
    return f"sampled: the same draw {a:.{_DIGITS}g} picks a different token{how}"


def _draw(one: float, other: float) -> str:
    """A draw, in full where rounding would make it equal to the other."""
    short = f"{one:.{_DIGITS}g}"
    return repr(one) if short == f"{other:.{_DIGITS}g}" else short
