"""`rip fingerprint`: what this environment is, as facts with their sources."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_codes import EXIT_FAILS

if TYPE_CHECKING:
    from rich.console import Console

    from ..fingerprint.model_ref import ModelRef
    from ..schemas.fingerprint import Fingerprint


def fingerprint(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="DIR|HF-ID|FILE.gguf", help="Also read this model; its files are hashed."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write here instead of standard output.")
    ] = None,
    flat: Annotated[bool, typer.Option("--flat", help="Only the thirteen keys, without sources.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="BASE.json",
            help="Compare with this fingerprint: say what changed; exit 1 if anything did.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """Read this environment: packages, determinism variables, CPU, OS, and a model's files.

    Every fact has a value and its source, or says why it is unavailable. Nothing is changed, and of the
    environment variables only those that change numerics are read.

    Example: rip fingerprint --model ./my-model -o base.json

    Example: rip fingerprint --model ./my-model --against base.json
    """
    from ..fingerprint.drift import compare
    from ..fingerprint.model_ref import resolve
    from .console import refuse_overwrite, stderr_console, write_private
    from .drift import load_fingerprint, print_drift

    if output is not None:
        refuse_overwrite(output, force)
    base = load_fingerprint(against) if against is not None else None
    console = stderr_console()
    read = _collect(resolve(model) if model is not None else None, console)
    text = json.dumps(read.flat(), indent=2, ensure_ascii=False) + "\n" if flat else read.to_json()
    if output is not None:
        write_private(output, text)
    elif base is None:
        sys.stdout.write(text)
    if console.is_terminal and base is None:
        _print_summary(console, read)
    if output is not None:
        print(f"Wrote {output}", file=sys.stderr)
    if base is not None:
        found = compare(base, read)
        print_drift(console, found)
        if found.changes:
            raise typer.Exit(EXIT_FAILS)


def _collect(model: ModelRef | None, console: Console) -> Fingerprint:
    from ..fingerprint.collect import collect

    if model is None:
        return collect()
    from .console import progress_bar

    with progress_bar(console) as bar:
        task = bar.add_task(f"reading {model.path.name}", total=None, note="")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, note=f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

        return collect(model, progress=show)


def _print_summary(console: Console, read: Fingerprint) -> None:
    """The thirteen keys, for a person."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in read.flat().items():
        absent = str(value).startswith("unavailable: ")
        table.add_row(key, Text(str(value), style="dim" if absent else "", overflow="fold"))
    table.add_row("root_digest", read.root_digest)
    console.print(table)
