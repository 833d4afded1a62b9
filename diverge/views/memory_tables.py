"""Tables in memory behind some of the views of `rip query`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb


def create_table(
    connection: duckdb.DuckDBPyConnection, name: str, columns: str, rows: Sequence[tuple[Any, ...]]
) -> None:
    """A table in memory, through Arrow: `executemany` takes a second for a few thousand rows."""
    import pyarrow as pa

    kinds = {
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "VARCHAR": pa.string(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
    }
    fields = [column.split() for column in columns.split(", ")]
    values = zip(*rows, strict=True) if rows else ((),) * len(fields)
    arrays = [pa.array(column, kinds[kind]) for (_, kind), column in zip(fields, values, strict=True)]
    connection.register("incoming", pa.table(arrays, names=[column for column, _ in fields]))
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    connection.unregister("incoming")


def writable(text: str) -> str:
    """Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
