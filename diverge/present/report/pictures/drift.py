"""The drift pictures of a pair: by layer and position, by site and position, and by depth where it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .axes import nice_ticks
from .heat import (
    NO_DRIFT,
    NOT_COMPUTED,
    NOT_KNOWN,
    SIZE_UNKNOWN,
    Columns,
    HeatMap,
    Mark,
    Matrix,
    Rows,
    Scale,
    draw,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..reading.result import ResultData
    from ..reading.rows import Pair, SiteTotal

PROMPT_COLUMNS = 56
DECODE_COLUMNS = 140
MAX_SITE_ROWS = 640
"""Above it the map of every site would no longer fit a page or the size bound: layers only."""
STUB_COLUMNS = 4
"""Hatched columns that stand for the positions after the divergence, however many."""


@dataclass(frozen=True)
class Drift:
    """What the report shows of a pair's drift."""

    scale: Scale
    layers: HeatMap
    sites: HeatMap | None
    depth: HeatMap | None
    start: int
    """Position at which the difference starts."""
    prompt_width: int
    """Positions in a column."""
    decode_width: int

    @property
    def has_jump(self) -> bool:
        """A box says where the drift grows beyond rounding."""
        return any(mark.kind == "jump" for mark in self.layers.matrix.marks)


@dataclass(frozen=True)
class _Bins:
    """Which positions of a pair share a column: the comparable ones, then a stub for the rest."""

    pair: Pair
    end: int
    """Position at which the comparable ones end."""
    prompt_width: int
    """Positions in a column."""
    decode_width: int

    @classmethod
    def over(cls, pair: Pair, first_moved: int) -> _Bins:
        """Columns as wide as the page takes."""
        last = pair.first_position if pair.first_position is not None else pair.positions
        end = max(last, first_moved + 1)
        prompt_width = max(1, -(-min(pair.prompt, end) // PROMPT_COLUMNS))
        decode_width = max(1, -(-max(end - pair.prompt, 0) // DECODE_COLUMNS))
        return cls(pair, end, prompt_width, decode_width)

    @property
    def prompt_columns(self) -> int:
        return -(-min(self.pair.prompt, self.end) // self.prompt_width)

    @property
    def decode_columns(self) -> int:
        return -(-max(self.end - self.pair.prompt, 0) // self.decode_width)

    @property
    def count(self) -> int:
        """Columns of comparable positions."""
        return self.prompt_columns + self.decode_columns

    @property
    def stub(self) -> int:
        return STUB_COLUMNS if self.end < self.pair.positions else 0

    def column(self, position: int) -> int:
        """The column of a position."""
        if position < self.pair.prompt:
            return position // self.prompt_width
        return self.prompt_columns + (position - self.pair.prompt) // self.decode_width

    def columns(self) -> Columns:
        """Groups, names and ticks."""
        prompt, decode = self.prompt_columns, self.decode_columns
        ticks = [(i, str(i * self.prompt_width)) for i in nice_ticks(prompt, 4)]
        ticks += [(prompt + i, str(i * self.decode_width)) for i in nice_ticks(decode, 12)]
        groups = [("prompt, by position", prompt), ("generated, by step", decode), ("", self.stub)]
        return Columns(tuple(group for group in groups if group[1]), tuple(self._names()), tuple(ticks))

    def _names(self) -> list[str]:
        start = self.pair.prompt
        in_prompt, steps = min(start, self.end), self.end - start
        names = []
        for i in range(self.prompt_columns):
            first, stop = i * self.prompt_width, min((i + 1) * self.prompt_width, in_prompt)
            names.append(f"{_span('position', first, stop)}, prompt")
        for i in range(self.decode_columns):
            first, stop = i * self.decode_width, min((i + 1) * self.decode_width, steps)
            names.append(f"{_span('step', first, stop)} ({_span('position', first + start, stop + start)})")
        later = _span("position", self.end, self.pair.positions)
        return names + [f"{later}: not comparable, earlier tokens differ"] * self.stub


def _span(unit: str, first: int, stop: int) -> str:
    return f"{unit} {first}" if stop - first == 1 else f"{unit}s {first}–{stop - 1}"


@dataclass(frozen=True)
class _Grid:
    """Sites × columns of one pair, and what all maps of it share."""

    pair: Pair
    sites: list[SiteTotal]
    values: NDArray[np.float32]
    columns: Columns
    scale: Scale
    lines: list[tuple[int, str]]
    marks: list[Mark]
    """The first differing row, and where the drift grows beyond rounding."""


def draw_drift(data: ResultData, pair: Pair, with_sites: bool) -> Drift | None:
    """The drift pictures of one pair; None where no row of it differs or no site was compared."""
    if pair.first_moved is None or not data.sites:
        return None
    bins = _Bins.over(pair, pair.first_moved)
    start, first_site = _start(data, pair)
    row_of = {site.label: row for row, site in enumerate(data.sites)}
    first_row = next(row for row, site in enumerate(data.sites) if site.site == first_site)
    jumps = [(row_of[site], position) for site, position in _jumps(data, pair) if site in row_of]
    marks = [Mark(row, bins.column(at), "jump") for row, at in jumps if bins.column(at) < bins.count]
    grid = _Grid(
        pair,
        data.sites,
        _values(data, bins),
        bins.columns(),
        Scale.over(data.drift_range(pair.pair)),
        [] if pair.first_position is None else [(bins.count, "tokens diverge")],
        [*marks, Mark(first_row, bins.column(start), "first")],
    )
    return Drift(
        scale=grid.scale,
        layers=_layer_map(grid),
        sites=_site_map(grid) if with_sites and len(data.sites) <= MAX_SITE_ROWS else None,
        depth=_depth_map(data, grid, start, first_site),
        start=start,
        prompt_width=bins.prompt_width,
        decode_width=bins.decode_width,
    )


def _start(data: ResultData, pair: Pair) -> tuple[int, int]:
    """Position and site where the difference starts: the verdict's, which knows how a pass ran, else the
    first row that differs."""
    assert pair.first_moved is not None
    found = data.verdict.first_site
    if found is not None and found.sequence == pair.sequence:
        named = next((site.site for site in data.sites if site.label == found.label()), None)
        if named in data.drifts_at(pair.pair, found.position):
            return found.position, named
    return pair.first_moved, min(data.drifts_at(pair.pair, pair.first_moved))


def _jumps(data: ResultData, pair: Pair) -> list[tuple[str, int]]:
    """Site and position of every place where the drift of a pair grows beyond rounding."""
    first = data.verdict.first_site
    if first is None or first.sequence != pair.sequence:
        return []
    places = (cause.place for cause in data.verdict.causes)
    grown = ((one.site, one.position) for one in places if one is not None and one.role == "grows")
    return list(dict.fromkeys(grown))


def _values(data: ResultData, bins: _Bins) -> NDArray[np.float32]:
    """float32[sites, columns], coded as heat.py says: what was not compared first, then the drifts."""
    values = np.zeros((len(data.sites), bins.count + bins.stub), np.float32)
    values[:, bins.count :] = NOT_COMPUTED
    _mark_not_compared(values, data, bins)
    drifts = data.drift_bins(bins.pair, bins.prompt_width, bins.decode_width)
    at = _columns_of(drifts, bins)
    inside = at < bins.count
    index_of = {site.site: row for row, site in enumerate(data.sites)}
    rows = np.array([index_of[int(site)] for site in drifts["site"]], np.int64)
    values[rows[inside], at[inside]] = _coded(drifts["drift"])[inside]
    return values


def _mark_not_compared(values: NDArray[np.float32], data: ResultData, bins: _Bins) -> None:
    partial = np.array([_is_partial(site, data.rows_with_sites) for site in data.sites])
    coverage = data.coverage_bins(bins.pair, bins.prompt_width, bins.decode_width, int(partial.sum()))
    counts = (coverage[name] for name in ("whole", "none", "partial", "positions"))
    for column, whole, none, some, positions in zip(_columns_of(coverage, bins), *counts, strict=True):
        if column >= bins.count:
            continue
        if none == positions:
            values[:, column] = NOT_COMPUTED
        elif not whole:
            lacking = partial if partial.any() else slice(None)
            values[lacking, column] = NOT_COMPUTED if some + none == positions else NOT_KNOWN


def _columns_of(found: dict[str, NDArray[Any]], bins: _Bins) -> NDArray[np.int64]:
    """Of bins that count from 0 in the prompt and from 0 again after it."""
    return np.asarray(found["bin"], np.int64) + np.where(found["decode"], bins.prompt_columns, 0)


def _is_partial(site: SiteTotal, rows: int) -> bool:
    """True for a site that was not compared everywhere, such as a head that skips the prompt."""
    return not site.by_sketch and site.compared < rows


def _coded(drifts: NDArray[Any]) -> NDArray[np.float32]:
    values = np.ma.filled(np.ma.asarray(drifts, np.float32), np.nan)
    return np.where(values == 0, np.float32(NO_DRIFT), values).astype(np.float32)


def _site_map(grid: _Grid) -> HeatMap:
    groups = _layer_groups(grid.sites)
    starts = [row for row, group in enumerate(groups) if row == 0 or group != groups[row - 1]]
    height = 5 if len(grid.sites) > 120 else 9
    every = max(1, -(-len(starts) * 12 // (len(grid.sites) * height)))
    labels = [(row, _group_name(grid.sites[row])) for row in starts[::every]]
    return draw(
        Matrix(
            f"sites-{grid.pair.pair}",
            grid.values,
            grid.columns,
            Rows([site.label for site in grid.sites], groups, labels, height),
            grid.scale,
            grid.lines,
            marks=grid.marks,
        )
    )


def _layer_map(grid: _Grid) -> HeatMap:
    groups = np.array(_layer_groups(grid.sites))
    values, worst = _largest_by_group(grid.values, groups)
    count = len(values)
    first_rows = [int(np.flatnonzero(groups == group)[0]) for group in range(count)]
    names = [_group_name(grid.sites[row]) for row in first_rows]
    height = 18 if count <= 14 else 12 if count <= 50 else 7
    every = max(1, -(-11 // height))
    labels = [(row, names[row]) for row in range(0, count, every)]
    return draw(
        Matrix(
            f"layers-{grid.pair.pair}",
            values,
            grid.columns,
            Rows(names, [0] * count, labels, height),
            grid.scale,
            grid.lines,
            marks=[Mark(int(groups[one.row]), one.column, one.kind) for one in grid.marks],
            worst=worst,
        )
    )


def _largest_by_group(
    values: NDArray[np.float32], groups: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
    """For every group of rows: its largest cells, and the rows that they are from."""
    # NaN above everything, then drifts, then differences of unknown size, then equal, then the rest.
    order = np.where(np.isnan(values), np.inf, values)
    order = np.where(values == SIZE_UNKNOWN, np.float32(NO_DRIFT) / 2, order)
    count, width = int(groups.max()) + 1, values.shape[1]
    largest = np.empty((count, width), np.float32)
    rows = np.zeros((count, width), np.int16)
    for group in range(count):
        members = np.flatnonzero(groups == group)
        rows[group] = members[np.argmax(order[members], axis=0)]
        largest[group] = values[rows[group], np.arange(width)]
    return largest, rows


def _depth_map(data: ResultData, grid: _Grid, start: int, first_site: int) -> HeatMap | None:
    """Layers × kinds of site at the one position where the difference starts."""
    inside = [site for site in data.sites if site.layer is not None]
    kinds = list(dict.fromkeys(_kind(site) for site in inside))
    layers = sorted({site.layer for site in inside if site.layer is not None})
    if not inside or len(kinds) > 48 or len(kinds) * len(layers) > 2 * len(inside):
        return None
    drifts = data.drifts_at(grid.pair.pair, start)
    values = np.full((len(kinds), len(layers)), NOT_COMPUTED, np.float32)
    jumps = {site for site, position in _jumps(data, grid.pair) if position == start}
    marks = []
    for site in inside:
        cell = kinds.index(_kind(site)), layers.index(site.layer or 0)
        if site.site in drifts:
            values[cell] = _coded(np.array([drifts[site.site]]))[0]
        else:
            values[cell] = NOT_KNOWN if _is_partial(site, data.rows_with_sites) else 0
        if site.site == first_site:
            marks.append(Mark(*cell, "first"))
        elif site.label in jumps:
            marks.append(Mark(*cell, "jump"))
    columns = Columns(
        (("layer", len(layers)),),
        tuple(f"layer {layer}" for layer in layers),
        tuple((index, str(layers[index])) for index in nice_ticks(len(layers), 32)),
    )
    rows = Rows(kinds, [0] * len(kinds), list(enumerate(kinds)), height=16)
    depth = f"depth-{grid.pair.pair}"
    return draw(Matrix(depth, values, columns, rows, grid.scale, marks=marks, max_cell_width=26))


def _layer_groups(sites: list[SiteTotal]) -> list[int]:
    groups: list[int] = []
    for row, site in enumerate(sites):
        before = sites[row - 1] if row else None
        same = before is not None and site.layer is not None and site.layer == before.layer
        groups.append(groups[-1] if same else (groups[-1] + 1 if groups else 0))
    return groups


def _group_name(site: SiteTotal) -> str:
    return site.label if site.layer is None else f"layer {site.layer}"


def _kind(site: SiteTotal) -> str:
    """A site's label after its layer number: `mlp.gate_proj`, or `output` for the layer itself."""
    parts = site.name.split(".")
    after = ".".join(parts[parts.index(str(site.layer)) + 1 :]) or "output"
    return after + site.label[len(site.name) :]
