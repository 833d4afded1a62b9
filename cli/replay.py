"""`rip replay`: re-run recorded requests and write a trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput

if TYPE_CHECKING:
    from ..fingerprint.model_ref import ModelRef
    from ..replay.run import Result
    from ..schemas.envelope import Envelope
    from ..schemas.fingerprint import Fingerprint
    from ..schemas.trace import Setting

MODES = ("free", "golden-decode", "golden-prefill")
CAPTURES = ("tokens", "sites", "tensors")
HELP = """Re-run recorded requests and write what happened, token by token and layer by layer, as a trace.

\b
Examples:
  rip replay request.json --model ./SmolLM2 -o alone.parquet
  rip replay request.json --model ./SmolLM2 --neighbours 7 -o batch.parquet
  rip replay set.jsonl --model ./SmolLM2 --set batch_size=8 --set dtype=bfloat16 -o set.parquet
  rip replay request.json --model ./SmolLM2 --mode golden-decode --golden alone.parquet -o forced.parquet
  rip replay request.json --model ./SmolLM2 --sites 'layers\\.4\\.' --capture tensors --positions 57:58 -o rows.parquet

Exit code 0: done, and expected tokens (where the envelope states them) came again; 1: they did not.
The trace is written either way.
"""


def replay(
    requests: Annotated[Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl", help="What to re-run.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="TRACE.parquet", help="Where the trace goes.")],
    model: Annotated[str, typer.Option("--model", metavar="DIR|FILE.gguf|HUB-ID", help="The model to run.")],
    engine: Annotated[str, typer.Option("--engine", help="Engine: hf (transformers in this process).")] = "hf",
    lane: Annotated[str, typer.Option("--lane", help="Name of this way to run, kept in the trace.")] = "default",
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="free: the engine chooses tokens. golden-decode: recorded tokens are forced step by step. "
            "golden-prefill: prompt and recorded tokens are scored in one pass.",
        ),
    ] = "free",
    golden: Annotated[
        Path | None, typer.Option("--golden", metavar="TRACE.parquet", help="Force the tokens of this trace.")
    ] = None,
    neighbours: Annotated[
        str | None,
        typer.Option(
            "--neighbours",
            metavar="SET.jsonl|N",
            help="Run these requests, or N synthetic ones, in the same batch without recording them.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Times that every request runs.")] = 1,
    capture: Annotated[
        str | None,
        typer.Option("--capture", help="tokens, sites (hash and sketch of every row) or tensors. [default: sites]"),
    ] = None,
    sites: Annotated[
        str | None, typer.Option("--sites", metavar="REGEX", help="Observe only sites whose name matches.")
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option("--positions", metavar="A:B", help="With --capture tensors: keep rows at positions A … B−1."),
    ] = None,
    topk: Annotated[int, typer.Option("--topk", min=1, help="Most likely tokens kept at every position.")] = 20,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An engine setting; --set help=1 lists them. Repeatable."),
    ] = None,
    allow_drift: Annotated[
        bool,
        typer.Option("--allow-drift", help="Run although the envelope names another model, tokenizer or template."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the trace.")] = False,
) -> None:
    from ..schemas.envelope import load_requests
    from .console import progress_bar, refuse_overwrite, stderr_console

    _check_choice("--mode", mode, MODES)
    level = capture or "sites"
    _check_choice("--capture", level, CAPTURES)
    pattern = _pattern(sites)
    kept = _positions(positions, level)
    refuse_overwrite(out, force)
    envelopes = load_requests(requests)
    beside, fill = _neighbours(neighbours)

    from ..fingerprint.model_ref import resolve
    from ..replay.engines.base import engine_class
    from ..replay.engines.hf_settings import parse_settings
    from ..replay.golden import golden_from_trace
    from ..replay.run import Options
    from ..replay.run import replay as run

    engine_type = engine_class(engine)
    given = parse_settings(settings or [])
    forced = (golden_from_trace(golden), golden) if golden else None
    reference = resolve(model)
    console = stderr_console()
    with progress_bar(console) as bar:
        task = bar.add_task("hashing the model", total=None, note="")
        identity = _fingerprint(reference, lambda done, total: bar.update(task, completed=done, total=total))
        first_time = " (a GGUF is converted once)" if reference.kind == "gguf" else ""
        bar.update(task, description=f"loading {model}{first_time}", total=None)
        opened = engine_type(
            path=reference.path,
            model_sha256=str(_value(identity, "model", "sha256")),
            given=given,
            runtime=envelopes[0].runtime,
            topk=topk,
            sites=None if level == "tokens" else pattern,
            keep_positions=kept,
        )
        environment = _fingerprint(reference, lambda done, total: None, opened.settings)

        def show(done: int, total: int, note: str) -> None:
            bar.update(task, description="replaying", completed=done, total=total, note=f"{done}/{total} tokens · {note}")

        result = run(
            envelopes,
            opened,
            engine,
            model,
            environment,
            Options(
                mode=mode,  # type: ignore[arg-type]
                capture=level,  # type: ignore[arg-type]
                repeat=repeat,
                neighbours=beside,
                fill=fill,
                golden=forced,
                allow_drift=allow_drift,
                lane=lane,
            ),
            out,
            show,
        )
    _summarise(result, chosen=capture is not None)
    raise typer.Exit(0 if result.expectations_met else 1)


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadInput(f"{option} {value}: no such choice", f"choose one of: {', '.join(choices)}")


def _pattern(sites: str | None) -> re.Pattern[str]:
    try:
        return re.compile(sites or "")
    except re.error as error:
        raise BadInput(f"--sites {sites!r} is not a regular expression: {error}", r"for example 'layers\.4\.'") from None


def _positions(text: str | None, level: str) -> range | None:
    if level != "tensors":
        if text:
            raise BadInput("--positions needs --capture tensors", "add --capture tensors")
        return None
    if text is None:
        return range(2**31 - 1)
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise BadInput(f"--positions {text}: not a range", "give A:B with A smaller than B, for example 57:58")
    return range(int(match[1]), int(match[2]))


def _neighbours(text: str | None) -> tuple[list[Envelope], int]:
    from ..schemas.envelope import load_requests

    if text is None:
        return [], 0
    if text.isdigit():
        return [], int(text)
    return load_requests(Path(text)), 0


def _fingerprint(
    reference: ModelRef, progress: object, settings: dict[str, Setting] | None = None
) -> Fingerprint:
    from ..fingerprint.collect import collect
    from ..schemas.fingerprint import fact

    overrides = {}
    if settings is not None:
        overrides = {
            "engine": {
                name: fact(settings[setting].observed, "observed in the loaded engine")
                for name, setting in (("attention_backend", "attention"), ("dtype", "dtype"), ("device", "device"))
            },
            "parallelism": {"tensor_parallel_size": fact(1, "hf engine: one process")},
        }
    return collect(reference, overrides=overrides, progress=progress)


def _value(fingerprint: Fingerprint, section: str, field: str) -> object:
    found = fingerprint.get(section, field)
    return "unknown" if found is None or found.value is None else found.value


def _summarise(result: Result, chosen: bool) -> None:
    """A short account for people, on stderr."""
    from .console import stderr_console

    console = stderr_console()
    header = result.header
    if header.capture == "tokens":
        seen = "tokens only"
    else:
        seen = f"{len(header.sites)} sites at every position" + ("" if chosen else " (the default where the engine can)")
    tokens = sum(len(outcome.tokens) for outcome in result.outcomes)
    console.print(f"{len(result.outcomes)} sequences, {tokens} generated tokens, mode {header.mode}; captured {seen}")
    if header.observer.state != "not run":
        console.print(f"observer check: {header.observer.state} ({header.observer.compared})")
        if header.observer.why:
            console.print(f"  [yellow]{header.observer.why}[/]")
    for finding in header.findings[:8]:
        console.print(f"[dim]note:[/] {finding}", markup=True)
    if len(header.findings) > 8:
        console.print(f"[dim]note:[/] and {len(header.findings) - 8} more in the trace's header")
    stated = [outcome for outcome in result.outcomes if outcome.had_expected]
    missed = [outcome for outcome in stated if outcome.mismatch is not None]
    for outcome in missed[:5]:
        console.print(f"[red]{outcome.request_id}[/] sample {outcome.sample}: expected tokens left at step {outcome.mismatch}")
    if stated:
        console.print(f"expected tokens came again in {len(stated) - len(missed)} of {len(stated)} sequences")
    console.print(f"Wrote {result.path}", highlight=False)


replay.__doc__ = HELP
