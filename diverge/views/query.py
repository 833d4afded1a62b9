"""Run one SQL statement over the views and hand its rows on; it can read and nothing else."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from ...schemas.base import exactly_representable
from ...schemas.errors import BadInput
from .interruptible import interruptible
from .open_views import Views, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from decimal import Decimal

    import pyarrow as pa


BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Rows:
    """The rows of a statement, in batches that are fetched as they are read."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def check_statement(sql: str, views: Views) -> None:
    """Refuse everything but one reading statement.

    COPY is refused as a word, because it may also stand inside a SELECT, where its target could be one of
    the files behind the views. Everything else that touches files is closed by DuckDB's own lock.

    Raises:
        BadInput: Not SQL, no statement, several statements, or one that writes.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise _bad_sql(error, views) from None
    if len(statements) != 1:
        raise BadInput(
            f"one SQL statement was expected, not {len(statements)}",
            f"for example: {views.examples['tokens']}",
        )
    kind = statements[0].type.name
    if kind not in {"SELECT", "EXPLAIN", "MULTI"} or _has_word(sql, "copy"):  # MULTI: a PIVOT
        raise BadInput(
            "rip query only reads: SELECT, FROM, WITH, PIVOT, DESCRIBE, SUMMARIZE, EXPLAIN",
            "write results with --format and -o; put a name that is an SQL word in double quotes",
        )


def _has_word(sql: str, word: str) -> bool:
    import duckdb

    raw = sql.encode()  # the tokenizer counts bytes
    return any(
        kind == duckdb.token_type.keyword and raw[start : start + len(word)].lower() == word.encode()
        for start, kind in duckdb.tokenize(sql)
    )


def run(views: Views, sql: str) -> Rows:
    """Start a statement.

    Raises:
        BadInput: Also while the batches are read: a fault in the statement, or a damaged file.
    """
    import duckdb
    import pyarrow as pa

    check_statement(sql, views)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            while (batch := interruptible(views.connection, lambda: next(reader, None))) is not None:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise _bad_sql(error, views) from None

    try:
        reader = interruptible(
            views.connection, lambda: views.connection.sql(sql).to_arrow_reader(BATCH_ROWS)
        )
        schema = _with_unique_names(reader.schema)
    except duckdb.Error as error:
        raise _bad_sql(error, views) from None
    return Rows(schema, batches())


def _with_unique_names(schema: pa.Schema) -> pa.Schema:
    """Repeated column names get a number, because JSON and most readers of Parquet want them different."""
    import pyarrow as pa

    taken: set[str] = set()
    fields = []
    for column in schema:
        name, number = column.name, 1
        while name in taken:
            number += 1
            name = f"{column.name}_{number}"
        taken.add(name)
        fields.append(column.with_name(name))
    return pa.schema(fields)


def _bad_sql(error: Exception, views: Views) -> BadInput:
    import duckdb

    unknown_name = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
    fix = "correct the statement; if it is correct, the file may be damaged: repeat rip diverge or rip replay"
    if isinstance(error, unknown_name):
        fix = f"views: {', '.join(views.names)}; `rip query PATH` without SQL lists their columns"
    elif isinstance(error, duckdb.PermissionException):
        fix = "rip query reads the views and no other files"
    elif isinstance(error, duckdb.OutOfMemoryException):
        fix = "name fewer columns, filter earlier, or aggregate"
    return BadInput(f"SQL: {first_line(error)}", fix)


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
            [None if value is None else convert(value) for value in _values(name, column)]
            for convert, name, column in zip(converters, rows.schema.names, batch.columns, strict=True)
        ]
        yield from zip(*columns, strict=True)


def _values(name: str, column: pa.Array) -> list[Any]:
    """A column's values.

    Raises:
        BadInput: Python has none of that size, such as a date in the year 300,000.
    """
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError, pa.ArrowException):
        raise BadInput(
            f"SQL: the column {name} ({column.type}) holds a value that cannot be shown",
            "let SQL write it: CAST(… AS VARCHAR), or -o rows.parquet",
        ) from None


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
