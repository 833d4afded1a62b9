"""`rip confirm`: run the experiment that confirms or refutes a cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .console import print_sentence, shown_progress, stderr_console, stdout_console

if TYPE_CHECKING:
    from rich.console import Console

    from ..schemas.findings.experiments import Confirmation
    from ..schemas.verdict import Cause

EXAMPLES = """\b
Examples:
  rip confirm alone-vs-batch
  rip confirm result 2
  rip confirm result --all
  rip report result -o postmortem.html
"""
_STYLES = {"confirmed": "bold green", "refuted": "bold red", "not decided": "bold yellow"}


def confirm(
    folder: Annotated[
        Path, typer.Argument(metavar="RESULT_DIR", help="The folder that rip diverge wrote with -o.")
    ],
    number: Annotated[
        int, typer.Argument(metavar="N", min=1, help="The cause, by its number in the list.")
    ] = 1,
    every: Annotated[
        bool,
        typer.Option("--all", help="Go down the list: undo one cause at a time, then all of them together."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of both runs whose value no trace holds, as it may be secret. Repeatable.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again what was run before.")] = False,
) -> None:
    """Run the experiment of a cause: B again with A's value of it, compared with A and B to the bit.

    First B runs again as it was, and must equal itself. Then: confirmed, where B's difference from A is gone;
    refuted, where the new run equals B; else not decided. The decision is written into the result, and
    rip report shows it. Traces are kept in RESULT_DIR.confirm, so what was run once is not run again.

    Exit code 0: confirmed (with --all: at least one cause, or all of them together); 1: refuted; 3: not
    decided.
    """
    from ..experiments.confirm import ConfirmRequest
    from ..experiments.confirm import confirm as run

    console = stderr_console()
    states = []

    def show(which: int, cause: Cause | None, found: Confirmation) -> None:
        states.append(found.state)
        _print_decision(console, which, cause, found)

    request = ConfirmRequest(folder, number, every, tuple(settings or ()), force)
    with shown_progress(console) as progress:
        verdict = run(request, progress, show)
    print_sentence(console, f"Wrote {folder / 'summary.json'}")
    if as_json:
        print(verdict.to_json(), end="")
    else:
        from ..diverge.present.terminal import print_result

        print_result(stdout_console(), verdict, folder)
    if "confirmed" in states:
        raise typer.Exit(EXIT_HOLDS)
    raise typer.Exit(EXIT_NOTHING_COMPARED if "not decided" in states else EXIT_FAILS)


def _print_decision(console: Console, number: int, cause: Cause | None, found: Confirmation) -> None:
    from ..diverge.present.findings.experiments import decision
    from ..diverge.present.findings.labels import label
    from ..diverge.present.findings.sentences import sentence

    name = "all causes together" if cause is None else f"{number}. {label(cause)}"
    print_sentence(console, f"{name}: {decision(found)}", style=_STYLES[found.state])
    for one in found.evidence:
        print_sentence(console, f"  - {sentence(one)}")
