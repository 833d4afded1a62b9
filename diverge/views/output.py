"""Rows of a query as CSV, JSON, Parquet or a table of text. It does not know where the rows come from."""

from __future__ import annotations

import csv
import json
import math
from typing import IO, TYPE_CHECKING, Any

from ...schemas.base import exactly_representable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from decimal import Decimal

    import pyarrow as pa

    from .query import Rows

JSON_SCHEMA = "rip.rows/1"
MAX_CELL = 96
"""Characters of one cell in a table of text; longer ones end in an ellipsis."""


def write_csv(rows: Rows, file: IO[str]) -> None:
    """All rows as CSV with a header line. NULL is an empty field, a list is JSON, a BLOB is hexadecimal."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(rows.schema.names)
    for values in _python_rows(rows):
        out.writerow(["" if value is None else _flat_text(value) for value in values])


def write_json(rows: Rows, file: IO[str]) -> None:
    """One JSON document, `{"schema", "columns", "rows": [{…}]}`, written as the rows come."""
    columns = [{"name": column.name, "type": str(column.type)} for column in rows.schema]
    file.write(f'{{"schema": {json.dumps(JSON_SCHEMA)}, "columns": {json.dumps(columns)}, "rows": [')
    separator = "\n"
    for values in _python_rows(rows):
        row = dict(zip(rows.schema.names, values, strict=True))
        file.write(separator + json.dumps(exactly_representable(row), ensure_ascii=False))
        separator = ",\n"
    file.write("\n]}\n")


def write_parquet(rows: Rows, file: IO[bytes]) -> None:
    """All rows as Parquet, with the types that DuckDB gave them."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        for batch in rows.batches:
            writer.write_batch(batch)


def first_rows(rows: Rows, limit: int) -> tuple[list[list[str | None]], bool, bool]:
    """The first rows as text for a table; None where a value is NULL.

    Returns:
        The cells, whether more rows follow, and whether a long cell was cut.
    """
    cells: list[list[str | None]] = []
    cut = False
    for values in _python_rows(rows):
        if len(cells) == limit:
            return cells, True, cut
        texts = [None if value is None else visible(_flat_text(value)) for value in values]
        long = [text is not None and len(text) > MAX_CELL for text in texts]
        cut = cut or any(long)
        cells.append(
            [
                text[: MAX_CELL - 1] + "…" if text is not None and is_long else text
                for text, is_long in zip(texts, long, strict=True)
            ]
        )
    return cells, False, cut


def is_number(kind: pa.DataType) -> bool:
    """True where a table should align the column to the right."""
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def visible(text: str) -> str:
    """Text that cannot steer a terminal: control and invisible characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _flat_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(exactly_representable(value), ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _python_rows(rows: Rows) -> Iterator[tuple[Any, ...]]:
    converters = [_converter(column.type) for column in rows.schema]
    for batch in rows.batches:
        columns = [
            [None if value is None else convert(value) for value in column.to_pylist()]
            for convert, column in zip(converters, batch.columns, strict=True)
        ]
        yield from zip(*columns, strict=True)


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """How a Python value of an Arrow type becomes plain: numbers, text, lists and dicts."""
    import pyarrow.types as kinds

    if kinds.is_float32(kind):
        return _shortest_float32
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return bytes.hex
    if kinds.is_decimal(kind):
        return _plain_decimal
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        inner = _converter(kind.value_type)
        return lambda items: [None if item is None else inner(item) for item in items]
    if kinds.is_struct(kind):
        fields = {child.name: _converter(child.type) for child in kind}
        return lambda item: {
            name: None if item[name] is None else convert(item[name]) for name, convert in fields.items()
        }
    if kinds.is_dictionary(kind):
        return _converter(kind.value_type)
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind):
        return lambda value: value
    return str


def _shortest_float32(value: float) -> float:
    """The shortest decimal that reads back as the same float32: 0.1, not 0.10000000149011612."""
    import numpy as np

    return float(str(np.float32(value))) if math.isfinite(value) else value


def _plain_decimal(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
