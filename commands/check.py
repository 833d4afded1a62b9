"""`rip check`: ready-made checks of what an engine promises."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput, OutputFailed
from .exit_codes import EXIT_FAILS, EXIT_HOLDS
from .lane_options import ApiKeyEnv, EngineName, LaneName, Model, Python, Settings, Url

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.batch_invariance import Draft
    from ..experiments.lanes.resolve import LaneRunner
    from ..schemas.check import Check, CheckLine

GOLDEN, FREE = "golden-decode", "free"
REQUESTS, RESULT, SERVER_LOG = "set.jsonl", "check.json", "server.log"
HELP = """Are the results of a request the same alone and in a batch, bit for bit?

Random token sequences of different lengths run one by one and then together, random golden tokens forced.
Token ids, logprobs, top token ids and top-token logprobs must be exactly equal. Where an engine cannot force
tokens, it chooses them greedily. Both traces stay in the folder, for rip diverge.

\b
Examples:
  rip check batch-invariance --model ./SmolLM2 --sequences 8
  rip check batch-invariance --engine llama.cpp --model model.gguf --set n_ctx=20480
  rip check batch-invariance --url http://127.0.0.1:8000 --model ./SmolLM2 --mode free
  rip check batch-invariance --engine my_engine:MyEngine --model ./SmolLM2 --sampled
  rip check batch-invariance --model ./SmolLM2 --batch 1

With --batch 1 the sequences run one by one twice: does the engine repeat itself at all?

Exit code 0: all that had to be equal is equal; 1: it is not, or the engine does not tell it.
"""

app = typer.Typer(no_args_is_help=True, help="Ready-made checks of what an engine promises.")


@app.callback()
def _group() -> None:
    """Ready-made checks of what an engine promises."""


@app.command("batch-invariance", help=HELP, short_help="Alone and in a batch: exactly equal?")
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
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**31 - 1, help="Of everything that is random.")
    ] = 0,
    min_length: Annotated[
        int, typer.Option("--min-length", metavar="N", min=1, help="Tokens of the shortest prompt.")
    ] = 16,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length", metavar="N", min=1, help="Of the longest. [default: 256, if the context holds it]"
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
            metavar=f"{GOLDEN}|{FREE}",
            help="Force random tokens, or let the engine choose. [default: force them where it can]",
        ),
    ] = None,
    sampled: Annotated[
        bool,
        typer.Option(
            "--sampled", help="Draw at temperature 1 with a seed for each sequence: the tokens must be equal."
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where requests, traces and result go.")
    ] = Path("batch-invariance"),
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is in the folder.")] = False,
) -> None:
    from ..experiments.batch_invariance import Draft
    from ..experiments.lanes.process import enter
    from ..experiments.lanes.resolve import Chosen, LaneRunner, choose
    from .console import stderr_console

    if mode not in (None, GOLDEN, FREE) or (sampled and mode == GOLDEN):
        raise BadInput(
            f"--mode {mode}: {'forced tokens are not sampled' if sampled else 'no such choice'}",
            "leave --mode out" if sampled else f"choose one of: {GOLDEN}, {FREE}",
        )
    _check_folder(out, force)
    given = Chosen("check", engine, model, url, api_key_env, python, None, tuple(settings or ()))
    chosen = choose(lane, given)
    enter(chosen)
    if chosen.neighbours is not None:
        raise BadInput(f"{lane}: neighbours: the check chooses the batches", "say --batch N")
    if any(pair.partition("=")[0].replace("-", "_") == "batch_size" for pair in chosen.settings):
        raise BadInput("--set batch_size: the check chooses the batches", "say --batch N")
    together = min(batch or sequences, sequences)
    runner = LaneRunner(replace(chosen, settings=(*chosen.settings, f"batch_size={together}")))
    can = runner.capabilities
    wanted = FREE if sampled else mode or (GOLDEN if GOLDEN in can.modes else FREE)
    runner.refuse(None, None, wanted)
    if not can.token_ids:
        raise BadInput(
            f"the engine {runner.engine} tells no token ids, so nothing can be exactly equal",
            "check an engine that tells them",
        )
    if sampled and not can.seed:
        raise BadInput(f"the engine {runner.engine} has no seeds", "leave --sampled out")
    draft = Draft(sequences, tokens, seed, min_length, max_length, together, wanted, sampled)  # type: ignore[arg-type]
    console = stderr_console()
    result = _run(console, runner, draft, out, force)
    _summarise(console, result, out)
    if as_json:
        print(result.to_json(), end="")
    raise typer.Exit(EXIT_HOLDS if result.holds else EXIT_FAILS)


def _run(console: Console, runner: LaneRunner, draft: Draft, out: Path, force: bool) -> Check:
    """Open the engine, run the check, write requests and result."""
    from ..experiments.batch_invariance import check_batch_invariance, random_requests
    from ..schemas.envelope import Runtime
    from ..schemas.files import write_private
    from .console import printable, progress_bar

    with progress_bar(console) as bar:
        task = bar.add_task("hashing the model", total=None, note="")
        runner.identify(lambda done, total: bar.update(task, completed=done, total=total))
        bar.remove_task(task)
        task = bar.add_task("loading the model", total=None, note="")

        def show(done: int, total: int, note: str) -> None:
            tokens = f"{done}/{total} tokens"
            bar.update(task, description=printable(note), completed=done, total=total, note=tokens)

        out.mkdir(exist_ok=True)
        opening = runner.opening(
            None,
            runtime=Runtime(),
            mode=draft.mode,
            log=out / SERVER_LOG,
            say=lambda note: bar.update(task, description=printable(note)),
        )
        with closing(runner.open(opening)) as opened:
            fingerprint = runner.fingerprint(opened)
            requests = random_requests(draft, opened, fingerprint)
            result = check_batch_invariance(
                draft, requests, opened, runner.lane(), fingerprint, out, force, show
            )
    lines = [json.dumps(request.to_object(), ensure_ascii=False) + "\n" for request in requests]
    write_private(out / REQUESTS, "".join(lines))
    write_private(out / RESULT, result.to_json())
    return result


def _check_folder(out: Path, force: bool) -> None:
    """Refuse, before any work, a folder that cannot be written, or that holds an earlier check.

    Raises:
        OutputFailed: It cannot be used.
    """
    from ..experiments.batch_invariance import ALONE, BATCHED
    from .console import refuse_overwrite

    if out.exists() and not out.is_dir():
        raise OutputFailed(f"{out} exists and is no folder", "choose another name with -o")
    for name in (REQUESTS, ALONE, BATCHED, RESULT):
        refuse_overwrite(out / name if out.exists() else out, force)


def _summarise(console: Console, result: Check, out: Path) -> None:
    """What ran, the four lines, the verdict, and how to go on."""
    from .console import tell

    claim = result.claim.held or {}
    shortest, longest = claim["prompt_lengths"]
    if result.mode == GOLDEN:
        how = "random tokens forced"
    else:
        how = (
            "drawn at temperature 1, a seed for each sequence"
            if result.sampled
            else "greedy, no tokens forced"
        )
    tell(
        console,
        f"{claim['sequences']} random sequences of {shortest} to {longest} tokens, {claim['tokens']} "
        f"generated tokens each, {how}; engine {result.engine}",
    )
    for line in result.lines:
        tell(console, _said(line, result))
    tell(console, result.verdict, style="green" if result.holds else "red")
    if not result.holds:
        a, b = out / result.alone, out / result.batched
        if result.batch > 1:
            tell(console, "whether the engine repeats itself at all: the same check with --batch 1")
        tell(console, f"go on: rip diverge {shlex.quote(str(a))} {shlex.quote(str(b))}")
    tell(console, f"Wrote {out}")


def _said(line: CheckLine, result: Check) -> str:
    """One line of the result: `logprobs            differ first at sequence-03, step 0: …`."""
    name = f"{line.what:<19}"
    note = "" if line.required else " (not required)"
    if line.state == "not told":
        return f"{name} not told by this engine{note}"
    if line.first is None:
        forced = " (forced)" if line.what == "token ids" and result.mode == GOLDEN else ""
        untold = f", not told in {line.untold:,}" if line.untold else ""
        return f"{name} equal in {line.compared:,} steps{forced}{untold}{note}"
    first = line.first
    rank = "" if first.rank is None else f", rank {first.rank}"
    more = f"; {line.differing:,} of {line.compared:,} steps"
    if line.largest is not None:
        more += f", by at most {line.largest:.3g} nats"
    values = f"{_value(first.alone)} alone, {_value(first.batched)} batched"
    return f"{name} differ first at {first.request_id}, step {first.step}{rank}: {values}{more}{note}"


def _value(value: int | float | None) -> str:
    """A token id, or a float32 with all its digits."""
    if value is None:
        return "nothing"
    return str(value) if isinstance(value, int) else f"{value:.9g}"
