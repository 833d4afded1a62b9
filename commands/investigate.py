"""`rip investigate`: from two lanes, fingerprints or traces to the postmortem, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS
from .console import print_sentence, shown_progress, stderr_console, stdout_console
from .lane_options import AllowDrift, EngineName, Model, Settings

EXAMPLES = """\b
Examples:
  rip investigate monday.parquet tuesday.parquet -o incident
  rip investigate monday.toml tuesday.toml --requests set.jsonl -o incident
  rip investigate base.json now.json --requests set.jsonl --model ./SmolLM2 -o incident
"""


def investigate(
    a: Annotated[
        Path,
        typer.Argument(metavar="A", help="The good side: a trace, a lane file or a fingerprint."),
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other side, of the same kind.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of all that is found.")
    ] = Path("investigation"),
    requests: Annotated[
        Path | None,
        typer.Option(metavar="ENVELOPE.json|SET.jsonl", help="What lanes and fingerprints run."),
    ] = None,
    model: Model = None,
    engine: EngineName = None,
    settings: Settings = None,
    allow_drift: AllowDrift = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start over and replace what the folder holds.")
    ] = False,
) -> None:
    """Find out why A and B differ, and write the postmortem.

    Compares the environments, replays the requests on both sides (traces are there already), compares
    them, runs the experiments that confirm the causes, narrows settings down where none is proven, and
    writes postmortem.html and postmortem.md. Each step says one line. The same command goes on where it was
    interrupted.

    Two fingerprints run with what a replay here can set of them: the model's folder and variables.

    Exit code 0: all tokens are equal; 1: they are not.
    """
    from ..experiments.investigate import InvestigateRequest
    from ..experiments.investigate import investigate as run

    request = InvestigateRequest(
        a, b, out, requests, model, engine, tuple(settings or ()), allow_drift, force
    )
    console = stderr_console()
    with shown_progress(console) as progress:
        found = run(request, progress)
    for path in found.reports:
        print_sentence(console, f"Wrote {path}")
    if as_json:
        print(found.verdict.to_json(), end="")
    else:
        from ..diverge.present.terminal import print_result

        print_result(stdout_console(), found.verdict, found.result)
    holds = found.verdict.levels["token"].state == "holds"
    raise typer.Exit(EXIT_HOLDS if holds else EXIT_FAILS)
