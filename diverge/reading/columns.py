"""Reading the small columns of a trace by row number, with a few decoded row groups kept."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from ...schemas.trace import SITE_COLUMNS, arrow_schema
from .load import DAMAGE, Candidates, Group, Lists, Part, Trace, damaged, open_parquet
from .pages import PlainLists, check_chunk, plain_lists

if TYPE_CHECKING:
    import pyarrow.parquet as pq


_CACHE_BYTES = 4 << 20
_KNOWN_LENGTHS = 8
TOPK_COLUMNS = ("topk_ids", "topk_logits", "topk_logprobs")

Value = TypeVar("Value")

Extent = tuple[int, int]
"""First row in the trace (−1: rows that the trace does not have) and how many rows."""


class _Kept(Generic[Value]):
    """What was read of the last row groups, up to some bytes. Thread-safe."""

    def __init__(self, size: Callable[[Value], int]) -> None:
        self._size = size
        self._groups: OrderedDict[int, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, number: int, read: Callable[[], Value]) -> Value:
        """The value of a row group, read if it is not kept."""
        with self._lock:
            found = self._groups.get(number)
            if found is not None:
                self._groups.move_to_end(number)
                return found[0]
        value = read()
        with self._lock:
            self._groups[number] = value, self._size(value)
            while len(self._groups) > 1 and sum(size for _, size in self._groups.values()) > _CACHE_BYTES:
                self._groups.popitem(last=False)
        return value


class RowReader:
    """The small columns of a trace by row number. Thread-safe."""

    def __init__(self, trace: Trace, columns: list[str]) -> None:
        self.trace = trace
        self.columns = columns
        wanted = _small_columns()
        self._schema = pa.schema([wanted.field(name) for name in columns])
        # Shared by all readers of these columns: a diagnosis reads single rows many times.
        self._kept: _Kept[pa.Table] = trace.kept.setdefault(tuple(columns), _Kept(lambda table: table.nbytes))
        self._handles = local()  # a Parquet file object is not made for several threads

    def read(self, extents: list[Extent]) -> pa.Table:
        """The rows of the extents, one after the other; nulls for rows that the trace does not have."""
        pieces: list[pa.Table] = []
        for number, start, count in split(self.trace, extents):
            if number is None:
                nulls = [pa.nulls(count, self._schema.field(name).type) for name in self.columns]
                pieces.append(pa.table(nulls, self.columns))
            else:
                pieces.append(self.group(number).slice(start, count))
        if not pieces:
            return self._schema.empty_table()
        return pa.concat_tables(pieces).combine_chunks() if len(pieces) > 1 else pieces[0]

    def group(self, number: int) -> pa.Table:
        """All rows of a row group."""
        return self._kept.get(number, lambda: self._decode(self.trace.groups[number]))

    def _as_written(self, table: pa.Table) -> pa.Table:
        """The columns in rip's own types, lists as they are; nulls for what older traces do not have."""
        columns: list[pa.ChunkedArray | pa.Array] = []
        for field in self._schema:
            if field.name not in table.column_names:
                columns.append(pa.nulls(table.num_rows, field.type))
                continue
            column = table.column(field.name)
            same = pa.types.is_list(field.type) or column.type == field.type
            columns.append(column if same else column.cast(field.type))
        return pa.table(columns, names=self._schema.names)

    def _decode(self, group: Group) -> pa.Table:
        handles = vars(self._handles)
        part, name = group.part, str(group.part.path)
        if name not in handles:
            handles[name] = open_parquet(part.path, metadata=part.file.metadata)
        try:
            there = [column for column in self._schema.names if column in part.leaves]
            table = handles[name].read_row_group(group.index, columns=there, use_threads=False)
            if table.num_rows != group.rows:
                raise ValueError("rows are missing")
            return self._as_written(table)
        except DAMAGE as error:
            raise damaged(part.path, error) from None


@cache
def _small_columns() -> pa.Schema:
    """The schema of a trace without its site columns."""
    return arrow_schema(0, keeps_tensors=False)


class ListLengths:
    """How long the lists of the last pages are, by their encoded levels. Thread-safe.

    Decoding levels costs most of reading lists, and the `topk_*` columns of both traces mostly share them.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, np.ndarray] = {}

    def of(self, page: PlainLists) -> np.ndarray | None:
        """int64[N], or None where they are not known."""
        lengths = self._known.get(page.levels)
        # Items of four bytes: a rewritten column may be wider.
        return lengths if lengths is not None and 4 * int(lengths.sum()) == len(page.values) else None

    def keep(self, page: PlainLists, lengths: np.ndarray) -> None:
        """Remember what decoding a page has shown."""
        if len(self._known) >= _KNOWN_LENGTHS:
            self._known = {}
        self._known[page.levels] = lengths


class CandidateReader:
    """The `topk_*` columns of a trace by row number, in place where their layout allows it. Thread-safe."""

    def __init__(self, trace: Trace, lengths: ListLengths | None = None) -> None:
        """`lengths` may be shared with the reader of the other trace, so that they are decoded once."""
        self.trace = trace
        self._lengths = lengths or ListLengths()
        self._kept: _Kept[Candidates] = trace.kept.setdefault(
            ("candidates",), _Kept(lambda found: 3 * found.ids.nbytes)
        )
        self._files = {id(part): os.open(part.path, os.O_RDONLY) for part in trace.files}

    def read(self, extents: list[Extent]) -> Candidates:
        """The rows of the extents, one after the other; no candidates where the trace has no row."""
        return Candidates.joined(
            [
                Candidates.none(count) if number is None else self._group(number).rows(start, start + count)
                for number, start, count in split(self.trace, extents)
            ]
        )

    def close(self) -> None:
        """Give the files back."""
        for descriptor in self._files.values():
            os.close(descriptor)

    def _group(self, number: int) -> Candidates:
        return self._kept.get(number, lambda: self._read(number))

    def _read(self, number: int) -> Candidates:
        group = self.trace.groups[number]
        found: list[Lists] = []
        for name, dtype in zip(TOPK_COLUMNS, (np.int32, np.float32, np.float32), strict=True):
            page = self._page(group, name)
            lengths = None if page is None else self._lengths.of(page)
            if page is None or lengths is None:
                lists = _lists(RowReader(self.trace, [name]).group(number).column(name))
                if page is not None:
                    self._lengths.keep(page, lists[0])
                found.append(lists)
            else:
                found.append((lengths, np.frombuffer(page.values, dtype)))
        return Candidates.of_lists(*found)

    def _page(self, group: Group, name: str) -> PlainLists | None:
        leaf, levels = group.part.leaves[name]
        if levels != (2, 1):  # nullable lists of required items
            return None
        chunk = group.part.file.metadata.row_group(group.index).column(leaf)
        try:
            return plain_lists(self._files[id(group.part)], chunk)
        except ValueError as error:
            raise damaged(group.part.path, error) from None


def read_values(trace: Trace, column: str, rows: Sequence[int]) -> list[Any]:
    """One column at some rows; None where the trace has no such row (−1)."""
    values: list[Any] = RowReader(trace, [column]).read([(row, 1) for row in rows]).column(0).to_pylist()
    return values


def read_candidates(trace: Trace, extents: list[Extent]) -> Candidates:
    """The candidates of some rows, read once."""
    reader = CandidateReader(trace)
    found = reader.read(extents)
    reader.close()
    return found


def _lists(column: pa.ChunkedArray) -> Lists:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.diff(array.offsets.to_numpy()), array.flatten().to_numpy(zero_copy_only=False)


def split(trace: Trace, extents: list[Extent]) -> Iterator[tuple[int | None, int, int]]:
    """Cut extents at row groups: (row group, first row inside it, rows); None for rows that are not there."""
    for first, count in extents:
        if first < 0:
            yield None, 0, count
            continue
        row, stop = first, first + count
        while row < stop:
            number = trace.group_of(row)
            group = trace.groups[number]
            take = min(stop, group.first_row + group.rows) - row
            yield number, row - group.first_row, take
            row += take


def check_row_hashes(trace: Trace, row: int) -> None:
    """Check the page of row hashes that holds a row of a trace.

    Raises:
        BadInput: It is not what was written.
    """
    group = trace.groups[trace.group_of(row)]
    with _descriptor(group.part) as descriptor:
        check_column(descriptor, group, "site_hash")


def check_small_columns(part: Part) -> None:
    """Check all pages of a file but those of the site columns, which are most of it. Raises as above."""
    with _descriptor(part) as descriptor:
        for index in range(part.file.metadata.num_row_groups):
            chunks = part.file.metadata.row_group(index)
            for leaf in range(chunks.num_columns):
                chunk = chunks.column(leaf)
                if chunk.path_in_schema.partition(".")[0] not in SITE_COLUMNS:
                    _check(descriptor, part, chunk)


def check_column(descriptor: int, group: Group, column: str) -> None:
    """Check the pages of one column of a row group. Raises as above."""
    leaf, _ = group.part.leaves[column]
    _check(descriptor, group.part, group.part.file.metadata.row_group(group.index).column(leaf))


def _check(descriptor: int, part: Part, chunk: pq.ColumnChunkMetaData) -> None:
    try:
        check_chunk(descriptor, chunk)
    except ValueError as error:
        raise damaged(part.path, error) from None


@contextmanager
def _descriptor(part: Part) -> Iterator[int]:
    descriptor = os.open(part.path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
