"""Comparing the rows of all sites of a batch of positions: which hashes differ, and by how much.

Shapes: N rows (positions of a batch that are comparable), S compared sites. Sketches are read only for rows
whose hashes differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import local

import numpy as np

from ...schemas.trace import HASH_BYTES
from ..reading.load import Part, Trace
from ..reading.site_columns import GAP, SiteGroup, SiteReader
from .align import Run
from .site_plan import SitePlan

_BLOCK_BYTES = 640 << 10  # hashes of one side compared at a time: both sides stay in the L2 cache
_POSSIBLE = 8.0
"""Two rows are at most 2 apart in units of the longer one; no sketch of real rows says 4 times that."""
_SKETCHES = 1 << 16  # of one side that are read at a time


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
class _Side:
    """Where an extent lies in one trace."""

    group: SiteGroup
    first: int
    """Row of the group."""
    width: int
    """Sites in the file."""
    columns: np.ndarray | None
    """int64[S]: where the compared sites stand in the file, −1: nowhere. None: all, in their order."""

    def after(self, rows: int) -> _Side:
        """The location some rows further on."""
        return _Side(self.group, self.first + rows, self.width, self.columns)


@dataclass(frozen=True)
class _Extent:
    """Rows that are contiguous in one row group of both traces."""

    sides: tuple[_Side, _Side]
    row: int
    """Number of its first row in the batch."""
    count: int

    def cut(self, rows: int) -> Iterator[_Extent]:
        """The same in pieces of at most `rows` rows."""
        for done in range(0, self.count, rows):
            a, b = self.sides
            yield _Extent((a.after(done), b.after(done)), self.row + done, min(rows, self.count - done))


class SiteComparer:
    """Compares site rows of two traces. Thread-safe."""

    def __init__(self, a: Trace, b: Trace, plan: SitePlan) -> None:
        self._traces = a, b
        self._plan = plan
        self._by_sketch = plan.by_sketch if plan.by_sketch.any() else None
        self._readers = SiteReader(a), SiteReader(b)
        self._known_columns: dict[tuple[int, Path], np.ndarray | None] = {}
        self._local = local()
        widest = max(part.width for trace in (a, b) for part in trace.files)
        self._block_rows = max(_BLOCK_BYTES // (HASH_BYTES * widest), 1)

    def close(self) -> None:
        """Give the files back."""
        for reader in self._readers:
            reader.close()

    def compare(self, runs: list[Run]) -> SiteRows:
        """Compare the comparable rows of some runs; rows are numbered in the order of the runs."""
        n, s = sum(run.comparable for run in runs), len(self._plan.sites)
        by_sketch = self._by_sketch
        hashed = s if by_sketch is None else s - int(np.count_nonzero(by_sketch))
        compared, by_site = np.full(n, hashed, np.int32), np.full(s, n, np.int64)
        holes, first_hole = np.zeros(n, np.int32), np.full(n, s, np.int16)
        extents = list(self._extents(runs))
        found: list[np.ndarray] = []
        for block in (piece for extent in extents for piece in extent.cut(self._block_rows)):
            unlike, missing = self._unlike_packed(block) or self._unlike(block)
            found.append(unlike + np.int32(block.row * s))
            if missing is not None:
                rows = slice(block.row, block.row + block.count)
                lost = np.count_nonzero(missing, axis=1)
                holes[rows], first_hole[rows] = _holes(missing, lost)
                if by_sketch is not None:
                    lost = np.count_nonzero(missing & ~by_sketch, axis=1)
                compared[rows] -= lost.astype(np.int32)
                by_site -= np.count_nonzero(missing, axis=0)
        flat = np.concatenate(found) if found else np.empty(0, np.int32)
        row = flat // np.int32(s)
        site = flat - row * np.int32(s)
        drift, l2_a, l2_b = self._drift(extents, flat, row, site)
        by_hash = row
        if by_sketch is not None:
            # Rows of these sites are always unlike in their bits; they count where the sketches differ.
            kept = ~by_sketch[site] | (drift != 0)
            row, site, drift, l2_a, l2_b = row[kept], site[kept], drift[kept], l2_a[kept], l2_b[kept]
            by_hash = row[~by_sketch[site]]
            by_site[by_sketch] = 0
        first_site = np.full(n, -1, np.int16)
        first_site[row[::-1]] = site[::-1]  # the last assignment stays: the first site of each row
        return SiteRows(
            compared=compared,
            differing=np.bincount(by_hash, minlength=n).astype(np.int32),
            first_site=first_site,
            holes=holes,
            first_hole=first_hole,
            compared_by_site=by_site,
            row=row,
            site=site.astype(np.int16),
            rel_drift=drift,
            l2_a=l2_a,
            l2_b=l2_b,
        )

    def _extents(self, runs: list[Run]) -> Iterator[_Extent]:
        """The comparable rows of the runs; runs that follow each other in both traces are one extent."""
        spans: list[tuple[int, int, int]] = []
        for run in runs:
            if not run.comparable:
                continue
            row_a, row_b, count = spans[-1] if spans else (-1, -1, 0)
            if (row_a + count, row_b + count) == (run.row_a, run.row_b):
                spans[-1] = row_a, row_b, count + run.comparable
            else:
                spans.append((run.row_a, run.row_b, run.comparable))
        at = 0
        for row_a, row_b, count in spans:
            done = 0
            while done < count:
                a, left_a = self._side(0, row_a + done)
                b, left_b = self._side(1, row_b + done)
                size = min(left_a, left_b, count - done)
                yield _Extent((a, b), at, size)
                done += size
                at += size

    def _side(self, side: int, row: int) -> tuple[_Side, int]:
        """Where a row lies, and how many rows its group holds from there on."""
        trace = self._traces[side]
        number = trace.group_of(row)
        group, first = trace.groups[number], row - trace.groups[number].first_row
        opened = self._readers[side].group(number)
        return _Side(opened, first, group.part.width, self._columns(side, group.part)), group.rows - first

    def _columns(self, side: int, part: Part) -> np.ndarray | None:
        key = side, part.path
        if key not in self._known_columns:
            columns = part.columns_of[self._plan.of_b if side else self._plan.of_a]
            whole = part.width == len(columns) and np.array_equal(columns, np.arange(part.width))
            self._known_columns[key] = None if whole else columns
        return self._known_columns[key]

    def _unlike_packed(self, block: _Extent) -> tuple[np.ndarray, np.ndarray | None] | None:
        """As `_unlike`, where both sides are read in place and lack the same rows; None where they do not."""
        n, s = block.count, len(self._plan.sites)
        packed: list[tuple[np.ndarray, np.ndarray]] = []
        for name, side in zip("ab", block.sides, strict=True):
            if self._by_sketch is not None or side.columns is not None:
                return None
            scratch = self._scratch(name, (n * s, 2))
            found = side.group.packed_hashes(side.first, n, scratch)
            if found is None:
                return None
            packed.append(found)
        (a, absent), (b, absent_b) = packed
        if not np.array_equal(absent, absent_b):
            return None
        unlike = np.flatnonzero(_differ(a, b)).astype(np.int32)
        if not len(absent):
            return unlike, None
        before = absent - np.arange(len(absent), dtype=np.int32)  # packed hashes before each absent one
        unlike += np.searchsorted(before, unlike, side="right").astype(np.int32)
        missing = np.zeros((n, s), np.bool_)
        missing.reshape(-1)[absent] = True
        return unlike, missing

    def _unlike(self, block: _Extent) -> tuple[np.ndarray, np.ndarray | None]:
        """Which (row, site) of a block differ, and which a side lacks.

        Returns:
            int32, ascending: row × S + site; bool[n, S], or None where neither side lacks any.
        """
        n, s = block.count, len(self._plan.sites)
        a, missing_a = self._hashes("a", block.sides[0], n)
        b, missing_b = self._hashes("b", block.sides[1], n)
        unlike = _differ(a, b).reshape(n, s)
        missing = (
            missing_a if missing_b is None else missing_b if missing_a is None else missing_a | missing_b
        )
        if self._by_sketch is not None:
            unlike |= self._by_sketch
        if missing is not None:
            unlike &= ~missing
        return np.flatnonzero(unlike).astype(np.int32), missing

    def _hashes(self, name: str, side: _Side, n: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The hashes of n rows, uint64[n, S, 2], and which are missing, bool[n, S] (None: none is)."""
        if side.columns is None:
            hashes = self._scratch(name, (n, side.width, 2))
            present = side.group.hashes(side.first, hashes)
        else:
            whole = self._scratch(name, (n, side.width, 2))
            there = side.group.hashes(side.first, whole)
            hashes = whole[:, side.columns]
            present = np.broadcast_to(side.columns >= 0, (n, len(side.columns)))
            present = present if there is None else present & there[:, side.columns]
        return hashes, None if present is None else ~present

    def _scratch(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """uint64[shape] to write into: this thread's own, because fresh pages cost more than comparing."""
        known: dict[str, np.ndarray] = vars(self._local)
        size = math.prod(shape)
        if name not in known or known[name].size < size:
            known[name] = np.empty(max(size, 2 * self._block_rows * shape[1]), np.uint64)
        return known[name][:size].reshape(shape)

    def _drift(
        self, extents: list[_Extent], flat: np.ndarray, row: np.ndarray, site: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """‖S(a) − S(b)‖ / max(‖a‖, ‖b‖) and both norms at (row, site) pairs of a batch.

        `flat`: row × S + site, ascending.
        """
        l2 = np.empty((2, len(row)), np.float32)
        drift = np.full(len(row), np.nan, np.float32)
        begin = 0
        for extent in extents:
            stop = int(np.searchsorted(row, extent.row + extent.count))
            if stop == begin:
                continue
            steps = np.minimum(flat[begin + 1 : stop] - flat[begin : stop - 1], GAP)  # items read for each
            read = np.cumsum(steps, dtype=np.int64) // _SKETCHES
            for end in [*(begin + 2 + np.flatnonzero(read[1:] > read[:-1])).tolist(), stop]:
                at = slice(begin, end)
                self._measure(extent, row[at] - np.int32(extent.row), site[at], l2[:, at], drift[at])
                begin = end
        return drift, l2[0], l2[1]

    def _measure(
        self, extent: _Extent, row: np.ndarray, site: np.ndarray, l2: np.ndarray, drift: np.ndarray
    ) -> None:
        """Fill norms, float32[2, n], and drifts, float32[n], at n (row, site) pairs of an extent."""
        sketches: list[np.ndarray] = []
        for index, side in enumerate(extent.sides):
            sites = site if side.columns is None else side.columns[site]
            l2[index] = side.group.take("site_l2", row + side.first, sites)
            if self._plan.sketches:
                sketches.append(side.group.take("site_sketch", row + side.first, sites))
        if not sketches:
            return
        gap = sketches[0]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            gap -= sketches[1]
            distance = np.sqrt(np.einsum("ij,ij->i", gap, gap))
            drift[:] = distance / np.maximum(l2[0], l2[1])
            drift[distance == 0] = 0  # two rows of zeros can differ in their signs: no drift
            if not (drift <= _POSSIBLE).all() and np.any(~(drift <= _POSSIBLE) & np.isfinite(l2).all(axis=0)):
                for side in extent.sides:
                    side.group.check()


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which hashes differ, flat."""
    # Both halves of a hash at once: two booleans side by side, read as one 16-bit number.
    differ: np.ndarray = (a != b).reshape(-1).view(np.uint16) != 0
    return differ


def _holes(missing: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the missing sites of each row that something later may depend on, and find the first.

    `count`: the missing sites of each row.

    Sites missing at the END of the execution order (the head of a model that computes logits for the last
    prompt token only) feed nothing; a row that is missing as a whole (a cached prefix) feeds every later one.
    """
    s = missing.shape[1]
    first = missing.argmax(axis=1)
    holes = np.where((count < s) & (first == s - count), 0, count)  # 0: only the end is missing
    rows = np.flatnonzero((holes > 0) & (count < s))
    if len(rows):
        holes[rows] -= np.argmin(missing[rows, ::-1], axis=1)
    return holes.astype(np.int32), np.where(holes > 0, first, s).astype(np.int16)


def empty_site_rows(sites: int) -> SiteRows:
    """No rows of S sites."""
    whole, short, real = np.empty(0, np.int32), np.empty(0, np.int16), np.empty(0, np.float32)
    return SiteRows(
        whole, whole, short, whole, short, np.zeros(sites, np.int64), whole, short, real, real, real
    )
