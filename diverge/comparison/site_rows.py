"""Reading site rows of one trace by sequence and position, for the few that a diagnosis needs."""

from __future__ import annotations

from typing import Self

import numpy as np

from ...schemas.trace import SKETCH_SIZE
from ..reading.load import Trace
from ..reading.site_columns import SiteReader
from .align import IndexedSequence, Pair, row_of
from .site_plan import SitePlan

Both = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""What `SiteRowReader` gives, of A and of B."""


class PairRowReader:
    """Site columns of both sides of pairs. Use as a context manager."""

    def __init__(self, a: Trace, b: Trace, plan: SitePlan) -> None:
        self.a, self.b = SiteRowReader(a, plan.of_a), SiteRowReader(b, plan.of_b)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.a.close()
        self.b.close()

    def hashes(self, pair: Pair, start: int, stop: int) -> Both:
        """Of positions `start` to `stop`."""
        return self.a.hashes(pair.a, start, stop), self.b.hashes(pair.b, start, stop)

    def column(self, pair: Pair, positions: np.ndarray, site: int) -> Both:
        """Of one site at some positions, which are ascending."""
        return self.a.column(pair.a, positions, site), self.b.column(pair.b, positions, site)

    def sketches(self, pair: Pair, position: int, sites: np.ndarray) -> Both:
        """Of some sites of one row."""
        return self.a.sketches(pair.a, position, sites), self.b.sketches(pair.b, position, sites)


class SiteRowReader:
    """Site columns of one trace by sequence and position, in the order of the plan."""

    def __init__(self, trace: Trace, columns: np.ndarray) -> None:
        self._trace, self._columns = trace, columns
        self._reader = SiteReader(trace)

    def close(self) -> None:
        self._reader.close()

    def hashes(self, sequence: IndexedSequence, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """uint64[P, S, 2] and bool[P, S]: which are there."""
        size = len(self._columns)
        found = np.zeros((stop - start, size, 2), np.uint64)
        there = np.zeros((stop - start, size), np.bool_)
        rows = [row_of(self._trace, sequence, position) for position in range(start, stop)]
        at = 0
        while at < len(rows):
            if rows[at] < 0:
                at += 1
                continue
            number = self._trace.group_of(rows[at])
            group = self._trace.groups[number]
            count = 1
            while (
                at + count < len(rows) and rows[at + count] == rows[at] + count < group.first_row + group.rows
            ):
                count += 1
            columns = group.part.columns_of[self._columns]
            whole = np.zeros((count, group.part.width, 2), np.uint64)
            present = self._reader.group(number).hashes(rows[at] - group.first_row, whole)
            here = slice(at, at + count)
            found[here] = whole[:, columns]
            there[here] = (columns >= 0) & (True if present is None else present[:, columns])
            at += count
        return found, there

    def column(
        self, sequence: IndexedSequence, positions: np.ndarray, site: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """float32[n, 16] sketches and float32[n] norms of one site at n positions, which are ascending."""
        rows = np.array([row_of(self._trace, sequence, int(position)) for position in positions])
        groups = np.array([self._trace.group_of(int(row)) for row in rows])
        sketches, norms = np.zeros((len(rows), SKETCH_SIZE), np.float32), np.zeros(len(rows), np.float32)
        for number in np.unique(groups).tolist():
            here = groups == number
            group = self._trace.groups[number]
            inside = rows[here] - group.first_row
            columns = np.full(len(inside), group.part.columns_of[self._columns[site]])
            reader = self._reader.group(number)
            norms[here] = reader.take("site_l2", inside, columns)
            sketches[here] = reader.take("site_sketch", inside, columns)
        return sketches, norms

    def sketches(
        self, sequence: IndexedSequence, position: int, sites: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """float32[n, 16] sketches and float32[n] norms of n sites of one row."""
        row = row_of(self._trace, sequence, position)
        number = self._trace.group_of(row)
        group = self._trace.groups[number]
        columns = group.part.columns_of[self._columns[sites]]
        rows = np.full(len(columns), row - group.first_row)
        reader = self._reader.group(number)
        norms = reader.take("site_l2", rows, columns).copy()  # what is read next may overwrite it
        return reader.take("site_sketch", rows, columns).copy(), norms
