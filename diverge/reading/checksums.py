"""Are the hashes that a verdict rests on the ones that were written? Parquet page checksums say so.

A flipped bit in a stored hash looks like a difference of the run. pyarrow checks what it decodes; row hashes
and sketches are read in place, and checking all of them would cost as much as comparing them. Checked are the
hashes behind the first difference, and sketches that give a drift which no two rows can have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...schemas.trace import SITE_COLUMNS
from .load import Group, Part, Trace, damaged
from .pages import check_chunk

if TYPE_CHECKING:
    import pyarrow.parquet as pq


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
