"""Comparing the rows of all sites of a batch of positions: which hashes differ, and by how much.

Shapes: N rows (positions of a batch that are comparable), S compared sites. Sketches are read only for rows
whose hashes differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import local

import numpy as np

from ..schemas.trace import HASH_BYTES
from .align import Run
from .load import Trace
from .site_columns import SiteReader
from .site_plan import SitePlan

_BLOCK_BYTES = 640 << 10  # hashes of one side that are compared at a time: both sides stay in the L2 cache


@dataclass(frozen=True)
class SiteRows:
    """The differences of a batch, and what was compared in it."""

    compared: np.ndarray  # int32[N]: sites whose hash both traces have at the row
    differing: np.ndarray  # int32[N]: those whose hashes differ
    first_site: np.ndarray  # int16[N]: first differing site, by hash or by sketch; −1: none
    holes: np.ndarray  # int32[N]: sites that a side lacks though a later one is there (S: the whole row)
    first_hole: np.ndarray  # int16[N]: the first of them; S: none
    compared_by_site: np.ndarray  # int64[S]
    row: np.ndarray  # int32[D]: row in the batch of each difference, ascending
    site: np.ndarray  # int16[D]
    rel_drift: np.ndarray  # float32[D]; NaN where a row holds NaN or infinity
    l2_a: np.ndarray  # float32[D]
    l2_b: np.ndarray  # float32[D]


@dataclass(frozen=True)
class _Extent:
    """Rows that are contiguous in one row group of both traces."""

    group_a: int
    first_a: int
    group_b: int
    first_b: int
    count: int


class SiteComparer:
    """Compares site rows of two traces. Thread-safe."""

    def __init__(self, a: Trace, b: Trace, plan: SitePlan) -> None:
        self._traces = a, b
        self._plan = plan
        self._readers = SiteReader(a), SiteReader(b)
        self._local = local()
        self._block_rows = max(_BLOCK_BYTES // (HASH_BYTES * max(len(plan.sites), 1)), 1)

    def close(self) -> None:
        """Give the files back."""
        for reader in self._readers:
            reader.close()

    def compare(self, runs: list[Run]) -> SiteRows:
        """Compare the comparable rows of some runs; rows are numbered in the order of the runs."""
        blocks: list[SiteRows] = []
        total = 0
        for extents in self._blocks(runs):
            blocks.append(self._block(extents, total))
            total += sum(extent.count for extent in extents)
            if len(blocks[-1].row):
                self._forget(extents)
        if not blocks:
            return nothing(len(self._plan.sites))
        if len(blocks) == 1:
            return blocks[0]
        joined = {
            name: np.concatenate([getattr(block, name) for block in blocks])
            for name in SiteRows.__dataclass_fields__
            if name != "compared_by_site"
        }
        return SiteRows(
            **joined, compared_by_site=np.sum([block.compared_by_site for block in blocks], axis=0)
        )

    def _forget(self, extents: list[_Extent]) -> None:
        for extent in extents:
            self._readers[0].group(extent.group_a).forget(extent.first_a, extent.count)
            self._readers[1].group(extent.group_b).forget(extent.first_b, extent.count)

    def _blocks(self, runs: list[Run]) -> list[list[_Extent]]:
        """Extents in order, gathered into blocks of `_block_rows` rows."""
        blocks: list[list[_Extent]] = []
        room = 0
        a, b = self._traces
        for run in runs:
            done = 0
            while done < run.comparable:
                if not room:
                    blocks.append([])
                    room = self._block_rows
                count = min(run.comparable - done, room)
                group_a, group_b = a.group_of(run.row_a), b.group_of(run.row_b)
                first_a = run.row_a + done - a.groups[group_a].first_row
                first_b = run.row_b + done - b.groups[group_b].first_row
                blocks[-1].append(_Extent(group_a, first_a, group_b, first_b, count))
                done += count
                room -= count
        return blocks

    def _block(self, extents: list[_Extent], first_row: int) -> SiteRows:
        n, s = sum(extent.count for extent in extents), len(self._plan.sites)
        a, missing_a = self._hashes(0, extents, n)
        b, missing_b = self._hashes(1, extents, n)
        # Both halves of a hash at once: two booleans side by side, read as one 16-bit number.
        unlike = (a != b).reshape(n, 2 * s).view(np.uint16) != 0
        missing = (
            missing_a if missing_b is None else missing_b if missing_a is None else missing_a | missing_b
        )
        by_sketch = self._plan.by_sketch if self._plan.by_sketch.any() else None
        if by_sketch is not None:
            unlike |= by_sketch
        if missing is not None:
            unlike &= ~missing
        flat = np.flatnonzero(unlike).astype(np.int32)
        row = flat // s
        site = flat - row * s
        drift, l2_a, l2_b = self._drift(extents, row, site)
        by_hash = row
        if by_sketch is not None:
            # Rows of these sites are always unlike in their bits; they count where the sketches differ.
            kept = ~by_sketch[site] | (drift != 0)
            row, site, drift, l2_a, l2_b = row[kept], site[kept], drift[kept], l2_a[kept], l2_b[kept]
            by_hash = row[~by_sketch[site]]
        first_site = np.full(n, -1, np.int16)
        first_site[row[::-1]] = site[::-1]  # the last assignment stays: the first site of each row
        hashed = s if by_sketch is None else s - int(np.count_nonzero(by_sketch))
        compared, by_site = np.full(n, hashed, np.int32), np.full(s, n, np.int64)
        holes, first_hole = np.zeros(n, np.int32), np.full(n, s, np.int16)
        if missing is not None:
            lost = missing if by_sketch is None else missing & ~by_sketch
            compared -= np.count_nonzero(lost, axis=1).astype(np.int32)
            by_site -= np.count_nonzero(missing, axis=0)
            holes, first_hole = _holes(missing)
        if by_sketch is not None:
            by_site[by_sketch] = 0
        return SiteRows(
            compared=compared,
            differing=np.bincount(by_hash, minlength=n).astype(np.int32),
            first_site=first_site,
            holes=holes,
            first_hole=first_hole,
            compared_by_site=by_site,
            row=row + np.int32(first_row),
            site=site.astype(np.int16),
            rel_drift=drift,
            l2_a=l2_a,
            l2_b=l2_b,
        )

    def _scratch(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """uint64[shape] to write into: this thread's own, because fresh pages cost more than comparing."""
        known: dict[str, np.ndarray] = vars(self._local)
        size = int(np.prod(shape))
        if name not in known or known[name].size < size:
            known[name] = np.empty(max(size, 2 * self._block_rows * shape[1]), np.uint64)
        return known[name][:size].reshape(shape)

    def _hashes(self, side: int, extents: list[_Extent], n: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The hashes of a block, uint64[N, S, 2], and which are missing, bool[N, S] (None: none is)."""
        reader, trace = self._readers[side], self._traces[side]
        wanted = self._plan.of_b if side else self._plan.of_a
        hashes = self._scratch("ab"[side], (n, len(wanted), 2))
        missing: np.ndarray | None = None
        at = 0
        for extent in extents:
            number, first = (extent.group_b, extent.first_b) if side else (extent.group_a, extent.first_a)
            part = trace.groups[number].part
            columns = part.columns_of[wanted]
            rows = slice(at, at + extent.count)
            group = reader.group(number)
            if part.width == len(wanted) and np.array_equal(columns, np.arange(part.width)):
                present = group.hashes(first, hashes[rows])
            else:
                whole = np.empty((extent.count, part.width, 2), np.uint64)
                there = group.hashes(first, whole)
                hashes[rows] = whole[:, columns]
                present = np.broadcast_to(columns >= 0, (extent.count, len(wanted)))
                present = present if there is None else present & there[:, columns]
                present = None if present.all() else present
            if present is not None:
                if missing is None:
                    missing = np.zeros((n, len(wanted)), np.bool_)
                missing[rows] = ~present
            at += extent.count
        return hashes, missing

    def _drift(
        self, extents: list[_Extent], row: np.ndarray, site: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """‖S(a) − S(b)‖ / max(‖a‖, ‖b‖) and both norms at (row, site) pairs of a block; rows ascending."""
        l2_a, l2_b = np.empty(len(row), np.float32), np.empty(len(row), np.float32)
        distance = np.full(len(row), np.nan, np.float32)
        first = begin = 0
        for extent in extents:
            end = int(np.searchsorted(row, first + extent.count))
            if end > begin:
                at = slice(begin, end)
                inside = row[at] - first
                l2_a[at] = self._take(0, "site_l2", extent, inside, site[at])
                l2_b[at] = self._take(1, "site_l2", extent, inside, site[at])
                if self._plan.sketches:
                    gap = self._take(0, "site_sketch", extent, inside, site[at])
                    with np.errstate(invalid="ignore", over="ignore"):
                        gap -= self._take(1, "site_sketch", extent, inside, site[at])
                        distance[at] = np.sqrt(np.einsum("ij,ij->i", gap, gap))
            begin = end
            first += extent.count
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            drift = distance / np.maximum(l2_a, l2_b)
        drift[distance == 0] = 0  # two rows of zeros can differ in their signs: no drift
        return drift, l2_a, l2_b

    def _take(
        self, side: int, column: str, extent: _Extent, rows: np.ndarray, sites: np.ndarray
    ) -> np.ndarray:
        number, first = (extent.group_b, extent.first_b) if side else (extent.group_a, extent.first_a)
        wanted = self._plan.of_b if side else self._plan.of_a
        columns = self._traces[side].groups[number].part.columns_of[wanted]
        return self._readers[side].group(number).take(column, rows + first, columns[sites])


def _holes(missing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the missing sites of each row that something later may depend on, and find the first.

    Sites missing at the END of the execution order (the head of a model that computes logits for the last
    prompt token only) feed nothing; a row that is missing as a whole (a cached prefix) feeds every later one.
    """
    s = missing.shape[1]
    count = np.count_nonzero(missing, axis=1)
    tail = np.where(count < s, np.argmin(missing[:, ::-1], axis=1), 0)
    holes = count - tail
    return holes.astype(np.int32), np.where(holes > 0, missing.argmax(axis=1), s).astype(np.int16)


def nothing(sites: int) -> SiteRows:
    """No rows of S sites."""
    whole, short, real = np.empty(0, np.int32), np.empty(0, np.int16), np.empty(0, np.float32)
    return SiteRows(
        whole, whole, short, whole, short, np.zeros(sites, np.int64), whole, short, real, real, real
    )
