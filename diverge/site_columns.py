"""Reading the site columns of a trace by row number and site.

Values are taken straight from the file where its layout allows it (pages.py) and decoded with pyarrow where
another tool has rewritten the file; both give the same values.
"""

from __future__ import annotations

import mmap
import os
from itertools import pairwise
from threading import Lock
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..schemas.errors import BadInput
from ..schemas.trace import HASH_BYTES, SKETCH_SIZE
from .columns import damaged
from .load import Group, Part, Trace
from .pages import PlainPage, plain_page

_WINDOW_ROWS = 1024
_ITEM_BYTES = {"site_hash": HASH_BYTES, "site_l2": 4, "site_sketch": 4 * SKETCH_SIZE}


class SiteGroup(Protocol):
    """The site columns of one row group; rows are counted from its start, sites as in the file."""

    def hashes(self, first: int, into: np.ndarray) -> np.ndarray | None:
        """Fill uint64[rows, width, 2] from row `first` on; bool[rows, width]: which are there (None: all)."""
        ...

    def take(self, column: str, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """float32[n, 16] (`site_sketch`) or float32[n] (`site_l2`) at n (row, site) pairs; rows ascending."""
        ...

    def forget(self, first: int, count: int) -> None:
        """Let go of what reading these rows has left in memory."""
        ...


class SiteReader:
    """Gives the site columns of each row group by the fastest way that its layout allows."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._open: dict[int, SiteGroup] = {}
        self._files = {id(part): _Mapped(part) for part in trace.parts()}
        self._lock = Lock()

    def group(self, number: int) -> SiteGroup:
        """The site columns of row group `number`."""
        with self._lock:
            if number not in self._open:
                while len(self._open) >= 8:
                    self._open.pop(next(iter(self._open)))
                group = self.trace.groups[number]
                mapped = self._files[id(group.part)]
                self._open[number] = mapped.group(group) or DecodedGroup(group)
            return self._open[number]

    def close(self) -> None:
        """Give the files back."""
        self._open.clear()
        for mapped in self._files.values():
            mapped.close()


class _Mapped:
    """One file of a trace, mapped, with what is needed to find its plain pages."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.descriptor = os.open(part.path, os.O_RDONLY)
        self.map = mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ)
        self.bytes = np.frombuffer(self.map, np.uint8)
        schema, arrow = part.file.schema, part.file.schema_arrow
        self.leaves = {schema.column(i).path.partition(".")[0]: i for i in range(len(schema))}
        self.fixed = part.width > 0 and all(
            pa.types.is_fixed_size_list(arrow.field(name).type)
            and arrow.field(name).type.list_size * arrow.field(name).type.value_type.bit_width
            == part.width * size * 8
            for name, size in _ITEM_BYTES.items()
        )

    def group(self, group: Group) -> DirectGroup | None:
        """The row group in place, or None where one of its columns has another layout."""
        if not self.fixed:
            return None
        pages: dict[str, PlainPage] = {}
        meta = self.part.file.metadata.row_group(group.index)
        for name, size in _ITEM_BYTES.items():
            leaf = self.leaves[name]
            column = self.part.file.schema.column(leaf)
            width = self.part.width * (SKETCH_SIZE if name == "site_sketch" else 1)
            levels = column.max_definition_level, column.max_repetition_level
            item = size // SKETCH_SIZE if name == "site_sketch" else size
            page = plain_page(self.descriptor, meta.column(leaf), group.rows, width, item, levels)
            if page is None or (name != "site_hash" and page.present is not None):
                return None
            pages[name] = page
        return DirectGroup(self, group.rows, pages)

    def forget(self, offset: int, size: int) -> None:
        """Unmap pages, so that resident memory does not grow with the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            self.map.madvise(mmap.MADV_DONTNEED, start, offset + size - start)

    def close(self) -> None:
        del self.bytes
        os.close(self.descriptor)


class DirectGroup:
    """Site columns read in place."""

    def __init__(self, mapped: _Mapped, rows: int, pages: dict[str, PlainPage]) -> None:
        self._mapped = mapped
        self._rows = rows
        self._pages = pages
        present = pages["site_hash"].present
        self._present = present
        if present is not None:
            counts = np.count_nonzero(present, axis=1)
            self._before = np.concatenate([[0], np.cumsum(counts)])  # values before each row

    def hashes(self, first: int, into: np.ndarray) -> np.ndarray | None:
        """As `SiteGroup.hashes`."""
        offset, width, stop = self._pages["site_hash"].offset, into.shape[1], first + len(into)
        if self._present is None:
            self._fill(into, offset + first * width * HASH_BYTES)
            return None
        present, before = self._present[first:stop], self._before[first : stop + 1]
        counts = np.diff(before)
        # Rows that hold equally many hashes lie together: whole ones are read where they belong.
        edges = [0, *(np.flatnonzero(counts[1:] != counts[:-1]) + 1).tolist(), len(into)]
        for start, end in pairwise(edges):
            count, place = int(counts[start]), offset + int(before[start]) * HASH_BYTES
            if count == width:
                self._fill(into[start:end], place)
                continue
            values = np.empty((end - start, count, 2), np.uint64)
            self._fill(values, place)
            into[start:end] = 0
            into[start:end][present[start:end]] = values.reshape(-1, 2)
        return None if before[-1] - before[0] == present.size else present

    def _fill(self, into: np.ndarray, offset: int) -> None:
        if into.nbytes and os.preadv(self._mapped.descriptor, [into.data], offset) != into.nbytes:
            raise BadInput(f"{self._mapped.part.path} is truncated", "copy it again, or replay again")

    def take(self, column: str, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """As `SiteGroup.take`."""
        item, width = _ITEM_BYTES[column], self._mapped.part.width
        offset = self._pages[column].offset
        # Bytes, because the values need not lie on a multiple of four in the file.
        items = self._mapped.bytes[offset : offset + self._rows * width * item].reshape(-1, item)
        taken: np.ndarray = np.take(items, rows * width + sites, axis=0, mode="clip").view(np.float32)
        return taken if column == "site_sketch" else taken[:, 0]

    def forget(self, first: int, count: int) -> None:
        """As `SiteGroup.forget`."""
        for column in ("site_l2", "site_sketch"):
            item = self._mapped.part.width * _ITEM_BYTES[column]
            self._mapped.forget(self._pages[column].offset + first * item, count * item)


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
                raise BadInput(f"{self._group.part.path}: site lists of several lengths", "replay again")
            valid = flat.is_valid().to_numpy(zero_copy_only=False).reshape(-1, into.shape[1])
            raw = np.frombuffer(flat.buffers()[1], np.uint64)[2 * flat.offset : 2 * (flat.offset + len(flat))]
            values = np.zeros((len(array), into.shape[1], 2), np.uint64)
            values[full] = raw.reshape(-1, into.shape[1], 2)
            there = np.zeros((len(array), into.shape[1]), np.bool_)
            there[full] = valid
            values[~there] = 0
            into[at], present[at] = values, there
        return None if present.all() else present

    def take(self, column: str, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """As `SiteGroup.take`."""
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        pieces = [
            array.flatten().to_numpy(zero_copy_only=False) for _, array in self._arrays(column, first, count)
        ]
        shape = (count, self._group.part.width, *([SKETCH_SIZE] if column == "site_sketch" else []))
        values = np.concatenate(pieces).astype(np.float32, copy=False)
        if values.size != np.prod(shape):
            raise BadInput(f"{self._group.part.path}: {column} lists of several lengths", "replay again")
        found: np.ndarray = values.reshape(shape)[rows - first, sites]
        return found

    def forget(self, first: int, count: int) -> None:
        """As `SiteGroup.forget`: a window lets go by itself."""

    def _arrays(self, column: str, first: int, count: int) -> list[tuple[int, pa.Array]]:
        with self._lock:
            window = self._windows.get(column)
            if window is None or first < window.first:
                window = self._windows[column] = _Window(self._group, column)
            return window.slices(first, count)


class _Window:
    """A forward cursor over one column of one row group that keeps the rows last asked for."""

    def __init__(self, group: Group, column: str) -> None:
        self._part = group.part
        # A file of its own: two cursors over one would share its position.
        file = pq.ParquetFile(group.part.path, pre_buffer=False, buffer_size=1 << 20)
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
        except (pa.ArrowInvalid, OSError) as error:
            raise damaged(self._part, error) from None
        except StopIteration:
            raise damaged(self._part, ValueError("rows are missing")) from None
        found: list[tuple[int, pa.Array]] = []
        for start, array in self._kept:
            low, high = max(first, start), min(first + count, start + len(array))
            if low < high:
                found.append((low - first, array.slice(low - start, high - low)))
        return found
