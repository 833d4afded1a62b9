"""Reading the site columns of a trace by row number and site.

Values are taken straight from the file where its layout allows it (pages.py) and decoded with pyarrow where
a different tool has rewritten the file; both give the same values.
"""

from __future__ import annotations

import os
from itertools import pairwise
from threading import Lock, local
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import BadInput
from ...schemas.trace import HASH_BYTES, SKETCH_SIZE
from .columns import check_column
from .load import DAMAGE, Group, Part, Trace, damaged, open_parquet
from .pages import PlainPage, plain_page

_WINDOW_ROWS = 1024
_OPEN_GROUPS = 2
GAP = 800
"""Unwanted items between two wanted ones that are read with them, because a second read would take longer."""
_ITEM_BYTES = {"site_hash": HASH_BYTES, "site_l2": 4, "site_sketch": 4 * SKETCH_SIZE}


class SiteGroup(Protocol):
    """The site columns of one row group; rows are counted from its start, sites as in the file."""

    def hashes(self, first: int, into: np.ndarray) -> np.ndarray | None:
        """Fill uint64[rows, width, 2] from row `first` on; bool[rows, width]: which are there (None: all)."""
        ...

    def packed_hashes(self, first: int, rows: int, into: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The hashes that are there, one behind the other, and which are not; None: not in place here.

        Args:
            first: The first row.
            rows: How many.
            into: uint64[rows × width, 2] to read into.

        Returns:
            uint64[n, 2], the beginning of `into`; int32, ascending: absent items, counted from row `first`.
        """
        ...

    def take(self, column: str, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """float32[n, 16] (`site_sketch`) or float32[n] (`site_l2`) at n (row, site) pairs; rows ascending."""
        ...

    def check(self) -> None:
        """Compare norms and sketches with their checksums. BadInput: they are not what was written."""
        ...


class SiteReader:
    """Gives the site columns of each row group by the fastest way that its layout allows."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._open: dict[int, SiteGroup] = {}
        self._files = {id(part): _File(part) for part in trace.files}
        self._lock = Lock()

    def group(self, number: int) -> SiteGroup:
        """The site columns of row group `number`."""
        with self._lock:
            if number not in self._open:
                while len(self._open) >= _OPEN_GROUPS:
                    self._open.pop(next(iter(self._open)))
                group = self.trace.groups[number]
                opened = self._files[id(group.part)]
                self._open[number] = opened.group(group) or DecodedGroup(group)
            return self._open[number]

    def close(self) -> None:
        """Give the files back."""
        self._open.clear()
        for opened in self._files.values():
            opened.close()


class _File:
    """One open file of a trace, with what is needed to find its plain pages."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.descriptor = os.open(part.path, os.O_RDONLY)
        self._local = local()
        arrow = part.file.schema_arrow
        self.fixed = part.width > 0 and all(
            pa.types.is_fixed_size_list(arrow.field(name).type)
            and arrow.field(name).type.list_size * arrow.field(name).type.value_type.bit_width
            == part.width * size * 8
            for name, size in _ITEM_BYTES.items()
        )

    def scratch(self, name: str, size: int) -> np.ndarray:
        """float32[size] to read into: this thread's own, because fresh pages cost more than reading."""
        known: dict[str, np.ndarray] = vars(self._local)
        if name not in known or known[name].size < size:
            known[name] = np.empty(2 * size, np.float32)
        return known[name][:size]

    def group(self, group: Group) -> DirectGroup | None:
        """The row group in place, or None where one of its columns has a different layout."""
        if not self.fixed:
            return None
        pages: dict[str, PlainPage] = {}
        meta = self.part.file.metadata.row_group(group.index)
        for name, size in _ITEM_BYTES.items():
            leaf, levels = self.part.leaves[name]
            width = self.part.width * (SKETCH_SIZE if name == "site_sketch" else 1)
            item = size // SKETCH_SIZE if name == "site_sketch" else size
            page = plain_page(self.descriptor, meta.column(leaf), group.rows, width, item, levels)
            if page is None or (name != "site_hash" and len(page.absent)):
                return None
            pages[name] = page
        return DirectGroup(self, group, pages)

    def close(self) -> None:
        os.close(self.descriptor)


class DirectGroup:
    """Site columns read in place."""

    def __init__(self, opened: _File, group: Group, pages: dict[str, PlainPage]) -> None:
        self._file = opened
        self._group = group
        self._pages = pages
        self._absent = pages["site_hash"].absent
        lost = np.bincount(self._absent // opened.part.width, minlength=group.rows)
        self._counts = opened.part.width - lost  # hashes in each row
        self._before = np.concatenate([[0], np.cumsum(self._counts)])  # hashes before each row

    def hashes(self, first: int, into: np.ndarray) -> np.ndarray | None:
        """As `SiteGroup.hashes`."""
        offset, width, stop = self._pages["site_hash"].offset, into.shape[1], first + len(into)
        counts, before = self._counts[first:stop], self._before[first : stop + 1]
        if before[-1] - before[0] == len(into) * width:
            self._fill(into, offset + int(before[0]) * HASH_BYTES)
            return None
        present = np.ones(into.shape[:2], np.bool_)
        present.reshape(-1)[self._absent_in(first, stop)] = False
        # Rows that hold equally many hashes lie together: whole ones are read where they belong.
        edges = [0, *(np.flatnonzero(counts[1:] != counts[:-1]) + 1).tolist(), len(into)]
        for start, end in pairwise(edges):
            count, begin = int(counts[start]), offset + int(before[start]) * HASH_BYTES
            if count == width:
                self._fill(into[start:end], begin)
                continue
            values = np.empty((end - start, count, 2), np.uint64)
            self._fill(values, begin)
            into[start:end] = 0
            into[start:end][present[start:end]] = values.reshape(-1, 2)
        return present

    def packed_hashes(self, first: int, rows: int, into: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `SiteGroup.packed_hashes`."""
        begin, end = int(self._before[first]), int(self._before[first + rows])
        values = into[: end - begin]
        self._fill(values, self._pages["site_hash"].offset + begin * HASH_BYTES)
        return values, self._absent_in(first, first + rows)

    def _absent_in(self, first: int, stop: int) -> np.ndarray:
        """The absent items of some rows, counted from the first of them."""
        width = self._file.part.width
        low, high = np.searchsorted(self._absent, (first * width, stop * width))
        return self._absent[low:high] - np.int32(first * width)

    def _fill(self, into: np.ndarray, offset: int) -> None:
        if into.nbytes and os.preadv(self._file.descriptor, [into.data], offset) != into.nbytes:
            raise self._truncated()

    def _truncated(self) -> BadInput:
        return BadInput(f"{self._file.part.path} is truncated", "copy it again, or repeat the replay")

    def take(self, column: str, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """As `SiteGroup.take`."""
        wanted = rows * np.int32(self._file.part.width) + sites
        steps = wanted[1:] - wanted[:-1]
        if not (steps < 0).any():
            found = self._read(column, wanted, steps)
        else:  # the file has its sites in a different order
            order = wanted.argsort()
            wanted = wanted[order]
            found = np.empty((len(wanted), _ITEM_BYTES[column] // 4), np.float32)
            found[order] = self._read(column, wanted, wanted[1:] - wanted[:-1])
        return found if column == "site_sketch" else found[:, 0]

    def check(self) -> None:
        """As `SiteGroup.check`."""
        for column in ("site_l2", "site_sketch"):
            check_column(self._file.descriptor, self._group, column)

    def _read(self, column: str, wanted: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """float32[n, k] at n items, int32 ascending, `steps` apart: one read for each run of near ones."""
        n, size, offset = len(wanted), _ITEM_BYTES[column], self._pages[column].offset
        edges = np.concatenate([[0], np.flatnonzero(steps > GAP) + 1, [n]])  # of the runs
        starts, lengths = wanted[edges[:-1]], wanted[edges[1:] - 1] + 1 - wanted[edges[:-1]]
        position = np.cumsum(lengths) - lengths  # of each run among what is read
        values = self._file.scratch(column, int(lengths.sum()) * size // 4).reshape(-1, size // 4)
        for start, length, at in zip(starts.tolist(), lengths.tolist(), position.tolist(), strict=True):
            self._fill(values[at : at + length], offset + start * size)
        if len(values) == n:
            return values
        found: np.ndarray = values.take(wanted + np.repeat(position - starts, edges[1:] - edges[:-1]), axis=0)
        return found


class DecodedGroup:
    """Site columns decoded by pyarrow, a window of rows at a time; made for reading forward."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._lock = Lock()
        self._windows: dict[str, _Window] = {}

    def hashes(self, first: int, into: np.ndarray) -> np.ndarray | None:
        """As `SiteGroup.hashes`."""
        present = np.ones(into.shape[:2], np.bool_)
        for start, array in self._arrays("site_hash", first, len(into)):
            at = slice(start, start + len(array))
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
            flat = array.flatten().cast(pa.binary(HASH_BYTES))
            full = lengths == into.shape[1]
            if not np.all(full | (lengths == 0)):
                raise BadInput(f"{self._group.part.path}: site lists of several lengths", "repeat the replay")
            valid = flat.is_valid().to_numpy(zero_copy_only=False).reshape(-1, into.shape[1])
            raw = np.frombuffer(flat.buffers()[1], np.uint64)[2 * flat.offset : 2 * (flat.offset + len(flat))]
            values = np.zeros((len(array), into.shape[1], 2), np.uint64)
            values[full] = raw.reshape(-1, into.shape[1], 2)
            there = np.zeros((len(array), into.shape[1]), np.bool_)
            there[full] = valid
            values[~there] = 0
            into[at], present[at] = values, there
        return None if present.all() else present

    def packed_hashes(self, first: int, rows: int, into: np.ndarray) -> None:
        """None: they are decoded."""

    def take(self, column: str, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """As `SiteGroup.take`."""
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        pieces = [
            array.flatten().to_numpy(zero_copy_only=False) for _, array in self._arrays(column, first, count)
        ]
        shape = (count, self._group.part.width, *([SKETCH_SIZE] if column == "site_sketch" else []))
        values = np.concatenate(pieces).astype(np.float32, copy=False)
        if values.size != np.prod(shape):
            raise BadInput(f"{self._group.part.path}: {column} lists of several lengths", "repeat the replay")
        found: np.ndarray = values.reshape(shape)[rows - first, sites]
        return found

    def check(self) -> None:
        """As `SiteGroup.check`: pyarrow has checked what it decoded."""

    def _arrays(self, column: str, first: int, count: int) -> list[tuple[int, pa.Array]]:
        with self._lock:
            window = self._windows.get(column)
            if window is None or first < window.first:
                window = self._windows[column] = _Window(self._group, column)
            return window.slices(first, count)


class _Window:
    """A forward cursor over one column of one row group that keeps the rows that were read last."""

    def __init__(self, group: Group, column: str) -> None:
        self._part = group.part
        # A file of its own: two cursors over one would share its position.
        file = open_parquet(group.part.path, buffer_size=1 << 20)
        self._batches = file.iter_batches(_WINDOW_ROWS, [group.index], [column], use_threads=False)
        self._kept: list[tuple[int, pa.Array]] = []
        self._next = 0

    @property
    def first(self) -> int:
        """The first row that can still be had."""
        return self._kept[0][0] if self._kept else self._next

    def slices(self, first: int, count: int) -> list[tuple[int, pa.Array]]:
        """(offset in the answer, rows) pieces that make up rows `first` to `first + count`."""
        self._kept = [(start, array) for start, array in self._kept if start + len(array) > first]
        try:
            while self._next < first + count:
                array = next(self._batches).column(0)
                if self._next + len(array) > first:
                    self._kept.append((self._next, array))
                self._next += len(array)
        except DAMAGE as error:
            raise damaged(self._part.path, error) from None
        except StopIteration:
            raise damaged(self._part.path, ValueError("rows are missing")) from None
        found: list[tuple[int, pa.Array]] = []
        for start, array in self._kept:
            low, high = max(first, start), min(first + count, start + len(array))
            if low < high:
                found.append((low - first, array.slice(low - start, high - low)))
        return found
