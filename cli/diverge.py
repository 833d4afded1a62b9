"""`rip diverge`: compare two traces, write the result folder, say what was found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import BadInput
from .exit_codes import EXIT_FAILS, EXIT_HOLDS

HELP = """Compare two traces: the first divergent token, the first differing layer, the drift, and why.

\b
Examples:
  rip diverge alone.parquet batch.parquet
  rip diverge old.parquet new.parquet -o review --html review.html --tolerance 0.05
  rip diverge old.parquet new.parquet --require numeric --tolerance 0.05
  rip diverge alone.parquet batch.parquet --json > verdict.json

Exit code 0: the required level holds (by default: all tokens are equal); 1: it does not, or cannot be told;
3: the traces have no row in common.
"""


def diverge(
    a: Annotated[Path, typer.Argument(metavar="A.parquet", help="Trace A, the base (or T.parquet.parts).")],
    b: Annotated[Path, typer.Argument(metavar="B.parquet", help="Trace B.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Result folder. [default: A-vs-B]")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report too.")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", help="Largest absolute logit difference of the numeric level."),
    ] = None,
    require: Annotated[
        str,
        typer.Option(
            "--require", metavar="LEVEL", help="Level that must hold: bitwise, numeric, token or semantic."
        ),
    ] = "token",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing results.")] = False,
) -> None:
    from ..diverge.compare import diverge as compare
    from ..diverge.load import read_header
    from ..diverge.summary import print_summary
    from ..fingerprint.drift.compare import drift
    from ..schemas.claim import LEVELS
    from .console import progress_bar, refuse_overwrite, stderr_console

    if require not in LEVELS:
        raise BadInput(f"--require {require}: no such level", f"choose one of: {', '.join(LEVELS)}")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise BadInput(f"--tolerance {tolerance}: not a size", "give a number from 0 up, for example 0.05")
    folder = out if out is not None else Path(f"{_stem(a)}-vs-{_stem(b)}")
    if html is not None:
        refuse_overwrite(html, force)
    headers = read_header(a), read_header(b)
    refuse_overwrite(folder, force)
    base, now = headers[0].fingerprint, headers[1].fingerprint
    changes = [] if base is None or now is None else drift(base, now)
    console = stderr_console()
    with progress_bar(console) as bar:
        task = bar.add_task("comparing", total=None, note="")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, note=f"{done:,} of {total:,} positions")

        verdict = compare(a, b, folder, changes, tolerance, show, force)
    print_summary(console, verdict, folder, headers)
    console.print(f"Wrote {folder}", markup=False)
    if html is not None:
        from ..diverge.report import write_report

        write_report(folder, html, a, b)
        console.print(f"Wrote {html}", markup=False)
    if as_json:
        print(verdict.to_json(), end="")
    if verdict.levels[require].state == "not stated":
        raise BadInput(
            f"no tolerance is stated, so the level {require} cannot hold", "state one with --tolerance"
        )
    raise typer.Exit(EXIT_HOLDS if verdict.levels[require].state == "holds" else EXIT_FAILS)


diverge.__doc__ = HELP


def _stem(path: Path) -> str:
    """`T.parquet` and `T.parquet.parts` without their endings."""
    return path.name.removesuffix(".parts").removesuffix(".parquet") or "trace"
