"""`rip diverge`: compare two traces, write the result folder, say what was found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput, NothingCompared, RipError
from .exit_codes import EXIT_FAILS, EXIT_HOLDS

if TYPE_CHECKING:
    from ..schemas.trace import TraceHeader
    from ..schemas.verdict import Verdict

HELP = """Compare two traces: the first divergent token, the first differing layer, the drift, and why.

\b
Examples:
  rip diverge alone.parquet batch.parquet
  rip diverge old.parquet new.parquet -o review --html review.html --tolerance 0.05
  rip diverge old.parquet new.parquet --require numeric --tolerance 0.05
  rip diverge monday.parquet tuesday.parquet --require semantic
  rip diverge alone.parquet batch.parquet --zoom
  rip diverge old.parquet new.parquet --reference fp64.parquet
  rip diverge alone.parquet batch.parquet --json > verdict.json

Where a trace holds no token ids, texts are compared: texts that differ fail the level token, equal ones do
not prove equal tokens. Of an engine that takes no seed no verdict on tokens is given: samples are compared.

Exit code 0: the required level holds (by default: all tokens are equal); 1: it does not, or cannot be told;
3: the traces have nothing in common that this level can be told from.
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
    zoom: Annotated[
        bool,
        typer.Option(
            "--zoom",
            help="Run both sides again to the first difference, name the op, and prove it by putting A's "
            "rows into B (engine hf).",
        ),
    ] = False,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference",
            metavar="R.parquet",
            help="Golden trace of A in float32 or float64: is it rounding, or is one side farther?",
        ),
    ] = None,
    noise: Annotated[
        list[Path] | None,
        typer.Option(
            "--noise",
            metavar="N.parquet",
            help="A's lane run again: how far equally good runs lie apart. May be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing results.")] = False,
) -> None:
    from ..diverge.compare import Context
    from ..diverge.compare import diverge as compare
    from ..diverge.present.terminal import print_summary
    from ..diverge.reading.load import read_header
    from ..fingerprint.drift.compare import drift
    from ..schemas.claim import LEVELS
    from .console import check_output_file, progress_bar, refuse_overwrite, stderr_console

    if require not in LEVELS:
        raise BadInput(f"--require {require}: no such level", f"choose one of: {', '.join(LEVELS)}")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise BadInput(f"--tolerance {tolerance}: not a size", "give a number from 0 up, for example 0.05")
    folder = out if out is not None else Path(f"{_stem(a)}-vs-{_stem(b)}")
    if noise and reference is None:
        raise BadInput("--noise is measured against a reference", "give one with --reference R.parquet")
    if html is not None:
        if html.suffix.lower() not in (".html", ".htm"):
            raise BadInput(f"--html {html}: the ending says no HTML", "end the name in .html")
        check_output_file(html, force)
    headers = read_header(a), read_header(b)
    refuse_overwrite(folder, force)
    base, now = headers[0].fingerprint, headers[1].fingerprint
    changes = [] if base is None or now is None else drift(base, now)
    console = stderr_console()
    with progress_bar(console) as bar:
        task = bar.add_task("comparing", total=None, note="")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, note=f"{done:,} of {total:,} positions")

        verdict = compare(a, b, folder, Context(changes, tolerance, reference, noise or []), show, force)
    print_summary(console, verdict, folder, headers)
    console.print(f"Wrote {folder}", markup=False)
    failed: RipError | None = None
    if zoom:
        from ..diverge.present.terminal import print_zoom
        from ..experiments.zoom import keep, zoom_into

        try:
            verdict = zoom_into(verdict, (a, b), headers, console)
        except RipError as error:  # what was found without it is written all the same
            failed = error
        else:
            keep(verdict, folder)
            print_zoom(console, verdict)
    if html is not None:
        from ..diverge.present.report.write import write_report

        write_report(folder, html, a, b)
        console.print(f"Wrote {html}", markup=False)
    if as_json:
        print(verdict.to_json(), end="")
    if failed is not None:
        raise failed
    if verdict.levels[require].state == "not stated":
        raise BadInput(
            f"no tolerance is stated, so the level {require} cannot hold", "state one with --tolerance"
        )
    _refuse_untold(verdict, require, headers)
    raise typer.Exit(EXIT_HOLDS if verdict.levels[require].state == "holds" else EXIT_FAILS)


diverge.__doc__ = HELP


def _refuse_untold(verdict: Verdict, require: str, headers: tuple[TraceHeader, TraceHeader]) -> None:
    """A level that nothing was compared for has not failed, and it never passes."""
    judged = verdict.levels[require]
    unseeded = any(header.abilities is not None and not header.abilities.seed for header in headers)
    compared = verdict.compared
    untold = bool(compared.texts) or unseeded if require == "token" else not compared.sequences
    if judged.state == "not comparable" and untold and require != "semantic":
        raise NothingCompared(
            f"the level {require} cannot be told: {judged.why}", "--require semantic compares the texts"
        )


def _stem(path: Path) -> str:
    """`T.parquet` and `T.parquet.parts` without their endings."""
    return path.name.removesuffix(".parts").removesuffix(".parquet") or "trace"
