"""The SQL views that `rip query` offers: over a result folder, a trace, or the parts of a run that died.

Every view is lazy: DuckDB reads the columns that a statement names and no others. Nothing is copied, and
nothing can be written: see `_lock`.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ...schemas.errors import BadInput
from ..result import tables
from ..result.read_verdict import MAKE_IT_AGAIN, read_verdict
from . import view_sql as view_sql
from .columns import EXAMPLES, MADE_BY, MEANINGS, TRACE_EXAMPLES, TRACE_MEANINGS, TRACE_VIEWS, VIEWS
from .memory_tables import create_table, writable
from .sequence_sql import interval_functions
from .zoom_table import create_zoom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import duckdb

    from ...schemas.trace import TraceHeader
    from ..reading.load import Part


T = TypeVar("T")


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Do `work`, which calls DuckDB, so that Ctrl-C ends it: DuckDB itself looks at no signal while it runs.

    The work runs in another thread; a KeyboardInterrupt here stops the connection and then goes on.
    """
    results: list[T] = []
    faults: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as fault:  # raised again in the thread that waits
            faults.append(fault)
        finally:
            ended.set()

    # Ctrl-C waits until the thread runs and this one is where it can be told to end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            threading.Thread(target=run, daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ended.wait()
    except KeyboardInterrupt:
        while not ended.is_set():  # once is not enough: an interrupt before DuckDB has begun is lost
            connection.interrupt()
            ended.wait(0.02)
        raise
    if faults:
        raise faults[0]
    return results[0]


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
    names: tuple[str, ...]
    examples: dict[str, str]
    notes: list[str] = field(default_factory=list)
    """What a person should know, for example that a truncated part was skipped."""
    unfilled: dict[str, str] = field(default_factory=dict)
    """Views that hold nothing here → the command that fills them."""

    def describe(self, view: str) -> list[ViewColumn]:
        """The columns of one view."""
        meanings = (TRACE_MEANINGS if "header" in self.names else MEANINGS)[view]
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
    notes: list[str] = []
    # Without this, a statement that outgrows memory would spill into the folder it was called from.
    with (
        tempfile.TemporaryDirectory(prefix="rip-query-") as spill,
        duckdb.connect(config=_CONFIG) as connection,
    ):
        connection.execute(f"SET temp_directory = {view_sql.quoted(spill)}")
        names: tuple[str, ...]
        unfilled: dict[str, str] = {}
        try:
            if path.is_dir() and (path / tables.SUMMARY_FILE).exists():
                files, unfilled = _register_result(connection, path)
                names, examples = VIEWS, EXAMPLES
            else:
                files = _register_trace(connection, path, notes)
                names, examples = TRACE_VIEWS, TRACE_EXAMPLES
        except duckdb.Error as error:
            raise BadInput(
                f"{path}: not in the form that this rip writes: {first_line(error)}",
                "make it again with rip diverge or rip replay",
            ) from None
        _lock(connection, files)
        yield Views(connection, names, examples, notes, unfilled)


_CONFIG = {
    "python_enable_replacements": "false",  # a statement must not see Python variables
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def _lock(connection: duckdb.DuckDBPyConnection, files: list[Path]) -> None:
    """Leave DuckDB only the files behind the views, and no way to change its mind.

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
        for name in tables.TABLES
        if name not in tables.LATER_TABLES or (folder / f"{name}.parquet").exists()
    }
    for file in files.values():
        _check_parquet(file)
    create_zoom(connection, verdict.zoom)
    for name, function in interval_functions():
        connection.create_function(name, function, None, "DOUBLE", type="arrow")
    for statement in view_sql.result_views(files):
        _create_view(connection, statement)
    absent = {"zoom": verdict.zoom is None}
    absent |= dict.fromkeys(("reference_sites", "reference_steps"), verdict.reference is None)
    return list(files.values()), {name: by for name, by in MADE_BY.items() if absent[name]}


def _create_view(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """DuckDB opens the files of a view when it is made, which takes long for thousands of parts."""
    interruptible(connection, lambda: connection.execute(statement))


def _check_parquet(file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_metadata(file)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror or error}", MAKE_IT_AGAIN) from None
    except pa.ArrowInvalid:
        raise BadInput(f"{file}: not a whole Parquet file", MAKE_IT_AGAIN) from None


def _register_trace(connection: duckdb.DuckDBPyConnection, path: Path, notes: list[str]) -> list[Path]:
    from ..reading.checksums import check_small_columns
    from ..reading.load import HEADER_FILE, open_trace

    if path.is_dir() and not (path / HEADER_FILE).exists():
        raise BadInput(
            f"{path}: neither a result of rip diverge (no {tables.SUMMARY_FILE})"
            f" nor the parts of a trace (no {HEADER_FILE})",
            "give the folder that rip diverge wrote with -o, or a trace file",
        )
    opened = open_trace(path)
    notes += opened.notes
    for part in opened.files:  # DuckDB looks at no checksum
        check_small_columns(part)
    groups = _by_sites(opened.files)
    _create_header(connection, opened.header)
    _create_results(connection, opened.header)
    _create_site_list(connection, opened.header, groups)
    for statement in (view_sql.raw(groups), view_sql.TOKENS, view_sql.TOPK, view_sql.sites(groups)):
        _create_view(connection, statement)
    nothing = ", ".join(f"NULL::VARCHAR AS {column.name}" for column in tables.TABLES["changes"])
    connection.execute(f"CREATE VIEW changes AS SELECT {nothing} WHERE false")
    return [part.path for part in opened.files]


def _by_sites(parts: list[Part]) -> list[list[Part]]:
    """Files grouped by their list of sites: parts of one run may have fewer sites than later ones."""
    groups: dict[tuple[int, ...], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.width, *part.columns_of.tolist()), []).append(part)
    return list(groups.values())


def _create_site_list(
    connection: duckdb.DuckDBPyConnection, header: TraceHeader, groups: list[list[Part]]
) -> None:
    """`site_list`: a row per site and group of files, `slot` being its place in the lists of that group."""
    rows = [
        (number, int(slot), index, site.name, site.occurrence, site.part, site.module, site.dtype)
        for number, group in enumerate(groups)
        for index, (site, slot) in enumerate(zip(header.sites, group[0].columns_of, strict=True))
        if slot >= 0
    ]
    columns = (
        "site_group INTEGER, slot INTEGER, site INTEGER, name VARCHAR, occurrence INTEGER, part VARCHAR,"
        " module VARCHAR, dtype VARCHAR"
    )
    create_table(connection, "site_facts", columns, rows)
    derived = f"{view_sql.LABEL} AS label, {view_sql.LAYER} AS layer"
    connection.execute(f"CREATE TABLE site_list AS SELECT *, {derived} FROM site_facts")


def _create_header(connection: duckdb.DuckDBPyConnection, header: TraceHeader) -> None:
    said = header.to_object()
    words = said.pop("token_text", None) or {}
    said.pop("results", None)  # a view of their own
    create_table(connection, "header", "key VARCHAR, value VARCHAR", list(_flattened(said)))
    texts = [(int(key), writable(str(value))) for key, value in words.items() if str(key).isdigit()]
    create_table(connection, "token_text", "token_id INTEGER, text VARCHAR", texts)


def _create_results(connection: duckdb.DuckDBPyConnection, header: TraceHeader) -> None:
    """`results`: a row per sequence that came to its end."""
    rows = []
    for result in header.results:
        by = result.answered_by
        texts = (result.text, by.get("model"), by.get("system_fingerprint"), _json(by) if by else None)
        text, model, system, answered_by = (None if item is None else writable(item) for item in texts)
        times = (result.ttft_s, result.itl_s, result.latency_s)
        about = (result.sequence, writable(result.request_id), result.sample, writable(result.reason))
        rows.append((*about, text, *times, model, system, answered_by))
    columns = (
        "sequence INTEGER, request_id VARCHAR, sample INTEGER, reason VARCHAR, text VARCHAR, ttft_s DOUBLE,"
        " itl_s DOUBLE, latency_s DOUBLE, model VARCHAR, system_fingerprint VARCHAR, answered_by VARCHAR"
    )
    create_table(connection, "results", columns, rows)


def _flattened(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flattened(item, f"{prefix}{key}.")
        else:
            text = item if isinstance(item, str) else _json(item)
            yield f"{prefix}{key}", writable(text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
