"""Run one SQL statement over the views and hand its rows on; it can read and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...schemas.errors import BadInput
from .catalog import Views, first_line
from .interruptible import interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator

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
