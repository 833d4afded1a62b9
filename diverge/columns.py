"""Reading the small columns of a trace by row number, with a few decoded row groups kept."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock, local

import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import BadInput
from ..schemas.trace import arrow_schema
from .load import Group, Part, Trace

_CACHE_BYTES = 16 << 20

Extent = tuple[int, int]
"""First row in the trace (−1: rows that the trace does not have) and how many rows."""


class RowReader:
    """The small columns of a trace by row number. Decoded row groups are kept up to 16 MiB. Thread-safe."""

    def __init__(self, trace: Trace, columns: list[str]) -> None:
        self.trace = trace
        self.columns = columns
        self._schema = _plain_schema(columns)
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = Lock()
        self._handles = local()  # a Parquet file object is not made for several threads

    def read(self, extents: list[Extent]) -> pa.Table:
        """The rows of the extents, one after the other; nulls for rows that the trace does not have."""
        pieces: list[pa.Table] = []
        for first, count in extents:
            row, stop = first, first + count
            while first >= 0 and row < stop:
                number = self.trace.group_of(row)
                group = self.trace.groups[number]
                take = min(stop, group.first_row + group.rows) - row
                pieces.append(self._group(number).slice(row - group.first_row, take))
                row += take
            if first < 0:
                pieces.append(
                    pa.table([pa.nulls(count, kind) for kind in self._schema.types], schema=self._schema)
                )
        if not pieces:
            return self._schema.empty_table()
        return pa.concat_tables(pieces).combine_chunks() if len(pieces) > 1 else pieces[0]

    def _group(self, number: int) -> pa.Table:
        with self._lock:
            found = self._kept.get(number)
            if found is not None:
                self._kept.move_to_end(number)
                return found
        group = self.trace.groups[number]
        table = self._decode(group).cast(self._schema)
        with self._lock:
            self._kept[number] = table
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > _CACHE_BYTES:
                self._kept.popitem(last=False)
        return table

    def _decode(self, group: Group) -> pa.Table:
        handles = vars(self._handles)
        part, name = group.part, str(group.part.path)
        try:
            if name not in handles:
                handles[name] = pq.ParquetFile(part.path, metadata=part.file.metadata, pre_buffer=False)
            return handles[name].read_row_group(group.index, columns=self.columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise damaged(part, error) from None


def _plain_schema(columns: list[str]) -> pa.Schema:
    """The columns' types, alike in every part and after a rewrite by another tool."""
    wanted = arrow_schema(0, keeps_tensors=False)

    def nullable(kind: pa.DataType) -> pa.DataType:
        return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind

    return pa.schema([pa.field(name, nullable(wanted.field(name).type)) for name in columns])


def damaged(part: Part, error: Exception) -> BadInput:
    """The error for a file whose footer is whole and whose data are not."""
    return BadInput(f"{part.path} is damaged: {str(error).splitlines()[0]}", "copy it again, or replay again")
