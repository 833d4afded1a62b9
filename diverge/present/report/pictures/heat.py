"""Heat maps as SVG: a matrix of drifts becomes paths per colour class, labels, and data for hovering.

It knows geometry and classes; colours are the style sheet's. A cell is coded in its float32 value:
above 0 the drift, 0 equal, and the constants below. The SVG paths are runs of cells on a row, so that a map
of a hundred thousand cells stays small.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .axes import Frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

SIZE_UNKNOWN = -1.0
"""The hashes differ; there is no sketch to say by how much."""
NOT_COMPUTED = -2.0
NOT_KNOWN = -3.0
"""Equal or not computed: the result folder does not say which."""
NO_DRIFT = 1e-40
"""The bits differ, the sketch sees no difference (−0.0 versus 0.0)."""

CLASSES = 10
PLOT_WIDTH = 900
"""Pixels for cells; a map is at most this wide plus its labels."""

_LABEL_ROOM = 26
"""Pixels between the centres of two column labels."""
_MARGIN, _TOP = 14, 34
"""Pixels left of the row labels, and above the cells."""
_LETTER = 6.7
"""Pixels that a letter of a row label takes."""


@dataclass(frozen=True)
class Scale:
    """A logarithmic colour scale from 10^low to 10^high in `CLASSES` classes."""

    low: int
    high: int

    @classmethod
    def over(cls, limits: tuple[float, float] | None) -> Scale:
        """Whole decades around the smallest and largest drift, two at least and eight at most."""
        if limits is None:
            return cls(-4, -2)
        high = math.ceil(math.log10(limits[1]) + 1e-9)
        low = min(math.floor(math.log10(limits[0])), high - 2)
        return cls(max(low, high - 8), high)

    def classes(self, values: NDArray[np.float32]) -> NDArray[np.int64]:
        """Colour class of each drift above 0."""
        share = (np.log10(values.astype(np.float64)) - self.low) / (self.high - self.low)
        return np.clip(np.floor(share * CLASSES), 0, CLASSES - 1).astype(np.int64)

    def ticks(self) -> list[tuple[float, str]]:
        """Share 0…1 and exponent of every decade."""
        width = self.high - self.low
        return [((exponent - self.low) / width, str(exponent)) for exponent in range(self.low, self.high + 1)]


@dataclass(frozen=True)
class Columns:
    """The columns of a map in groups with a small gap between them."""

    groups: tuple[tuple[str, int], ...]
    """Title and number of columns."""
    names: tuple[str, ...]
    """For hovering: `position 57, step 23`."""
    ticks: tuple[tuple[int, str], ...]
    """Column index and label."""


@dataclass(frozen=True)
class Rows:
    """The rows of a map."""

    names: Sequence[str]
    """For hovering."""
    groups: Sequence[int]
    """A number per row; a gap stands where it changes."""
    labels: Sequence[tuple[int, str]]
    """Row index and text for the left margin."""
    height: int
    """Of a row, in pixels."""


@dataclass(frozen=True)
class Mark:
    """A cell with a box around it."""

    row: int
    column: int
    kind: Literal["first", "jump"]
    """`first`: the first to differ. `jump`: where the drift grows beyond rounding."""


@dataclass(frozen=True)
class Matrix:
    """What a map shows, before it has a size."""

    id: str
    """HTML id."""
    values: NDArray[np.float32]
    """float32[rows, columns], coded as the module says."""
    columns: Columns
    rows: Rows
    scale: Scale
    lines: Sequence[tuple[int, str]] = ()
    """Column index (the line stands left of it) and text."""
    marks: Sequence[Mark] = ()
    worst: NDArray[np.int16] | None = None
    """int16[rows, columns], for rows that stand for several sites: index of the largest."""
    max_cell_width: int = 16
    """Pixels."""


@dataclass(frozen=True)
class Layer:
    """Cells of one kind: `kind` is `q0` … `q9`, `nan`, `unsized`, `absent` or `unknown`."""

    kind: str
    path: str


@dataclass(frozen=True)
class HeatMap:
    """A matrix laid out in pixels: everything that the template needs to draw it."""

    matrix: Matrix
    frame: Frame
    cell_width: int
    column_lefts: list[int]
    row_tops: list[int]
    layers: list[Layer]
    row_labels: list[tuple[int, str]]
    """Baseline and text."""
    column_labels: list[tuple[int, str]]
    """Centre and text."""
    bands: list[tuple[int, int, str]]
    """Left, right and title of each group of columns."""

    @property
    def id(self) -> str:
        """HTML id."""
        return self.matrix.id

    @property
    def cell_height(self) -> int:
        """Pixels."""
        return self.matrix.rows.height

    @property
    def lines(self) -> list[tuple[int, str]]:
        """Vertical lines with a text."""
        x = self.column_lefts
        return [(x[at] - 1 if at < len(x) else self.frame.right, text) for at, text in self.matrix.lines]

    @property
    def boxes(self) -> list[tuple[str, int, int]]:
        """Kind, left and top of every marked cell."""
        marks = self.matrix.marks
        return [(one.kind, self.column_lefts[one.column], self.row_tops[one.row]) for one in marks]

    @property
    def data(self) -> dict[str, Any]:
        """For the script: geometry, labels, and the values as base64 float32."""
        matrix = self.matrix
        found: dict[str, Any] = {
            "id": self.id,
            "x": self.column_lefts,
            "y": self.row_tops,
            "w": self.cell_width,
            "h": self.cell_height,
            "columns": list(matrix.columns.names),
            "rows": list(matrix.rows.names),
            "values": _base64(matrix.values, "<f4"),
        }
        return found if matrix.worst is None else found | {"worst": _base64(matrix.worst, "<i2")}


def draw(matrix: Matrix) -> HeatMap:
    """Lay out one map: the position of every cell, then the cells, then the labels that have room."""
    columns, rows = matrix.columns, matrix.rows
    left = _MARGIN + round(_LETTER * max((len(text) for _, text in rows.labels), default=0))
    width = max(2, min(matrix.max_cell_width, PLOT_WIDTH // max(matrix.values.shape[1], 1)))
    x = _column_lefts(columns.groups, left, width)
    y = _row_tops(rows.groups, _TOP, rows.height)
    right, bottom = x[-1] + width, y[-1] + rows.height
    return HeatMap(
        matrix=matrix,
        frame=Frame(right + 6, bottom + 30, left=x[0], right=right, top=y[0], bottom=bottom),
        cell_width=width,
        column_lefts=x,
        row_tops=y,
        layers=_paths(matrix.values, matrix.scale, x, y, width),
        row_labels=_spaced([(y[row] + rows.height // 2, text) for row, text in rows.labels], 11),
        column_labels=_column_labels(columns, x, width),
        bands=_bands(columns.groups, x, width),
    )


def _base64(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


def _column_lefts(groups: Iterable[tuple[str, int]], left: int, width: int) -> list[int]:
    lefts: list[int] = []
    at = left
    for _, count in groups:
        lefts += [at + width * index for index in range(count)]
        at += width * count + 6
    return lefts


def _row_tops(groups: Sequence[int], top: int, height: int) -> list[int]:
    tops: list[int] = []
    for row, group in enumerate(groups):
        gap = 3 if row and group != groups[row - 1] else 0
        tops.append((tops[-1] + height if tops else top) + gap)
    return tops


def _bands(groups: Iterable[tuple[str, int]], x: Sequence[int], width: int) -> list[tuple[int, int, str]]:
    bands = []
    start = 0
    for title, count in groups:
        if count:
            bands.append((x[start], x[start + count - 1] + width, title))
        start += count
    return bands


def _spaced(labels: list[tuple[int, str]], apart: int) -> list[tuple[int, str]]:
    """Labels that do not run into each other: where two stand too near, the later one stays."""
    followers = [*labels[1:], None][: len(labels)]
    return [
        label
        for label, after in zip(labels, followers, strict=True)
        if after is None or not 0 <= after[0] - label[0] < apart
    ]


def _column_labels(columns: Columns, x: Sequence[int], width: int) -> list[tuple[int, str]]:
    """The ticks that have room, each group's from its left edge on; a group's first tick always stays."""
    firsts = {sum(count for _, count in columns.groups[:index]) for index in range(len(columns.groups))}
    labels: list[tuple[int, str]] = []
    for column, text in columns.ticks:
        centre = x[column] + width // 2
        while column in firsts and labels and centre - labels[-1][0] < _LABEL_ROOM:
            labels.pop()
        if not labels or centre - labels[-1][0] >= _LABEL_ROOM:
            labels.append((centre, text))
    return labels


def _paths(
    values: NDArray[np.float32], scale: Scale, x: Sequence[int], y: Sequence[int], width: int
) -> list[Layer]:
    """Horizontal strokes along the upper edges of the cells; the template moves them down by half a cell."""
    kinds = np.full(values.shape, "", dtype=object)
    moved = values > 0
    kinds[moved] = np.array([f"q{number}" for number in range(CLASSES)], dtype=object)[
        scale.classes(values[moved])
    ]
    for code, kind in ((SIZE_UNKNOWN, "unsized"), (NOT_COMPUTED, "absent"), (NOT_KNOWN, "unknown")):
        kinds[values == code] = kind
    kinds[~np.isfinite(values)] = "nan"
    pieces: dict[str, list[str]] = {}
    for row, line in enumerate(kinds):
        ends: dict[str, int] = {}  # where the last run of each kind on this row stopped
        start = 0
        for column in range(1, len(line) + 1):
            if column < len(line) and line[column] == line[start] and x[column] == x[column - 1] + width:
                continue
            if kind := line[start]:
                stop = x[column - 1] + width
                move = f"m{x[start] - ends[kind]} 0" if kind in ends else f"M{x[start]} {y[row]}"
                pieces.setdefault(kind, []).append(f"{move}h{stop - x[start]}")
                ends[kind] = stop
            start = column
    return [Layer(kind, "".join(pieces[kind])) for kind in sorted(pieces)]
