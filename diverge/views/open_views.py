"""The SQL views that `rip query` offers: over a result folder, a trace, or the parts of a run that died.

Every view is lazy: DuckDB reads the columns that a statement names and no others. Nothing is copied, and
nothing can be written: see `_lock`.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...schemas.errors import BadInput
from ...schemas.findings.unseen import Unread
from ...schemas.open_files import check_regular
from .. import result_folder
from ..result_folder import REPEAT_DIVERGE, read_verdict
from . import view_sql
from .columns import RESULT_VIEWS, TRACE_VIEWS, View
from .interruptible import interruptible
from .memory_tables import create_table
from .sequence_sql import create_zoom, interval_functions
from .trace_tables import create_trace_tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from ..reading.load import Part


@dataclass(frozen=True)
class ViewColumn:
    """One column of a view: its SQL type and what it means."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Views:
    """An open source of data and the views over it."""

    connection: duckdb.DuckDBPyConnection
    views: dict[str, View]
    unread: list[Unread] = field(default_factory=list)
    """What of the trace could not be read."""
    unfilled: dict[str, str] = field(default_factory=dict)
    """Views that hold nothing here → the command that fills them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the views."""
        return tuple(self.views)

    @property
    def examples(self) -> dict[str, str]:
        """View → a statement over it."""
        return {name: view.example for name, view in self.views.items()}

    def describe(self, view: str) -> list[ViewColumn]:
        """The columns of one view."""
        meanings = self.views[view].meanings
        rows = interruptible(self.connection, lambda: self.connection.execute(f"DESCRIBE {view}").fetchall())
        return [ViewColumn(row[0], row[1], meanings.get(row[0], "")) for row in rows]


@contextmanager
def open_views(path: Path) -> Iterator[Views]:
    """Open a result folder, a trace file or a `.parts` folder for reading.

    Raises:
        BadInput: Missing, foreign, truncated, or written by a newer rip.
    """
    import duckdb

    files: list[Path] = []
    unread: list[Unread] = []
    # Without this, a statement that outgrows memory would spill into the folder it was called from.
    with (
        tempfile.TemporaryDirectory(prefix="rip-query-") as spill,
        duckdb.connect(config=_CONFIG) as connection,
    ):
        connection.execute(f"SET temp_directory = {view_sql.quoted(spill)}")
        unfilled: dict[str, str] = {}
        try:
            if path.is_dir() and (path / result_folder.SUMMARY_FILE).exists():
                files, unfilled = _register_result(connection, path)
                views = RESULT_VIEWS
            else:
                files = _register_trace(connection, path, unread)
                views = TRACE_VIEWS
        except duckdb.Error as error:
            raise BadInput(
                f"{path}: not a form that this version of rip writes: {first_line(error)}",
                "repeat rip diverge or rip replay",
            ) from None
        _lock(connection, files)
        yield Views(connection, views, unread, unfilled)


_CONFIG = {
    "python_enable_replacements": "false",  # a statement must not see Python variables
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def _lock(connection: duckdb.DuckDBPyConnection, files: list[Path]) -> None:
    """Leave DuckDB only the files behind the views, and no way to change that.

    Those files could still be the target of COPY, so `query.check_statement` refuses that word.
    """
    allowed = ", ".join(view_sql.quoted(str(file)) for file in files)
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def first_line(error: Exception) -> str:
    """DuckDB's message in one line, without the excerpt of the statement."""
    return " ".join(str(error).split("\nLINE ")[0].split())


def _register_result(
    connection: duckdb.DuckDBPyConnection, folder: Path
) -> tuple[list[Path], dict[str, str]]:
    verdict = read_verdict(folder)
    files = {
        name: folder / f"{name}.parquet"
        for name in result_folder.TABLES
        if name not in result_folder.LATER_TABLES or (folder / f"{name}.parquet").exists()
    }
    for file in files.values():
        _check_parquet(file)
    create_zoom(connection, verdict.zoom)
    for name, function in interval_functions():
        connection.create_function(name, function, None, "DOUBLE", type="arrow")
    for name in result_folder.TABLES.keys() - files.keys():  # a result of an older rip
        create_table(connection, name, result_folder.TABLES[name])
    for statement in view_sql.result_views(files):
        _create_view(connection, statement)
    filled = {"zoom": verdict.zoom is not None}
    filled |= dict.fromkeys(("reference_sites", "reference_steps"), verdict.reference is not None)
    unfilled = {name: RESULT_VIEWS[name].filled_by for name, holds in filled.items() if not holds}
    return list(files.values()), unfilled


def _create_view(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """DuckDB opens the files of a view when it is made, which takes long for thousands of parts."""
    interruptible(connection, lambda: connection.execute(statement))


def _check_parquet(file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_regular(file)
        pq.read_metadata(file)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror or error}", REPEAT_DIVERGE) from None
    except pa.ArrowInvalid:
        raise BadInput(f"{file}: not a whole Parquet file", REPEAT_DIVERGE) from None


def _register_trace(connection: duckdb.DuckDBPyConnection, path: Path, unread: list[Unread]) -> list[Path]:
    from ..reading.columns import check_small_columns
    from ..reading.load import HEADER_FILE, open_trace

    if path.is_dir() and not (path / HEADER_FILE).exists():
        raise BadInput(
            f"{path}: neither a result of rip diverge (no {result_folder.SUMMARY_FILE})"
            f" nor the parts of a trace (no {HEADER_FILE})",
            "give the folder that rip diverge wrote with -o, or a trace file",
        )
    opened = open_trace(path)
    unread += opened.unread
    for part in opened.files:  # DuckDB checks no checksum
        check_small_columns(part)
    groups = _by_sites(opened.files)
    create_trace_tables(connection, opened.header, groups)
    for statement in (view_sql.raw(groups), view_sql.TOKENS, view_sql.TOPK, view_sql.sites(groups)):
        _create_view(connection, statement)
    return [part.path for part in opened.files]


def _by_sites(parts: list[Part]) -> list[list[Part]]:
    """Files grouped by their list of sites: parts of one run may have fewer sites than later ones."""
    groups: dict[tuple[int, ...], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.width, *part.columns_of.tolist()), []).append(part)
    return list(groups.values())
