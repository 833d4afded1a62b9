"""`rip narrow`: run mixtures of two lanes until it is known which settings turn a divergence on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import CAPTURE_LEVELS, NARROW_LEVELS, check_choice
from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .console import print_sentence, shown_progress, stderr_console
from .lane_options import AllowDrift, ApiKeyEnv, EngineName, Model, Python, Settings, Url

if TYPE_CHECKING:
    from rich.console import Console

    from ..schemas.narrow import Narrow

CAPTURES = tuple(level for level in CAPTURE_LEVELS if level != "tensors")
EXAMPLES = """\b
Examples:
  rip narrow set.jsonl --good monday.toml --bad tuesday.toml -o narrowed
  rip narrow set.jsonl --model ./SmolLM2 --vary dtype=float32:bfloat16 --vary threads=2:1 \\
      --vary neighbours=:7 -o narrowed
  rip narrow set.jsonl --model ./SmolLM2 --set dtype=bfloat16 --vary attention=sdpa:eager \\
      --vary env.ATEN_CPU_CAPABILITY=:avx2 --require bitwise -o narrowed
  rip narrow set.jsonl --good vllm.toml --vary env.OMP_NUM_THREADS=2:1 --repeat 8 -o narrowed
"""
_WIDTH_WITHOUT_TERMINAL = 160
_NOISY = ("found with noise", "noise")
_OUTCOMES = {"same": "green", "diverges": "red"}


def narrow(
    requests: Annotated[
        Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl|TRACE.parquet", help="The requests to run.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the traces and the result.")
    ],
    good: Annotated[
        str | None,
        typer.Option(
            "--good",
            metavar="LANE.toml",
            help="The lane without the divergence. [default: the options alone]",
        ),
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option(
            "--bad", metavar="LANE.toml", help="The lane with the divergence. [default: the good lane]"
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=GOOD:BAD",
            help="A setting that differs; an empty value leaves it unstated. Repeatable.",
        ),
    ] = None,
    model: Model = None,
    engine: EngineName = None,
    url: Url = None,
    api_key_env: ApiKeyEnv = None,
    python: Python = None,
    settings: Settings = None,
    require: Annotated[
        str,
        typer.Option(
            "--require",
            metavar="|".join(NARROW_LEVELS),
            help="Level that counts: a difference there is a divergence.",
        ),
    ] = "token",
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat",
            metavar="N",
            min=1,
            max=1000,
            help="Where outcomes are noisy: run a mixture up to N times, until its outcome is decided.",
        ),
    ] = 1,
    capture: Annotated[
        str | None,
        typer.Option(
            "--capture",
            metavar="|".join(CAPTURES),
            help="As for rip replay. [default: sites where shown, else tokens]",
        ),
    ] = None,
    allow_drift: AllowDrift = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start over and replace what the folder holds.")
    ] = False,
) -> None:
    """Find which settings make two lanes diverge, by running mixtures of the two lanes.

    Each mixture runs the requests in a process of its own, and every trace is kept. The result is the
    smallest set of settings that turns the divergence on: these alone turn it on, and without any one of them
    it disappears.

    What can differ: settings (--set), environment variables (env.NAME), model, url, neighbours, and python:
    the interpreter that starts the server or, for engines in rip's own process, that runs rip itself.

    All values are checked before the first run. The same command continues an interrupted search. How it
    searches: docs/narrow.md.

    Exit code 0: found; 1: the lanes do not diverge; 3: too noisy to decide with this many repeats.
    """
    from ..experiments.lanes.request import LaneRequest
    from ..experiments.narrow import NarrowRequest, narrow_lanes

    request = NarrowRequest(
        requests,
        out,
        LaneRequest("narrow", engine, model, url, api_key_env, python, None, tuple(settings or ())),
        good,
        bad,
        tuple(vary or ()),
        level=check_choice("require", require, NARROW_LEVELS),
        repeat=repeat,
        capture=None if capture is None else check_choice("capture", capture, CAPTURES),
        allow_drift=allow_drift,
        force=force,
    )
    console = stderr_console()
    with shown_progress(console) as progress:
        result = narrow_lanes(request, progress)
    _print_result(console, result)
    print_sentence(console, f"Wrote {out}")
    if as_json:
        print(result.to_json(), end="")
    codes = {"no divergence": EXIT_FAILS, "noise": EXIT_NOTHING_COMPARED}
    raise typer.Exit(codes.get(result.state, EXIT_HOLDS))


def _print_result(console: Console, result: Narrow) -> None:
    """The result in a sentence, its tables, and the commands that repeat it."""
    from rich.text import Text

    from ..experiments.settings_search.sentences import command_lines

    style = "bold yellow" if result.state in _NOISY else "bold"
    console.print(Text(result.sentence, style=style), soft_wrap=not console.is_terminal)
    if console.is_terminal:
        _print_tables(console, result)
    else:
        console.width = _WIDTH_WITHOUT_TERMINAL
        with console.capture() as captured:
            _print_tables(console, result)
        # Tables fill their lines up to the width; in a file or a paste that is noise.
        console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    for index, command in enumerate(command_lines(result)):
        lead = "Repeat: " if index == 0 else "        "
        console.print(Text(f"{lead}{command}", style="cyan"), soft_wrap=True)  # to be copied as one line


def _print_tables(console: Console, result: Narrow) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from ..experiments.settings_search.sentences import run_rows, setting_rows

    settings = Table(box=None, pad_edge=False)
    for column in ("setting", "good", "bad", ""):
        settings.add_column(column)
    for name, good, bad, does in setting_rows(result):
        settings.add_row(Text(name), Text(good), Text(bad), Text(does, style="bold red"))
    console.print(Padding(settings, (1, 0, 0, 2), expand=False))
    runs = Table(box=None, pad_edge=False)
    for column in ("with", "outcome", f"first difference ({result.level})"):
        runs.add_column(column)
    for row in run_rows(result):
        runs.add_row(
            Text(row.label), Text(row.runs, style=_OUTCOMES.get(row.outcome, "yellow")), Text(row.where)
        )
    console.print(Padding(runs, (1, 0, 1, 2), expand=False))
