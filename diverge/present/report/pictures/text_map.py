"""The map of drift by layer as text: a character a cell, for Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...format import drift_cell, plain
from .heat import NOT_COMPUTED, NOT_KNOWN, SIZE_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..reading.rows import LayerTotal
    from .drift import Drift
    from .heat import Columns, Scale

MAX_LINES = 10
"""Lines of the map that stand for layers."""
MAP_COLUMNS = 96
MAX_NAME = 28
"""Characters of a name on the left."""

_SHADES = "▁▂▃▄▅▆▇█"


def text_map(found: Drift, layers: Sequence[LayerTotal]) -> str:
    """Layers × positions; neighbouring layers share a line where there are many.

    Args:
        found: The drift of a pair.
        layers: The largest drift of each layer, which stands behind its line.
    """
    matrix = found.layers.matrix
    values, names = matrix.values, [str(name)[:MAX_NAME] for name in matrix.rows.names]
    per = max(1, -(-values.shape[1] // MAP_COLUMNS))
    totals = {layer.name: layer for layer in layers}
    groups = group_rows(names, [bool((row == 0).all()) for row in values[:, : _compared(values)]])
    width = max(len(name) for name, _ in groups)
    lines = [f"{'':>{width}} {_band_titles(matrix.columns, per)}"]
    for name, members in groups:
        listed = [totals[one] for one in (names[index] for index in members) if one in totals]
        top = max(listed, key=lambda layer: _size(layer.drift_max), default=None)
        cells = "".join(
            _cell(values[members, start : start + per], found.scale)
            for start in range(0, values.shape[1], per)
        )
        largest = "" if top is None else f" {drift_cell(top.drift_max)} {plain(top.site_max)}"
        lines.append(f"{name:>{width}} {cells}{largest}".rstrip())
    return "\n".join([*lines, "", _legend(values, found.scale, per)])


def group_rows(names: list[str], equal: list[bool]) -> list[tuple[str, list[int]]]:
    """Lines of the map and the rows each stands for: neighbours that are equal throughout together, and
    neighbouring layers where there are many.

    Args:
        names: Of the rows: `layer 3`, or a site outside the layers.
        equal: Whether nothing differs in a row.
    """
    numbered = sum(_is_layer(name) and not same for name, same in zip(names, equal, strict=True))
    size = max(1, -(-numbered // MAX_LINES))
    found: list[list[int]] = []
    for index, name in enumerate(names):
        last = found[-1] if found else []
        alike = bool(last) and equal[index] and equal[last[-1]]
        layers = bool(last) and _is_layer(name) and _is_layer(names[last[-1]])
        if alike or (layers and not equal[index] and not equal[last[-1]] and len(last) < size):
            last.append(index)
        else:
            found.append([index])
    return [(_span(names[members[0]], names[members[-1]]), members) for members in found]


def _is_layer(name: str) -> bool:
    return name.startswith("layer ")


def _span(first: str, last: str) -> str:
    if first == last:
        return first
    if _is_layer(first) and _is_layer(last):
        return f"layers {first[6:]}–{last[6:]}"
    return f"{first} … {last}"


def _size(drift: float | None) -> float:
    return math.inf if drift is None or math.isnan(drift) else drift


def _compared(values: NDArray[np.float32]) -> int:
    """Columns up to the last in which anything was compared."""
    seen = np.flatnonzero(~np.isin(values, (NOT_COMPUTED, NOT_KNOWN)).all(axis=0))
    return int(seen[-1]) + 1 if len(seen) else 0


def _band_titles(columns: Columns, per: int) -> str:
    """A line that says above which column each group of columns begins."""
    line, start = "", 0
    for title, count in columns.groups:
        if title:
            at = start // per
            line = f"{line:<{at}}" if len(line) <= at else f"{line} "
            line += f"↓{title}"
        start += count
    return line


def _cell(values: NDArray[np.float32], scale: Scale) -> str:
    if not np.isfinite(values).all():
        return "!"
    moved = values[values > 0]
    if len(moved):
        share = (np.log10(float(moved.max())) - scale.low) / (scale.high - scale.low)
        return _SHADES[min(max(int(share * len(_SHADES)), 0), len(_SHADES) - 1)]
    if (values == SIZE_UNKNOWN).any():
        return "?"
    return " " if np.isin(values, (NOT_COMPUTED, NOT_KNOWN)).all() else "·"


def _legend(values: NDArray[np.float32], scale: Scale, per: int) -> str:
    """What the characters mean; the rare ones only where the map has them."""
    marks = [f"{_SHADES} 1e{scale.low} to 1e{scale.high} (logarithmic)", "· equal"]
    if (values == SIZE_UNKNOWN).any():
        marks.append("? size not known")
    if not np.isfinite(values).all():
        marks.append("! not finite")
    marks.append("blank: not compared")
    if per > 1:
        marks.append(f"each character is the largest of {per} columns")
    return "; ".join(marks)
