"""`rip replay`: re-run recorded requests and write a trace."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import BadInput
from ..schemas.trace import CAPTURE_LEVELS, MODES
from .exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .lane_options import ApiKeyEnv, EngineName, LaneName, Model, Python, Settings, Tap, Url

HELP = """Re-run recorded requests and write what happened, token by token and layer by layer, as a trace.

\b
Examples:
  rip replay request.json --model ./SmolLM2 -o alone.parquet
  rip replay request.json --model ./SmolLM2 --neighbours 7 -o batch.parquet
  rip replay set.jsonl --model ./SmolLM2 --set batch_size=8 --set dtype=bfloat16 -o set.parquet
  rip replay request.json --model ./SmolLM2 --mode golden-decode --golden alone.parquet \\
      -o forced.parquet
  rip replay request.json --model ./SmolLM2 --capture tensors --sites 'layers\\.4\\.' \\
      --positions 57:58 -o rows.parquet
  rip replay request.json --model ./SmolLM2 --zoom 57:layers.4.self_attn -o ops.parquet
  rip replay set.jsonl --url http://127.0.0.1:8000 --set batch_size=8 -o served.parquet
  rip replay set.jsonl --lane vllm.toml -o started.parquet

\b
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

Exit code 0: done, and the recorded answers (where envelopes state them) came again, as tokens or as
text; 1: one did not; 3: none of them could be compared. The trace is written in any case.
"""


def replay(
    requests: Annotated[
        Path,
        typer.Argument(
            metavar="ENVELOPE.json|SET.jsonl|TRACE.parquet",
            help="What to re-run; of a trace, the requests that it records.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="TRACE.parquet", help="Where the trace goes.")],
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
            "--mode",
            metavar="|".join(MODES),
            help="free: the engine chooses tokens. golden-decode: recorded tokens are forced step by step. "
            "golden-prefill: prompt and recorded tokens are scored in one pass.",
        ),
    ] = "free",
    golden: Annotated[
        Path | None,
        typer.Option(
            "--golden",
            metavar="TRACE.parquet",
            help="Force the tokens of this trace. [default: the envelope's expected tokens]",
        ),
    ] = None,
    neighbours: Annotated[
        str | None,
        typer.Option(
            "--neighbours",
            metavar="SET.jsonl|N",
            help="Run these requests, or N synthetic ones, in the same batch without recording them.",
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, help="Times that every request runs.")
    ] = 1,
    capture: Annotated[
        str | None,
        typer.Option(
            "--capture",
            metavar="|".join(CAPTURE_LEVELS),
            help="tokens: distributions only. sites: also hash and sketch of every row. tensors: also the "
            "rows themselves. [default: sites]",
        ),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option("--sites", metavar="REGEX", help="Observe only sites whose name matches somewhere."),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            "--positions", metavar="A:B", help="With --capture tensors: keep rows at positions A … B−1."
        ),
    ] = None,
    zoom: Annotated[
        str | None,
        typer.Option(
            "--zoom",
            metavar="POSITION[:SITE]",
            help="Record every op of the forward pass that computes this position, in TRACE.zoom.parquet: of "
            "all modules, of SITE, or of those that match --sites (engine hf).",
        ),
    ] = None,
    topk: Annotated[
        int | None,
        typer.Option(
            "--topk",
            metavar="K",
            min=1,
            help="Most likely tokens kept at every position. [default: 20, or as many as the engine tells]",
        ),
    ] = None,
    settings: Settings = None,
    allow_drift: Annotated[
        bool,
        typer.Option(
            "--allow-drift", help="Run although the envelope names another model, tokenizer or template."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the trace, or the rest of an unfinished one.")
    ] = False,
) -> None:
    from ..experiments.lanes.other_process import enter
    from ..experiments.lanes.resolve import IN_PROCESS, Chosen, LaneRunner, choose
    from ..replay.request.from_trace import answered
    from ..replay.trace_file.lock import OutputLock
    from .console import check_output_file, printable, progress_bar, stderr_console, tell
    from .replay_options import check_choice, kept_positions, read_neighbours, recorded_requests, site_pattern
    from .replay_summary import summarise
    from .zoom_replay import aim_of, keep_ops, refuse_other_engines, refuse_unreached, zooming_on

    check_choice("--mode", mode, MODES)
    level = capture or "sites"
    check_choice("--capture", level, CAPTURE_LEVELS)
    if golden is not None and mode == "free":
        raise BadInput("--golden: free mode forces no tokens", "add --mode golden-decode or golden-prefill")
    pattern = site_pattern(sites, level)
    kept = kept_positions(positions, level)
    check_output_file(out, force)
    aim = None if zoom is None else aim_of(zoom, sites, level, out, force)
    with OutputLock(out, force):  # before any work; the writer takes it for good
        pass
    envelopes, failed = answered(recorded_requests(requests), requests)
    given = Chosen(lane, engine, model, url, api_key_env, python, tap, tuple(settings or ()), neighbours)
    chosen = choose(lane, given)
    enter(chosen)
    beside, fill = read_neighbours(chosen.neighbours)

    from ..replay.request.findings import sentence
    from ..replay.request.from_trace import golden_from_trace
    from ..replay.request.identity import check_identity
    from ..replay.run import OpenedLane, Options
    from ..replay.run import replay as run

    runner = LaneRunner(chosen)
    runner.refuse(capture, topk, mode, sites)
    if aim is not None:
        refuse_other_engines(runner.engine)
    forced = (golden_from_trace(golden), golden) if golden else None
    if aim is not None:
        refuse_unreached(aim, envelopes, mode, forced)
    console = stderr_console()
    with progress_bar(console) as bar:
        task = bar.add_task("hashing the model", total=None, note="")
        identity = runner.identify(lambda done, total: bar.update(task, completed=done, total=total))
        for envelope in envelopes:  # before the model is loaded
            check_identity(envelope, identity, allow_drift)
        first_time = " (a GGUF is converted once)" if runner.is_gguf and runner.engine == IN_PROCESS else ""
        bar.remove_task(task)
        task = bar.add_task(f"loading the model{first_time}", total=None, note="")
        started = time.perf_counter()
        opened = runner.open(
            runner.opening(
                topk,
                runtime=envelopes[0].runtime,
                mode=mode,
                sites=pattern,
                keep_positions=kept,
                log=out.with_name(f"{out.name}.server.log"),
                say=lambda note: bar.update(task, description=printable(note)),
            )
        )
        loaded = time.perf_counter() - started

        def show(done: int, total: int, note: str) -> None:
            tokens = f"{done}/{total} tokens" if done else ""  # until then the bar only shows that it lives
            bar.update(
                task,
                description=printable(note),
                completed=done,
                total=total if done else None,
                note=tokens,
            )

        with closing(opened):
            if not opened.capabilities.sites:
                if capture not in (None, "tokens") or sites is not None:
                    why = "; ".join(map(sentence, opened.findings)) or "it has no taps"
                    raise BadInput(f"no site can be observed: {why}", "use --capture tokens")
                level = "tokens"
            zooming = None if aim is None else zooming_on(opened, aim, envelopes, mode, forced)
            result = run(
                envelopes,
                OpenedLane(zooming or opened, runner.lane(), runner.fingerprint(opened)),
                Options(
                    mode=mode,  # type: ignore[arg-type]
                    capture=level,  # type: ignore[arg-type]
                    repeat=repeat,
                    neighbours=beside,
                    fill=fill,
                    golden=forced,
                    allow_drift=allow_drift,
                    site_filter="" if level == "tokens" else sites or "",
                    load_seconds=loaded,
                    force=force,
                ),
                out,
                show,
            )
    if failed:
        tell(console, f"passed over, because they were answered with an error when recorded: {failed}")
    summarise(console, result, chosen=capture is not None)
    if zooming is not None:
        keep_ops(zooming, result, console)
    if result.compared_none:
        raise typer.Exit(EXIT_NOTHING_COMPARED)
    raise typer.Exit(EXIT_HOLDS if result.expectations_met else EXIT_FAILS)


replay.__doc__ = HELP
