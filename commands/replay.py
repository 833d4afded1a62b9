"""`rip replay`: re-run recorded requests and write a trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import CAPTURE_LEVELS, MODES, check_choice
from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .completion import sampling_keys
from .console import counted, print_notes, print_sentence, shown_progress, stderr_console
from .lane_options import AllowDrift, ApiKeyEnv, EngineName, LaneName, Model, Python, Settings, Tap, Url

if TYPE_CHECKING:
    from rich.console import Console

    from ..replay.record_run import Outcome
    from ..replay.run import Result

SHOWN_MISMATCHES = 8
"""Recorded answers that differ and are printed one by one; the trace's header holds all."""
EXAMPLES = """\b
Settings of the engine hf (--set KEY=VALUE); those of servers: docs/engines.md:
  dtype             dtype of weights and activations: float64, float32, bfloat16, float16
  device            torch device, for example cpu or cuda:0
  attention         attention implementation of transformers, for example sdpa or eager
  threads           threads of one operation
  batch_size        requests of the set that share every forward pass
  padding_side      where shorter prompts of a batch are padded: left, right
  prefill_chunk     prompt tokens per prefill pass; 0: the whole prompt at once
  matmul_precision  precision of float32 matmul: highest, high, medium
  deterministic     torch.use_deterministic_algorithms: true, false

\b
Examples:
  rip replay request.json --model ./SmolLM2 -o alone.parquet
  rip replay request.json --model ./SmolLM2 --neighbours 7 -o batch.parquet
  rip replay set.jsonl --model ./SmolLM2 --set batch_size=8 --set dtype=bfloat16 -o set.parquet
  rip replay request.json --model ./SmolLM2 --mode golden-decode --golden alone.parquet \\
      -o forced.parquet
  rip replay set.jsonl --model ./SmolLM2 --sampling temperature=0 -o greedy.parquet
  rip replay request.json --model ./SmolLM2 --capture tensors --sites 'layers\\.4\\.' \\
      --positions 57:58 -o rows.parquet
  rip replay request.json --model ./SmolLM2 --zoom 57:layers.4.self_attn -o ops.parquet
  rip replay set.jsonl --url http://127.0.0.1:8000 --set batch_size=8 -o served.parquet
  rip replay set.jsonl --lane vllm.toml -o started.parquet
"""


def replay(
    requests: Annotated[
        Path,
        typer.Argument(
            metavar="ENVELOPE.json|SET.jsonl|TRACE.parquet",
            help="The requests to re-run; of a trace, those that it records.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="TRACE.parquet", help="The trace to write.")],
    model: Model = None,
    engine: EngineName = None,
    url: Url = None,
    api_key_env: ApiKeyEnv = None,
    python: Python = None,
    tap: Tap = None,
    lane: LaneName = "default",
    mode: Annotated[
        str,
        typer.Option(
            metavar="|".join(MODES),
            help="free: the engine chooses tokens. golden-decode: recorded tokens are forced step by step. "
            "golden-prefill: prompt and recorded tokens are scored in one pass.",
        ),
    ] = "free",
    golden: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE.parquet",
            help="Force the tokens recorded in this trace. [default: the envelope's expected tokens]",
        ),
    ] = None,
    neighbours: Annotated[
        str | None,
        typer.Option(
            metavar="SET.jsonl|N",
            help="Run these requests, or N synthetic ones, in the same batch without recording them.",
        ),
    ] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            "--sampling",
            metavar="KEY=VALUE",
            help="A sampling field that applies in place of every envelope's, for example temperature=0. "
            "Repeatable.",
            autocompletion=sampling_keys,
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of every request.")] = 1,
    capture: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(CAPTURE_LEVELS),
            help="tokens: distributions only. sites: also hash and sketch of every row. tensors: also the "
            "rows themselves. [default: sites where the engine exposes them, else tokens]",
        ),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Observe only sites (module outputs) with a match in their name. [default: all]",
        ),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            metavar="A:B", help="With --capture tensors: keep rows at positions A … B−1. [default: all]"
        ),
    ] = None,
    zoom: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION[:SITE]",
            help="Record every op of the forward pass that computes this position, in TRACE.zoom.parquet: of "
            "all modules, of SITE, or of those that match --sites (engine hf).",
        ),
    ] = None,
    topk: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="Most likely tokens kept at every position. [default: 20, or the engine's limit]",
        ),
    ] = None,
    settings: Settings = None,
    allow_drift: AllowDrift = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the trace, or the rest of an unfinished one.")
    ] = False,
) -> None:
    """Re-run recorded requests and record every token and every layer in a trace.

    Exit code 0: done, and the recorded answers (where envelopes state them) were reproduced, as tokens or as
    text; 1: one was not; 3: none of them could be compared. The trace is written in any case.
    """
    from ..experiments.lanes.request import LaneRequest
    from ..experiments.replay import ReplayRequest, replay_on_lane
    from ..experiments.replay_plan.zoom import save_ops

    request = ReplayRequest(
        requests,
        out,
        LaneRequest(lane, engine, model, url, api_key_env, python, tap, tuple(settings or ()), neighbours),
        mode=check_choice("mode", mode, MODES),
        golden=golden,
        sampling=tuple(sampling or ()),
        repeat=repeat,
        capture=None if capture is None else check_choice("capture", capture, CAPTURE_LEVELS),
        sites=sites,
        positions=positions,
        zoom=zoom,
        topk=topk,
        allow_drift=allow_drift,
        force=force,
    )
    console = stderr_console()
    with shown_progress(console) as progress:
        replayed = replay_on_lane(request, progress)
    if replayed.errors:
        print_sentence(console, f"not replayed: {counted(replayed.errors, 'request')} recorded with an error")
    _print_summary(console, replayed.result, sites_by_default=capture is None)
    if replayed.recorder is not None:
        ops = save_ops(replayed.recorder, replayed.result)
        passes = counted(ops.passes, "forward pass", "forward passes")
        print_sentence(console, f"{ops.ops:,} ops of {passes} recorded")
        if ops.left_out_bytes:
            print_sentence(console, f"{ops.left_out_bytes:,} bytes of tensors are kept as digests only")
        print_sentence(console, f"Wrote {ops.path}")
    if replayed.result.compared_none:
        raise typer.Exit(EXIT_NOTHING_COMPARED)
    raise typer.Exit(EXIT_HOLDS if replayed.result.expectations_met else EXIT_FAILS)


def _print_summary(console: Console, result: Result, sites_by_default: bool) -> None:
    """What ran, what was observed, and whether the recorded answers were reproduced."""
    header, outcomes = result.header, result.outcomes
    texts = header.abilities is not None and not header.abilities.token_ids
    size = f"{sum(len(outcome.tokens) for outcome in outcomes)} tokens"
    if texts:
        size = f"{sum(len(outcome.text or '') for outcome in outcomes)} characters"
    verb = "generated" if header.mode == "free" else "forced"
    if header.capture == "tokens":
        captured = "texts only" if texts else "tokens only"
    else:
        captured = f"{len(header.sites)} sites" + (" (the default)" if sites_by_default else "")
        if header.site_filter:
            captured = f"{len(header.sites)} sites (those that match --sites)"
        captured += ", rows kept" if header.capture == "tensors" else ""
    sequences = counted(len(outcomes), "sequence")
    print_sentence(console, f"{sequences}, {size} {verb} ({header.mode}), captured: {captured}")
    if header.observer.state != "not run":
        print_sentence(console, f"observer check: {header.observer.state} ({header.observer.compared})")
    if header.observer.why and header.capture != "tokens":
        print_sentence(console, f"warning: {header.observer.why}", style="yellow")
    print_notes(console, header)
    _print_expected(console, outcomes)
    print_sentence(console, f"Wrote {result.path}")


def _print_expected(console: Console, outcomes: list[Outcome]) -> None:
    """Which recorded answers were reproduced, by what was compared, and which could not be compared."""
    missed = [outcome for outcome in outcomes if outcome.expected.mismatch is not None]
    for outcome in missed[:SHOWN_MISMATCHES]:
        compared = outcome.expected
        differs, unit = (
            ("tokens differ", "step") if compared.by == "tokens" else ("text differs", "character")
        )
        sequence = f"{outcome.request_id}, sample {outcome.sample}"
        print_sentence(
            console,
            f"{sequence}: {differs} from the recorded answer at {unit} {compared.mismatch}",
            style="red",
        )
    for by in ("tokens", "text"):
        compared_so = [outcome.expected.mismatch for outcome in outcomes if outcome.expected.by == by]
        if compared_so:
            reproduced = compared_so.count(None)
            print_sentence(console, f"recorded {by} reproduced: {reproduced} of {len(compared_so)}")
    reasons = Counter(outcome.expected.why_not for outcome in outcomes if outcome.expected.why_not)
    for reason, count in reasons.items():
        print_sentence(console, f"{count} could not be compared: {reason}", style="yellow")
