"""Joining what the ranks of one engine saw of a request: one row a position, shards side by side.

It knows row tables and sites, not files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from ...schemas.trace import Site
from ..row_summaries.rows import ExecutionShape, RowSummaries, TopK
from .part_file import POSITION, REQUEST, ROW_FIELDS, SHAPE, STEP, TOKEN_ID, Distributions, Part
from .rank_folder import RankFiles


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
    recomputed: int
    """Rows that a later one of the same position replaced."""

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """int32[R]"""
        return self.table[:, POSITION]

    def only(self, positions: npt.NDArray[np.int32]) -> RankRows:
        """The rows at some positions."""
        kept = np.flatnonzero(np.isin(self.positions, positions))
        topk = [self.topk[row] for row in kept]
        return RankRows(self.table[kept], self.summaries.at(kept), topk, self.recomputed)


RankView = tuple[RankFiles, RankRows]
"""A rank with its rows of a request."""


def last_rows(parts: Sequence[tuple[Part, int]], sites: int, since: int = 0) -> RankRows:
    """Of every position from `since` on the row of the latest forward pass.

    Args:
        parts: Parts, each with the number that it gives the request.
        sites: How many sites the rank has.
        since: Rows at earlier positions are left out.
    """
    tables = [np.zeros((0, len(ROW_FIELDS)), np.int32)]
    summaries = [RowSummaries.empty(0, sites)]
    topk: list[TopK | None] = []
    for part, number in parts:
        mine = np.flatnonzero((part.rows[:, REQUEST] == number) & (part.rows[:, POSITION] >= since))
        tables.append(part.rows[mine])
        summaries.append(part.summaries.at(mine))
        index_of = {int(row): index for index, row in enumerate(part.distributions.row)}
        topk += [_topk(part.distributions, index_of.get(row)) for row in mine.tolist()]
    table = np.concatenate(tables)
    order = np.lexsort((table[:, STEP], table[:, POSITION]))
    following = np.append(table[order, POSITION], -1)
    last = order[following[1:] != following[:-1]]
    return RankRows(
        table[last],
        RowSummaries.concatenate(summaries).at(last),
        [topk[row] for row in last],
        len(order) - len(last),
    )


def join_views(views: Sequence[RankView], sites: Sequence[Site], findings: Sequence[str]) -> TappedRows:
    """One table from what the ranks saw."""
    # Rank 0 of tensor parallelism gives the replicated rows, the others are compared with it.
    views = sorted(views, key=lambda view: view[0].order("pp_rank", "tp_rank"))
    join = _Join(np.unique(np.concatenate([rows.positions for _, rows in views])), sites)
    for rank, rows in views:
        join.add(rank, rows)
    shapes = [ExecutionShape(*row) for row in join.table[:, SHAPE].tolist()]
    return TappedRows(
        positions=join.positions,
        token_ids=join.table[:, TOKEN_ID].copy(),
        shapes=shapes,
        summaries=join.summaries,
        topk=join.topk,
        findings=list(dict.fromkeys([*findings, *join.findings])),
    )


class _Join:
    """The table of all ranks, filled rank by rank."""

    def __init__(self, positions: npt.NDArray[np.int32], sites: Sequence[Site]) -> None:
        self.positions = positions
        self.summaries = RowSummaries.empty(len(positions), len(sites))
        self.table = np.zeros((len(positions), len(ROW_FIELDS)), np.int32)
        self.topk: list[TopK | None] = [None] * len(positions)
        self.findings: list[str] = []
        self._index_of = {site.label(): index for index, site in enumerate(sites)}
        self._filled_by: dict[int, str] = {}
        """Site → the rank that its rows are from."""

    def add(self, rank: RankFiles, rows: RankRows) -> None:
        """One rank's rows: they fill sites that no rank has filled, and are compared with the others."""
        at = np.searchsorted(self.positions, rows.positions)
        self.table[at] = rows.table
        for index, topk in zip(at.tolist(), rows.topk, strict=True):
            self.topk[index] = self.topk[index] or topk
        computed = rows.summaries.is_computed()
        for column, site in enumerate(rank.sites):
            target, present = self._index_of[site.label()], computed[:, column]
            if target in self._filled_by:
                self._compare(rank, rows, column, at, target)
                continue
            self._filled_by[target] = rank.name
            for mine, theirs in zip(self.summaries.arrays(), rows.summaries.arrays(), strict=True):
                mine[at[present], target] = theirs[present, column]
        if rows.recomputed:
            self.findings.append(
                f"{rows.recomputed} positions were computed more than once (preemption, or drafts that "
                "were not accepted); the last is shown"
            )

    def _compare(
        self, rank: RankFiles, rows: RankRows, column: int, at: npt.NDArray[np.intp], target: int
    ) -> None:
        """Say where a rank's replicated rows are not those of the rank that was taken."""
        theirs, mine = rows.summaries.row_hash[:, column], self.summaries.row_hash[at, target]
        differ = (mine != theirs).any(axis=-1) & mine.any(axis=-1) & theirs.any(axis=-1)
        where = rows.positions[differ].tolist()
        if where:
            more = f" and {len(where) - 1} more" if len(where) > 1 else ""
            self.findings.append(
                f"rank {rank.name} differs from rank {self._filled_by[target]} at "
                f"{rank.sites[column].label()}, position {where[0]}{more}"
            )


def join_sites(tables: Sequence[Sequence[Site]]) -> list[Site]:
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
