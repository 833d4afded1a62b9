"""`rip replay --zoom`: the place to look at, checked before anything runs, and ops kept beside the trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ..replay.request.golden import Golden
    from ..replay.run import Result
    from ..schemas.envelope import Envelope


@dataclass(frozen=True)
class Aim:
    """What `rip replay --zoom` looks at."""

    position: int
    scope: str
    """Pattern for the paths of modules; empty: all."""
    said: str
    """What it was made of."""


def aim_of(text: str, sites: str | None, level: str, out: Path, force: bool) -> Aim:
    """Read `POSITION[:SITE]`, and check that its file can be written.

    Args:
        text: What was given.
        sites: What --sites says; it names the modules where SITE does not.
        level: What is captured.
        out: The trace.
        force: Replace an earlier file.

    Raises:
        BadInput: Not of that form, or no site is captured.
        OutputFailed: The file is there already.
    """
    from ..replay.op_recording.store import zoom_path
    from .console import check_output_file

    if level == "tokens":
        raise BadInput("--zoom: --capture tokens observes nothing of the model", "leave one of the two out")
    match = re.fullmatch(r"([0-9]{1,9})(?::(.+))?", text)
    if match is None:
        raise BadInput(
            f"--zoom {text}: not POSITION or POSITION:SITE", "for example --zoom 57:layers.4.self_attn"
        )
    check_output_file(zoom_path(out), force)
    if not match[2]:
        return Aim(int(match[1]), sites or "", f"that matches {sites}")
    module = re.split("[#:]", match[2])[0]  # a site's label may go on with its occurrence and part
    return Aim(int(match[1]), rf"^{re.escape(module)}(\.|$)", module)


def refuse_other_engines(engine: str) -> None:
    """Refuse an engine whose ops cannot be seen.

    Raises:
        BadInput: It does not run in this process.
    """
    from ..replay.op_recording.reconstruct import ENGINE

    if engine != ENGINE:
        raise BadInput(
            f"--zoom records ops inside this process, on the engine {ENGINE}; {engine} runs elsewhere",
            f"replay the request with --engine {ENGINE} and the model's folder, or leave --zoom out",
        )


def refuse_unreached(
    aim: Aim, envelopes: Sequence[Envelope], mode: str, forced: tuple[Golden, Path] | None
) -> None:
    """Refuse a position behind every request, as far as that is known before the model is loaded.

    Raises:
        BadInput: No request gets there.
    """
    from ..replay.op_recording.engine import check_reached
    from ..replay.request.golden import golden_for

    lengths = []
    for envelope in envelopes:
        prompt, tokens = envelope.prompt_token_ids, envelope.sampling.max_tokens
        if mode != "free":
            trace, path = forced if forced else (None, None)
            tokens = max(len(found) for found in golden_for(envelope, trace, path).values())
        if prompt is None or tokens is None:
            return
        lengths.append(len(prompt) + tokens)
    check_reached(aim.position, max(lengths))


def zooming_on(
    engine: Any, aim: Aim, envelopes: Sequence[Envelope], mode: str, forced: tuple[Golden, Path] | None
) -> Any:
    """The engine, recording ops while it runs: a `ZoomingEngine`, which is whatever the engine is.

    Raises:
        BadInput: No request gets to the position, or no module of the model matches.
    """
    from ..replay.op_recording.engine import ZoomingEngine, check_modules, check_reached
    from ..replay.request.findings import Findings
    from ..replay.request.resolve import resolve_request

    lengths = []
    for envelope in envelopes:
        asked = resolve_request(envelope, engine, mode, forced, Findings())  # type: ignore[arg-type]
        most = (
            max(map(len, asked.golden.values()))
            if asked.golden
            else int(asked.sampling["max_tokens"].resolved)
        )
        lengths.append(len(asked.prompt) + most)
    check_reached(aim.position, max(lengths))
    check_modules(engine, aim.scope, aim.said)
    return ZoomingEngine(engine, aim.position, aim.scope)


def keep_ops(zooming: Any, result: Result, console: Console) -> None:
    """Write what was recorded beside the trace.

    Raises:
        BadInput: Nothing was: no sequence computed the position, or no module matched.
        OutputFailed: It cannot be written.
    """
    from ..replay.op_recording.store import write_ops, zoom_path
    from .console import tell

    header, passes = zooming.recorded(result.header)
    if not header.passes:
        raise BadInput(
            "--zoom: no sequence computed that position, so no op was recorded",
            "the last generated token is never fed to the model: choose a position before it",
        )
    count = sum(len(ops) for ops in passes)
    if not count:
        raise BadInput(
            f"--zoom: no op ran in a module that matches {header.scope!r}",
            "name a module as the trace's sites do",
        )
    path = zoom_path(result.path)
    write_ops(path, header, passes)
    tell(
        console, f"{count:,} ops of {len(passes)} forward {'pass' if len(passes) == 1 else 'passes'} recorded"
    )
    if header.left_out_bytes:
        tell(console, f"not kept: {header.left_out_bytes:,} bytes of tensors; their digests are there")
    tell(console, f"Wrote {path}")
