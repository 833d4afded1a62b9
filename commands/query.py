"""`rip query`: SQL over a result folder or a trace."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..schemas.errors import BadInput, OutputFailed
from ..schemas.files import check_output_file, replace_file, report_disk_errors
from .completion import question_names

if TYPE_CHECKING:
    from ..diverge.views.open_views import Views
    from ..diverge.views.query import Rows

Format = Literal["table", "csv", "json", "parquet"]
MAX_TABLE_ROWS = 100
_NULL = "NULL"
EXAMPLES = """\b
Examples:
  rip query result "SELECT layer, max(rel_drift) FROM sites GROUP BY layer ORDER BY layer"
  rip query trace.parquet "SELECT * FROM tokens ORDER BY margin LIMIT 10" -o close-calls.csv
  rip query --ask
  rip query result --ask first-divergence
  rip query result -- "-- the last steps
  SELECT max(step) FROM tokens"
  rip query result
"""


def query(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="DIR|TRACE", help="A result folder, a trace, or a .parts folder."),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL|NAME",
            help="One read-only statement; with --ask the name of a question. [default: list the views]",
            autocompletion=question_names,
        ),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="Put a named question in place of SQL; without a name: list them."),
    ] = False,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="table shows the first rows, the others all. [default: by the ending of -o, else table]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write. [default: standard output]")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output; of a link, its target.")
    ] = False,
) -> None:
    """Run SQL over a result folder or a trace. Views: tokens, sites, site_totals, topk, changes and more;
    over a trace also results and header. Without SQL, list all views with their columns. Common questions
    have names: rip query --ask lists them.

    A statement reads the files behind the views and no others, and it writes nothing. It also sees
    DuckDB's own functions and settings, and the tables in memory that the views are made of.

    SQL that starts with a comment goes after a bare --, so that it is not taken for an option.
    """
    from ..diverge.present.findings.sentences import sentence
    from ..diverge.views.open_views import open_views
    from ..diverge.views.query import run
    from ..diverge.views.questions import statement_for

    if ask and (sql is None or str(path) in question_names("")):  # --ask NAME, in front of the file too
        path, sql = (Path(sql) if sql else None), (str(path) if path else None)
    if ask and (path is None or sql is None):
        _list_questions(sql)
        return
    if path is None:
        raise BadInput("no file is named", "name a result folder or a trace: rip query result")
    chosen = form or _format_of(output)
    if chosen == "parquet" and output is None:
        raise BadInput("Parquet is written to a file only", "name one with -o FILE.parquet")
    if output is not None:
        if output.exists() and output.samefile(path):
            raise OutputFailed(f"{output} is the input", "choose another name")
        check_output_file(output, force)
    with _one_interrupt(), open_views(path) as views:
        for found in views.unread:
            print(f"note: {sentence(found)}", file=sys.stderr)
        if sql is None:
            _list_views(path, views)
            return
        if ask:
            sql = statement_for(sql, views)
        _write(run(views, sql), chosen, output)
        for view, command in views.unfilled.items():
            if re.search(rf"\b{view}\b", sql, re.IGNORECASE):
                print(f"note: {view} is empty: {command} fills it", file=sys.stderr)


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Take the first Ctrl-C and no further one, which would only disturb the cleaning up after the first."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if before is not signal.default_int_handler:  # for example ignored, as behind nohup
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:  # after an interrupt the command only ends
            signal.signal(signal.SIGINT, before)


def _format_of(output: Path | None) -> Format:
    by_suffix: dict[str, Format] = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
    return by_suffix.get(output.suffix.lower(), "table") if output else "table"


def _write(rows: Rows, form: Format, output: Path | None) -> None:
    from ..diverge.views import query as writers

    if form == "table":
        _write_table(rows, output)
        return
    writes: dict[Format, Callable[[Rows, IO[Any]], None]] = {
        "csv": writers.write_csv,
        "json": writers.write_json,
        "parquet": writers.write_parquet,
    }
    write = writes[form]
    if output is None:
        write(rows, sys.stdout)  # never Parquet: that was refused before any work
        return
    with _new_file(output, "wb" if form == "parquet" else "w") as file:
        write(rows, file)


def _write_table(rows: Rows, output: Path | None) -> None:
    from ..diverge.views.query import first_rows, is_number, visible

    cells, more, cut = first_rows(rows, MAX_TABLE_ROWS)
    names = [visible(name) for name in rows.schema.names]
    right = [is_number(column.type) for column in rows.schema]
    if output is not None:
        with _new_file(output, "w") as file:
            file.write(_plain_table(names, right, cells))
    elif sys.stdout.isatty():
        _rich_table(names, right, cells)
    else:
        sys.stdout.write(_plain_table(names, right, cells))
    if more:
        print(
            f"note: the first {MAX_TABLE_ROWS} rows; for all of them: --format csv (or json, parquet)",
            file=sys.stderr,
        )
    elif not cells:
        print("note: no rows", file=sys.stderr)
    if cut:
        print("note: long cells end in …; for whole ones: --format csv (or json, parquet)", file=sys.stderr)


def _plain_table(names: list[str], right: list[bool], cells: list[list[str | None]]) -> str:
    shown = [[_NULL if cell is None else cell for cell in row] for row in cells]
    widths = [max(len(text) for text in column) for column in zip(names, *shown, strict=True)]

    def line(texts: list[str]) -> str:
        aligned = [
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(texts, widths, right, strict=True)
        ]
        return "  ".join(aligned).rstrip() + "\n"

    return line(names) + line(["-" * width for width in widths]) + "".join(line(row) for row in shown)


def _rich_table(names: list[str], right: list[bool], cells: list[list[str | None]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, number in zip(names, right, strict=True):
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(_NULL, style="dim italic") if cell is None else Text(cell) for cell in row))
    Console(highlight=False).print(table)


def _list_questions(name: str | None) -> None:
    """All questions; of one that is named, also its SQL."""
    from ..diverge.views.questions import QUESTIONS, find_question

    if name is None:
        for over in ("result", "trace"):
            print(f"About a {over}:")
            for key, question in QUESTIONS.items():
                if over in question.by_input:
                    print(f"  {key:<16}  {question.answers}")
        print("rip query DIR|TRACE --ask NAME answers one; rip query --ask NAME shows its SQL.")
        return
    one = find_question(name)
    print(one.answers)
    for over, sql in one.by_input.items():
        print(f"\nOver a {over}:\n{sql}")


def _list_views(path: Path, views: Views) -> None:
    for view in views.names:
        columns = views.describe(view)
        name_width = max(len(column.name) for column in columns)
        type_width = min(16, max(len(column.type) for column in columns))
        print(view + (f"  (empty: {views.unfilled[view]} fills it)" if view in views.unfilled else ""))
        for column in columns:
            print(f"  {column.name:<{name_width}}  {column.type:<{type_width}}  {column.meaning}".rstrip())
        print(f'  example: rip query {shlex.quote(str(path))} "{views.examples[view]}"\n')


@contextmanager
def _new_file(path: Path, mode: Literal["w", "wb"]) -> Iterator[IO[Any]]:
    """A private file, since token ids are user text, that appears under its name only when it is whole."""
    text = {} if mode == "wb" else {"encoding": "utf-8", "newline": ""}
    with (
        report_disk_errors(path),
        replace_file(path) as unfinished,
        unfinished.open(mode, **text) as file,  # type: ignore[call-overload]
    ):
        yield file
    print(f"Wrote {path}", file=sys.stderr)
