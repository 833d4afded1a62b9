"""Joining what the ranks of one engine saw of a request: one row a position, shards side by side.

It knows row tables and sites, not files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.trace import Site
from ..row_summaries.reference import RowSummaries
from ..row_summaries.trace_rows import ExecutionShape, TopK
from .parts import ROW_FIELDS, SUMMARIES, Distributions, Part
from .rank_files import RankFiles


@dataclass(frozen=True, eq=False)
class TappedRows:
    """What the taps saw of one request: R rows, S sites of `TapFolder.sites`.

    Positions that were not computed here (a cached prefix) have no row. A site that a row was not computed
    for has 16 zero bytes as its hash, which a trace shows as null.

    Attributes:
        positions: int32[R], ascending, each once.
        token_ids: int32[R], the ids fed there.
        shapes: The forward pass that computed each row. `padded_tokens` is the whole pass's padding.
        summaries: [R, S].
        topk: The raw distribution for the next token, where logits were computed.
        findings: What a reader should know, in sentences.
        prefix: Token ids from position 0 on that the prefix cache spared: they have no rows.
    """

    positions: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    shapes: list[ExecutionShape]
    summaries: RowSummaries
    topk: list[TopK | None]
    findings: list[str]
    prefix: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class RankRows:
    """One rank's rows of a request, one for each position."""

    table: npt.NDArray[np.int32]
    """int32[R, len(ROW_FIELDS)], in order of position."""
    summaries: RowSummaries
    topk: list[TopK | None]
    computed_again: int
    """Rows that a later one of the same position took the place of."""

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """int32[R]"""
        return self.table[:, 1]

    def only(self, positions: npt.NDArray[np.int32]) -> RankRows:
        """The rows at some positions."""
        kept = np.flatnonzero(np.isin(self.positions, positions))
        summaries = RowSummaries(*(array[kept] for array in _arrays(self.summaries)))
        return RankRows(self.table[kept], summaries, [self.topk[row] for row in kept], self.computed_again)


def last_rows(parts: Sequence[tuple[Part, int]], sites: int, since: int = 0) -> RankRows:
    """Of every position from `since` on the row of the latest forward pass.

    Args:
        parts: Parts, each with the number that it gives the request.
        sites: How many sites the rank has.
        since: Rows at earlier positions are left out.
    """
    tables = [np.zeros((0, len(ROW_FIELDS)), np.int32)]
    blocks = [RowSummaries.empty(0, sites)]
    topk: list[TopK | None] = []
    for part, number in parts:
        mine = np.flatnonzero((part.rows[:, 0] == number) & (part.rows[:, 1] >= since))
        tables.append(part.rows[mine])
        blocks.append(RowSummaries(*(array[mine] for array in _arrays(part.summaries))))
        place = {int(row): index for index, row in enumerate(part.distributions.row)}
        topk += [_topk(part.distributions, place.get(row)) for row in mine.tolist()]
    table = np.concatenate(tables)
    order = np.lexsort((table[:, 3], table[:, 1]))
    following = np.append(table[order, 1], -1)
    last = order[following[1:] != following[:-1]]
    arrays = [np.concatenate(group)[last] for group in zip(*map(_arrays, blocks), strict=True)]
    return RankRows(table[last], RowSummaries(*arrays), [topk[row] for row in last], len(order) - len(last))


def joined(
    views: Sequence[tuple[RankFiles, RankRows]], sites: Sequence[Site], findings: Sequence[str]
) -> TappedRows:
    """One table from what the ranks saw.

    Args:
        views: The ranks with their rows.
        sites: All sites.
        findings: What is known already.
    """
    # Rank 0 of tensor parallelism gives the replicated rows, the others are compared with it.
    views = sorted(views, key=lambda view: (view[0].place["pp_rank"], view[0].place["tp_rank"]))
    positions = np.unique(np.concatenate([rows.positions for _, rows in views])).astype(np.int32)
    out = RowSummaries.empty(len(positions), len(sites))
    places = {site.label(): index for index, site in enumerate(sites)}
    tables = np.zeros((len(positions), len(ROW_FIELDS)), np.int32)
    topk: list[TopK | None] = [None] * len(positions)
    filled: dict[int, str] = {}
    found = list(findings)
    for rank, rows in views:
        at = np.searchsorted(positions, rows.positions)
        tables[at] = rows.table
        for place, item in zip(at.tolist(), rows.topk, strict=True):
            topk[place] = topk[place] or item
        for column, site in enumerate(rank.sites):
            target = places[site.label()]
            if target in filled:
                found += _differences(rank.name, filled[target], site, rows, column, out, at, target)
            else:
                filled[target] = rank.name
                _put(rows.summaries, column, out, at, target)
        if rows.computed_again:
            found.append(
                f"{rows.computed_again} positions were computed more than once (preemption, or drafts that "
                "were not accepted); the last is shown"
            )
    shapes = [ExecutionShape(*row) for row in tables[:, 4:].tolist()]
    return TappedRows(positions, tables[:, 2].copy(), shapes, out, topk, list(dict.fromkeys(found)))


def one_table(tables: Sequence[Sequence[Site]]) -> list[Site]:
    """The sites of ranks that run the same layers: replicated ones once, shards of all ranks side by side."""
    merged: dict[str, Site] = {}
    for group in zip_longest(*tables):  # every rank runs the same modules in the same order
        for site in group:
            if site is not None:
                merged.setdefault(site.label(), site)
    return list(merged.values())


def _topk(found: Distributions, index: int | None) -> TopK | None:
    if index is None:
        return None
    logsumexp = None if found.ids.shape[1] == 0 else float(found.logsumexp[index])
    digest = found.logits_hash[index].tobytes()
    return TopK(found.ids[index], found.logits[index], found.logprobs[index], logsumexp, digest)


def _put(source: RowSummaries, column: int, out: RowSummaries, at: npt.NDArray[np.intp], target: int) -> None:
    """Copy one site; what was not computed stays 0 in every array."""
    there = source.row_hash[:, column].any(axis=-1)
    for mine, theirs in zip(_arrays(out), _arrays(source), strict=True):
        mine[at[there], target] = theirs[there, column]


def _differences(
    name: str,
    first: str,
    site: Site,
    rows: RankRows,
    column: int,
    out: RowSummaries,
    at: npt.NDArray[np.intp],
    target: int,
) -> list[str]:
    """Where a rank's replicated rows are not those of the rank that was taken, in a sentence."""
    mine, theirs = rows.summaries.row_hash[:, column], out.row_hash[at, target]
    differ = (mine != theirs).any(axis=-1) & mine.any(axis=-1) & theirs.any(axis=-1)
    where = rows.positions[differ].tolist()
    if not where:
        return []
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    return [f"rank {name} holds other bits than rank {first} at {site.label()}, position {where[0]}{more}"]


def _arrays(summaries: RowSummaries) -> tuple[npt.NDArray[Any], ...]:
    return tuple(getattr(summaries, name) for name in SUMMARIES)
