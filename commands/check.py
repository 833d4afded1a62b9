"""`rip check`: ready-made checks of what an engine promises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import CHECK_MODES, check_choice
from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS
from .console import print_sentence, shown_progress, stderr_console
from .lane_options import ApiKeyEnv, EngineName, LaneName, Model, Python, Settings, Url

if TYPE_CHECKING:
    from rich.console import Console

    from ..schemas.check import Check

EXAMPLES = """\b
Examples:
  rip check batch-invariance --model ./SmolLM2 --sequences 8
  rip check batch-invariance --engine llama.cpp --model model.gguf --set n_ctx=20480
  rip check batch-invariance --url http://127.0.0.1:8000 --model ./SmolLM2 --mode free
  rip check batch-invariance --engine my_engine:MyEngine --model ./SmolLM2 --sampled
  rip check batch-invariance --model ./SmolLM2 --batch 1
  rip diverge batch-invariance/alone.parquet batch-invariance/batched.parquet
"""

app = typer.Typer(
    name="check",
    no_args_is_help=True,
    help="Ready-made checks of what an engine promises.",
    epilog="\b\nExamples:\n  rip check batch-invariance --model ./SmolLM2 --sequences 8",
)


@app.callback()
def _group() -> None:
    """Ready-made checks of what an engine promises."""


@app.command("batch-invariance", epilog=EXAMPLES, short_help="Check that batching does not change results")
def batch_invariance(
    model: Model = None,
    engine: EngineName = None,
    url: Url = None,
    api_key_env: ApiKeyEnv = None,
    python: Python = None,
    lane: LaneName = "default",
    sequences: Annotated[
        int, typer.Option("--sequences", metavar="N", min=1, max=10_000, help="Random token sequences.")
    ] = 64,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, max=100_000, help="Generated tokens of each.")
    ] = 32,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**31 - 1, help="Random seed.")] = 0,
    min_length: Annotated[
        int, typer.Option("--min-length", metavar="N", min=1, help="Tokens of the shortest prompt.")
    ] = 16,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            metavar="N",
            min=1,
            help="Tokens of the longest. [default: 256, if the context holds it]",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", min=1, help="Sequences that run together. [default: all]"),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="|".join(CHECK_MODES),
            help="Force random tokens, or let the engine choose. [default: golden-decode where it can]",
        ),
    ] = None,
    sampled: Annotated[
        bool,
        typer.Option(
            "--sampled", help="Draw at temperature 1 with a seed for each sequence: the tokens must be equal."
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of requests, traces and result.")
    ] = Path("batch-invariance"),
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is in the folder.")] = False,
) -> None:
    """Check that a request gives the same result alone and in a batch, bit for bit.

    Random token sequences of different lengths run one by one and then together, random golden tokens forced.
    Token ids, logprobs, top token ids and top-token logprobs must be exactly equal. Where an engine cannot
    force tokens, it chooses them greedily. Both traces stay in the folder, for rip diverge.

    With --batch 1 the sequences run one by one twice, which checks that the engine repeats itself at all.

    Exit code 0: everything that must be equal is equal; 1: it is not, or the engine does not return it.
    """
    from ..experiments.batch_invariance import CheckRequest, check_batch_invariance
    from ..experiments.lanes.request import LaneRequest

    request = CheckRequest(
        LaneRequest(lane, engine, model, url, api_key_env, python, None, tuple(settings or ())),
        out,
        sequences,
        tokens,
        seed,
        min_length,
        max_length,
        batch,
        mode=None if mode is None else check_choice("mode", mode, CHECK_MODES),
        sampled=sampled,
        force=force,
    )
    console = stderr_console()
    with shown_progress(console) as progress:
        result = check_batch_invariance(request, progress)
    _print_result(console, result, out)
    if as_json:
        print(result.to_json(), end="")
    raise typer.Exit(EXIT_HOLDS if result.holds else EXIT_FAILS)


def _print_result(console: Console, result: Check, out: Path) -> None:
    """What ran, the four lines, the verdict, and what to run next."""
    from ..experiments.batch_check.sentences import line_sentence, next_steps, run_sentence

    print_sentence(console, run_sentence(result))
    for line in result.lines:
        print_sentence(console, line_sentence(line, result))
    print_sentence(console, result.sentence, style="green" if result.holds else "red")
    for step in next_steps(result, out):
        print_sentence(console, step)
    print_sentence(console, f"Wrote {out}")
