"""Are the hashes that a verdict rests on the ones that were written? Parquet page checksums say so.

A flipped bit in a stored hash looks like a difference of the run. pyarrow checks what it decodes; row hashes
are read in place, and checking all of them would cost as much as comparing them. Those that matter are
checked.
"""

from __future__ import annotations

import os

from .columns import damaged
from .load import Trace
from .pages import check_chunk


def check_row_hashes(trace: Trace, row: int) -> None:
    """Check the page of row hashes that holds a row of a trace.

    Raises:
        BadInput: It is not what was written.
    """
    group = trace.groups[trace.group_of(row)]
    leaf, _ = group.part.leaves["site_hash"]
    descriptor = os.open(group.part.path, os.O_RDONLY)
    try:
        check_chunk(descriptor, group.part.file.metadata.row_group(group.index).column(leaf))
    except ValueError as error:
        raise damaged(group.part, error) from None
    finally:
        os.close(descriptor)
