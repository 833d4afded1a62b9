"""The drift pictures of a pair: by layer and position, by site and position, and by depth where it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..format import site_label
from .axes import nice_ticks
from .heat import NO_DRIFT, NOT_COMPUTED, NOT_KNOWN, SIZE_UNKNOWN, Columns, HeatMap, Scale, draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .data import ResultData
    from .rows import Pair, SiteTotal

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


@dataclass(frozen=True)
class _Grid:
    """Sites × columns of one pair."""

    values: NDArray[np.float32]
    columns: Columns
    end: int
    """Index of the column where the comparable positions end."""
    first: int
    """Column of the first differing row."""


def draw_drift(data: ResultData, pair: Pair, with_sites: bool) -> Drift | None:
    """The drift pictures of one pair; None where no row of it differs or no site was compared."""
    if pair.first_moved is None or not data.sites:
        return None
    last = pair.first_position if pair.first_position is not None else pair.positions
    end = max(last, pair.first_moved + 1)
    prompt_width = max(1, -(-min(pair.prompt, end) // PROMPT_COLUMNS))
    decode_width = max(1, -(-max(end - pair.prompt, 0) // DECODE_COLUMNS))
    scale = Scale.over(data.drift_range(pair.pair))
    start, first_site = _start(data, pair)
    grid = _grid(data, pair, start, end, prompt_width, decode_width)
    return Drift(
        scale=scale,
        layers=_layer_map(data, pair, grid, scale, first_site),
        sites=_site_map(data, pair, grid, scale, first_site)
        if with_sites and len(data.sites) <= MAX_SITE_ROWS
        else None,
        depth=_depth_map(data, pair, scale, start, first_site),
        start=start,
        prompt_width=prompt_width,
        decode_width=decode_width,
    )


def _start(data: ResultData, pair: Pair) -> tuple[int, int]:
    """Position and site where the difference starts: the verdict's, which knows how a pass ran, else the
    first row that differs."""
    assert pair.first_moved is not None
    found = data.verdict.first_site
    if found is not None and (found.request_id, found.sample) == (pair.request_id, pair.sample):
        named = next((site.site for site in data.sites if site.label == site_label(found)), None)
        if named in data.drifts_at(pair.pair, found.position):
            return found.position, named
    return pair.first_moved, min(data.drifts_at(pair.pair, pair.first_moved))


def _grid(data: ResultData, pair: Pair, moved: int, end: int, prompt_width: int, decode_width: int) -> _Grid:
    prompt_columns = -(-min(pair.prompt, end) // prompt_width)
    decode_columns = -(-max(end - pair.prompt, 0) // decode_width)
    stub = STUB_COLUMNS if end < pair.positions else 0
    count = prompt_columns + decode_columns
    index_of = {site.site: row for row, site in enumerate(data.sites)}

    def column_of(bins: NDArray[Any], decode: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(bins, np.int64) + np.where(decode, prompt_columns, 0)

    partial = np.array([_is_partial(site, data.rows_with_sites) for site in data.sites])
    values = np.zeros((len(data.sites), count + stub), np.float32)
    coverage = data.coverage_bins(pair, prompt_width, decode_width, int(partial.sum()))
    at = column_of(coverage["bin"], coverage["decode"])
    inside = at < count
    for column, whole, none, some, positions in zip(
        *(
            part[inside]
            for part in (at, *(coverage[name] for name in ("whole", "none", "partial", "positions")))
        ),
        strict=True,
    ):
        if none == positions:
            values[:, column] = NOT_COMPUTED
        elif not whole:
            lacking = partial if partial.any() else slice(None)
            values[lacking, column] = NOT_COMPUTED if some + none == positions else NOT_KNOWN
    drifts = data.drift_bins(pair, prompt_width, decode_width)
    at = column_of(drifts["bin"], drifts["decode"])
    inside = at < count
    rows = np.array([index_of[int(site)] for site in drifts["site"]], np.int64)
    values[rows[inside], at[inside]] = _coded(drifts["drift"])[inside]
    values[:, count:] = NOT_COMPUTED

    names = _column_names(pair, end, prompt_width, decode_width, prompt_columns, decode_columns, stub)
    ticks = [(i, str(i * prompt_width)) for i in nice_ticks(prompt_columns, 4)]
    ticks += [(prompt_columns + i, str(i * decode_width)) for i in nice_ticks(decode_columns, 12)]
    groups = [("prompt, by position", prompt_columns), ("generated, by step", decode_columns), ("", stub)]
    first = (
        moved // prompt_width
        if moved < pair.prompt
        else prompt_columns + (moved - pair.prompt) // decode_width
    )
    columns = Columns(tuple(group for group in groups if group[1]), tuple(names), tuple(ticks))
    return _Grid(values, columns, count, first)


def _is_partial(site: SiteTotal, rows: int) -> bool:
    """True for a site that was not compared everywhere, such as a head that skips the prompt."""
    return not site.by_sketch and site.compared < rows


def _coded(drifts: NDArray[Any]) -> NDArray[np.float32]:
    values = np.ma.filled(np.ma.asarray(drifts, np.float32), np.nan)
    return np.where(values == 0, np.float32(NO_DRIFT), values).astype(np.float32)


def _column_names(
    pair: Pair, end: int, prompt_width: int, decode_width: int, prompt: int, decode: int, stub: int
) -> list[str]:
    def span(word: str, first: int, stop: int) -> str:
        return f"{word} {first}" if stop - first == 1 else f"{word}s {first}–{stop - 1}"

    in_prompt = min(pair.prompt, end)
    names = [
        span("position", i * prompt_width, min((i + 1) * prompt_width, in_prompt)) + ", prompt"
        for i in range(prompt)
    ]
    for i in range(decode):
        first, stop = i * decode_width, min((i + 1) * decode_width, end - pair.prompt)
        names.append(
            f"{span('step', first, stop)} ({span('position', first + pair.prompt, stop + pair.prompt)})"
        )
    later = span("position", end, pair.positions)
    return names + [f"{later}: not comparable, the tokens before differ"] * stub


def _lines(pair: Pair, grid: _Grid) -> list[tuple[int, str]]:
    return [] if pair.first_position is None else [(grid.end, "tokens diverge")]


def _site_map(data: ResultData, pair: Pair, grid: _Grid, scale: Scale, first_site: int) -> HeatMap:
    groups = _layer_groups(data.sites)
    starts = [row for row, group in enumerate(groups) if row == 0 or group != groups[row - 1]]
    height = 5 if len(data.sites) > 120 else 9
    every = max(1, -(-len(starts) * 12 // (len(data.sites) * height)))
    row_of = {site.site: row for row, site in enumerate(data.sites)}
    return draw(
        f"sites-{pair.pair}",
        grid.values,
        grid.columns,
        [site.label for site in data.sites],
        scale,
        cell_height=height,
        row_groups=groups,
        row_labels=[(row, _group_name(data.sites[row])) for row in starts[::every]],
        lines=_lines(pair, grid),
        mark=(row_of[first_site], grid.first),
    )


def _layer_map(data: ResultData, pair: Pair, grid: _Grid, scale: Scale, first_site: int) -> HeatMap:
    groups = np.array(_layer_groups(data.sites))
    count = int(groups.max()) + 1
    values = np.empty((count, grid.values.shape[1]), np.float32)
    worst = np.zeros(values.shape, np.int16)
    # NaN above everything, then drifts, then differences of unknown size, then equal, then the rest.
    order = np.where(np.isnan(grid.values), np.inf, grid.values)
    order = np.where(grid.values == SIZE_UNKNOWN, np.float32(NO_DRIFT) / 2, order)
    for group in range(count):
        members = np.flatnonzero(groups == group)
        top = members[np.argmax(order[members], axis=0)]
        worst[group] = top
        values[group] = grid.values[top, np.arange(values.shape[1])]
    first_rows = [int(np.flatnonzero(groups == group)[0]) for group in range(count)]
    names = [_group_name(data.sites[row]) for row in first_rows]
    height = 18 if count <= 14 else 12 if count <= 50 else 7
    every = max(1, -(-11 // height))
    row_of = {site.site: row for row, site in enumerate(data.sites)}
    return draw(
        f"layers-{pair.pair}",
        values,
        grid.columns,
        names,
        scale,
        cell_height=height,
        row_groups=[0] * count,
        row_labels=[(row, names[row]) for row in range(0, count, every)],
        lines=_lines(pair, grid),
        mark=(int(groups[row_of[first_site]]), grid.first),
        worst=worst,
    )


def _depth_map(data: ResultData, pair: Pair, scale: Scale, start: int, first_site: int) -> HeatMap | None:
    """Layers × kinds of site at the one position where the difference starts."""
    inside = [site for site in data.sites if site.layer is not None]
    kinds = list(dict.fromkeys(_kind(site) for site in inside))
    layers = sorted({site.layer for site in inside if site.layer is not None})
    if not inside or len(kinds) > 48 or len(kinds) * len(layers) > 2 * len(inside):
        return None
    drifts = data.drifts_at(pair.pair, start)
    values = np.full((len(kinds), len(layers)), NOT_COMPUTED, np.float32)
    mark = None
    for site in inside:
        cell = kinds.index(_kind(site)), layers.index(site.layer or 0)
        if site.site in drifts:
            values[cell] = _coded(np.array([drifts[site.site]]))[0]
        else:
            values[cell] = NOT_KNOWN if _is_partial(site, data.rows_with_sites) else 0
        if site.site == first_site:
            mark = cell
    columns = Columns(
        (("layer", len(layers)),),
        tuple(f"layer {layer}" for layer in layers),
        tuple((index, str(layers[index])) for index in nice_ticks(len(layers), 32)),
    )
    return draw(
        f"depth-{pair.pair}",
        values,
        columns,
        kinds,
        scale,
        cell_height=16,
        row_groups=[0] * len(kinds),
        row_labels=list(enumerate(kinds)),
        mark=mark,
        max_cell_width=26,
    )


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
