"""Tables in memory behind some of the views of `rip query`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from ..result_folder import Column


def create_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[Any, ...]] = (),
) -> None:
    """A table in memory, through Arrow: `executemany` takes a second for a few thousand rows."""
    import pyarrow as pa

    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    kinds = [column.field().type for column in columns]
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
    arrays = [pa.array(items, kind) for items, kind in zip(values, kinds, strict=True)]
    connection.register("incoming", pa.table(arrays, names=[column.name for column in columns]))
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    connection.unregister("incoming")


def writable(text: str) -> str:
    """Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
