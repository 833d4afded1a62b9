"""`rip matrix`: write, plan, run and show an acceptance plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .console import counted, print_sentence, shown_progress, stderr_console, stdout_console
from .lane_options import EngineName, Model, Python, Settings, Url

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.matrix import OpenedPlan
    from ..schemas.matrix import MatrixVerdict

EXAMPLES = """\b
Examples:
  rip matrix init set.jsonl --model ./SmolLM2 --preset round-2 -o plan.toml
  rip matrix plan plan.toml
  rip matrix run plan.toml -o acceptance
  rip matrix show acceptance
"""
_STYLES = {"holds": "green", "fails": "bold red", "not covered": "yellow", "invalid": "bold yellow"}

app = typer.Typer(
    name="matrix",
    no_args_is_help=True,
    help="Run what a team claims about determinism, and judge it.",
    epilog=EXAMPLES,
)
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="What rip matrix run wrote with -o.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")]


@app.callback()
def _group() -> None:
    """Run what a team claims about determinism, and judge it."""


@app.command("dimensions", short_help="List what a plan can vary")
def dimensions() -> None:
    """List what a plan can vary, on which engines, with the values of a new plan."""
    from ..experiments.acceptance.dimensions import ALL, DIMENSIONS

    for name, dimension in DIMENSIONS.items():
        engines = (
            "" if dimension.names is None or ALL in dimension.names else f" ({', '.join(dimension.names)})"
        )
        print(f"{name:<18} {dimension.about}{engines}")


@app.command("init", epilog=EXAMPLES, short_help="Write a plan to start from")
def init(
    requests: Annotated[
        Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl|TRACE.parquet", help="The requests to run.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="PLAN.toml", help="The plan to write.")],
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="round-1, round-2, round-3 or vendor (docs/matrix.md).")
    ] = "round-1",
    lanes: Annotated[
        list[str] | None,
        typer.Option("--lane", metavar="LANE.toml", help="A lane file; two of them for round-3. Repeatable."),
    ] = None,
    model: Model = None,
    engine: EngineName = None,
    url: Url = None,
    python: Python = None,
    settings: Settings = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a plan.")] = False,
) -> None:
    """Write a commented plan for the engine at hand. Read it, change it, then run it."""
    from ..experiments.matrix import NewPlan, new_plan

    found = NewPlan(
        requests, out, preset, tuple(lanes or ()), model, engine, url, python, tuple(settings or ())
    )
    new_plan(found, force)
    print_sentence(stderr_console(), f"Wrote {out}: look at it, then rip matrix plan {out}")


@app.command("plan", epilog=EXAMPLES, short_help="Show the cells of a plan")
def plan(path: PlanFile) -> None:
    """Show the cells of a plan: what each varies, and how many runs it takes. Nothing runs."""
    from ..experiments.acceptance.execute import wanted_launches
    from ..experiments.acceptance.sentences import cell_line
    from ..experiments.matrix import read_plan

    opened = read_plan(path)
    for line in map(cell_line, opened.cells):
        print("  ".join((line[0], f"{line[1]:<16}", line[2])))
    runs = len(wanted_launches(opened.cells))
    print_sentence(
        stderr_console(),
        f"{counted(len(opened.cells), 'cell')}, {counted(len(opened.plan.claims), 'claim')}, "
        f"{counted(runs, 'run')}: cells with an equal side share its runs.",
    )


@app.command("run", epilog=EXAMPLES, short_help="Run a plan, from where it stopped")
def run(
    path: PlanFile,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of traces, cells and verdict.")
    ],
    as_json: AsJson = False,
) -> None:
    """Run a plan: every launch in a process of its own, A1 B1 A2 B2; a cell is compared as soon as it can be.

    The same command goes on where it stopped: nothing that is finished runs again, and every trace is kept.

    Exit code 0: every claim holds; 1: one fails; 3: the plan is invalid, or a claim is not covered.
    """
    from ..experiments.matrix import run_matrix, show_matrix

    console = stderr_console()
    with shown_progress(console) as progress:
        run_matrix(path, out, progress)
    _finish(show_matrix(out), as_json)


@app.command("show", epilog=EXAMPLES, short_help="Show where a plan stands")
def show(folder: Folder, as_json: AsJson = False) -> None:
    """Show where a plan stands: each claim with the cells that decide it.

    Exit codes as those of rip matrix run.
    """
    from ..experiments.matrix import show_matrix

    _finish(show_matrix(folder), as_json)


def _finish(opened: OpenedPlan, as_json: bool) -> None:
    verdict = opened.verdict
    if as_json:
        print(verdict.to_json(), end="")
    else:
        _print_verdict(stdout_console(), opened, verdict)
    claims = [claim.state for claim in verdict.claims if not claim.control]
    if "fails" in claims:
        raise typer.Exit(EXIT_FAILS)
    raise typer.Exit(EXIT_HOLDS if verdict.valid and set(claims) == {"holds"} else EXIT_NOTHING_COMPARED)


def _print_verdict(console: Console, opened: OpenedPlan, verdict: MatrixVerdict) -> None:
    from ..experiments.acceptance.sentences import (
        MARKS,
        cell_result,
        change,
        claim_line,
        summary_line,
    )

    print_sentence(console, summary_line(verdict), style=None if verdict.valid else "bold yellow")
    for claim in verdict.claims:
        style = "green" if claim.control and claim.state == "fails" else _STYLES[claim.state]
        mark = "✓" if claim.control and claim.state == "fails" else MARKS[claim.state]
        print_sentence(console, f"{mark} {claim.id} ({claim.card.level}): {claim_line(claim)}", style=style)
        for one in claim.cells:
            cell = opened.store.cells[one.cell]
            what = change(cell.dimension, cell.value_a, cell.value_b)
            print_sentence(console, f"    {cell.lane}, {what}: {cell_result(one, cell)}")
    done = f"{verdict.cells_done} of {counted(verdict.cells, 'cell')} done"
    bad = f", {verdict.cells_invalid} invalid" if verdict.cells_invalid else ""
    print_sentence(console, f"{done}{bad}. Not varied: {', '.join(verdict.not_covered)}.")
