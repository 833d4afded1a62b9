"""`rip diverge`: compare two traces, write the result folder, say what was found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import LEVELS, Level, check_choice
from ..schemas.errors import BadInput, NothingCompared, RipError, stated_option
from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS
from ..schemas.files import check_output, check_output_file
from .console import print_sentence, shown_progress, stderr_console, stdout_console

if TYPE_CHECKING:
    from rich.console import Console

    from ..schemas.trace import TraceHeader
    from ..schemas.verdict import Verdict

EXAMPLES = """\b
Examples:
  rip diverge alone.parquet batch.parquet
  rip diverge old.parquet new.parquet -o review --html review.html --tolerance 0.05
  rip diverge old.parquet new.parquet --require numeric --tolerance 0.05
  rip diverge monday.parquet tuesday.parquet --require semantic
  rip diverge alone.parquet batch.parquet --verbose
  rip diverge alone.parquet batch.parquet --zoom
  rip diverge old.parquet new.parquet --reference fp64.parquet
  rip diverge alone.parquet batch.parquet --json > verdict.json
"""


def diverge(
    a: Annotated[Path, typer.Argument(metavar="A.parquet", help="Trace A, the base (or A.parquet.parts).")],
    b: Annotated[Path, typer.Argument(metavar="B.parquet", help="Trace B.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Result folder. [default: A-vs-B]")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the HTML report.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest absolute logit difference of the numeric level.")
    ] = None,
    require: Annotated[str, typer.Option(metavar="|".join(LEVELS), help="Level that must hold.")] = "token",
    zoom: Annotated[
        bool,
        typer.Option(
            "--zoom",
            help="Run both sides again to the first difference, name the op, and prove it by putting A's "
            "values into B (activation patching; engine hf).",
        ),
    ] = False,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="R.parquet",
            help="Trace of A's tokens forced in float32 or float64: tells rounding from an error.",
        ),
    ] = None,
    noise: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="N.parquet", help="A's lane run again: how far equally good runs differ. Repeatable."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print evidence, statistics and notes behind the verdict, too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON, its text to stderr.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing results.")] = False,
) -> None:
    """Compare two traces: the first divergent token, the first differing layer, the drift, and why.

    Prints the answer in about ten lines, and evidence, statistics and notes with --verbose.

    Where a trace holds no token ids, texts are compared: texts that differ fail the level token, equal ones
    do not prove equal tokens. An engine that takes no seed gets no verdict on tokens: samples are compared.

    Exit code 0: the required level holds (by default: all tokens are equal); 1: it does not; 3: the traces
    share nothing that decides the level.
    """
    from ..diverge.compare import Context
    from ..diverge.compare import diverge as compare
    from ..diverge.present.first_screen.compose import Scene, first_screen
    from ..diverge.present.first_screen.places import site_course
    from ..diverge.present.terminal import print_details, print_first_screen
    from ..diverge.present.verdict_sentences import level_reason
    from ..diverge.reading.load import read_header
    from ..fingerprint.drift import drift

    level = check_choice("require", require, LEVELS, "level")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise BadInput(
            "not a non-negative number", "for example --tolerance 0.05", stated_option("tolerance", tolerance)
        )
    folder = out if out is not None else Path(f"{_stem(a)}-vs-{_stem(b)}")
    if noise and reference is None:
        raise BadInput("--noise needs a reference", "add --reference R.parquet")
    if html is not None:
        if html.suffix.lower() not in (".html", ".htm"):
            raise BadInput("not the name of an HTML file", "end it in .html", stated_option("html", html))
        check_output_file(html, force)
    headers = read_header(a), read_header(b)
    check_output(folder, force)
    base, now = headers[0].fingerprint, headers[1].fingerprint
    changes = [] if base is None or now is None else drift(base, now)
    console = stderr_console()
    with shown_progress(console) as progress:
        progress.stage("comparing")

        def show(done: int, total: int) -> None:
            progress.stage("comparing", done, total, f"{done:,} of {total:,} positions")

        verdict = compare(a, b, folder, Context(changes, tolerance, reference, noise or []), show, force)
    answer = console if as_json else stdout_console()
    print_first_screen(answer, first_screen(verdict, Scene(str(folder), headers, site_course(folder))))
    if verbose:
        print_details(answer, verdict, folder, headers)
    print_sentence(console, f"Wrote {folder}")
    failed: RipError | None = None
    if zoom:
        verdict, failed = _zoomed(verdict, (a, b), headers, folder, (console, answer))
    if html is not None:
        from ..diverge.present.report.build import write_report

        write_report(folder, html, a, b)
        print_sentence(console, f"Wrote {html}")
    if as_json:
        print(verdict.to_json(), end="")
    if failed is not None:
        raise failed
    _refuse_undecided(verdict, level, headers)
    judged = verdict.levels[level]
    if level != "token" and judged.state != "holds":
        print_sentence(console, f"{level} {judged.state}: {level_reason(judged)}")
    raise typer.Exit(EXIT_HOLDS if verdict.levels[level].state == "holds" else EXIT_FAILS)


def _zoomed(
    verdict: Verdict,
    traces: tuple[Path, Path],
    headers: tuple[TraceHeader, TraceHeader],
    folder: Path,
    consoles: tuple[Console, Console],
) -> tuple[Verdict, RipError | None]:
    """The verdict with what zoom found, printed; or why there is nothing.

    Args:
        consoles: For progress, and for what is found.
    """
    from ..diverge.present.terminal import print_zoom
    from ..experiments.zoom import save_verdict, zoom_into

    try:
        with shown_progress(consoles[0]) as progress:
            verdict = zoom_into(verdict, traces, headers, progress)
    except RipError as error:  # what was found without it is written all the same
        return verdict, error
    save_verdict(verdict, folder)
    print_zoom(consoles[1], verdict)
    return verdict, None


def _refuse_undecided(verdict: Verdict, level: Level, headers: tuple[TraceHeader, TraceHeader]) -> None:
    """A level that nothing was compared for has not failed, and it never passes.

    Raises:
        BadInput: It needs a tolerance.
        NothingCompared: The traces hold nothing that decides it.
    """
    from ..diverge.comparison.agreement import unseeded
    from ..diverge.present.findings.sentences import why

    judged = verdict.levels[level]
    if judged.state == "not stated":
        raise BadInput(f"the level {level} needs a tolerance", "state one with --tolerance")
    compared = verdict.compared
    drawn = any(map(unseeded, headers))
    undecided = bool(compared.texts) or drawn if level == "token" else not compared.sequences
    if judged.state == "not comparable" and undecided and level != "semantic":
        raise NothingCompared(
            f"the level {level} cannot be decided: {why(judged)}", "compare the texts with --require semantic"
        )


def _stem(path: Path) -> str:
    """`T.parquet` and `T.parquet.parts` without their endings."""
    return path.name.removesuffix(".parts").removesuffix(".parquet") or "trace"
