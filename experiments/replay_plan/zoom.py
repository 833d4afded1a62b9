"""The ops that `rip replay --zoom` records: the target, checked early, and the file beside the trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.choices import CaptureLevel, Mode
from ...schemas.errors import BadInput, stated_option
from ...schemas.files import check_output_file

if TYPE_CHECKING:
    from ...replay.request.resolve_request import Golden
    from ...replay.run import Result
    from ...schemas.envelope import Envelope


@dataclass(frozen=True)
class ZoomTarget:
    """Which ops are recorded: those of the forward pass that computes one position.

    Attributes:
        position: Index of the token, prompt included.
        modules: Pattern for the paths of modules; empty: all of them.
        module: The one that was named, with all below it; None: those that the pattern matches.
    """

    position: int
    modules: str
    module: str | None = None


@dataclass(frozen=True)
class SavedOps:
    """What was written beside the trace.

    Attributes:
        ops: How many.
        passes: Forward passes they belong to.
        left_out_bytes: Tensors of which only digests are kept.
    """

    path: Path
    ops: int
    passes: int
    left_out_bytes: int


def zoom_target(text: str, sites: str | None, capture: CaptureLevel, out: Path, force: bool) -> ZoomTarget:
    """Read `POSITION[:SITE]`, and check that the file of the ops can be written.

    Args:
        sites: `--sites`, which names the modules where SITE does not.
        out: The trace.
        force: Replace an earlier file.

    Raises:
        BadInput: Not of that form, or no site is observed.
        OutputFailed: The file exists.
    """
    from ...replay.op_recording.ops_file import zoom_path

    if capture == "tokens":
        raise BadInput("--zoom: --capture tokens observes nothing of the model", "leave one of the two out")
    match = re.fullmatch(r"([0-9]{1,9})(?::(.+))?", text)
    if match is None:
        raise BadInput(
            "not POSITION or POSITION:SITE",
            "for example --zoom 57:layers.4.self_attn",
            stated_option("zoom", text),
        )
    check_output_file(zoom_path(out), force)
    if not match[2]:
        return ZoomTarget(int(match[1]), sites or "")
    module = re.split("[#:]", match[2])[0]  # a site's label may go on with its occurrence and part
    return ZoomTarget(int(match[1]), rf"^{re.escape(module)}(\.|$)", module)


def check_zoom_engine(engine: str) -> None:
    """Refuse an engine whose ops cannot be seen.

    Raises:
        BadInput: It does not run in this process.
    """
    from ...replay.op_recording.reconstruct import ENGINE

    if engine != ENGINE:
        raise BadInput(
            f"--zoom records ops inside this process, on the engine {ENGINE}; {engine} runs elsewhere",
            f"replay the request with --engine {ENGINE} and the model's folder, or leave --zoom out",
        )


def check_reached_before_loading(
    target: ZoomTarget, envelopes: Sequence[Envelope], mode: Mode, golden: tuple[Golden, Path] | None
) -> None:
    """Refuse a position beyond the end of every request, as far as that shows before the model is loaded.

    Raises:
        BadInput: No request reaches it.
    """
    from ...replay.op_recording.rerun import check_reached
    from ...replay.request.resolve_request import golden_for

    lengths = []
    for envelope in envelopes:
        prompt, tokens = envelope.prompt_token_ids, envelope.sampling.max_tokens
        if mode != "free":
            tokens = max(len(found) for found in golden_for(envelope, golden).values())
        if prompt is None or tokens is None:
            return
        lengths.append(len(prompt) + tokens)
    check_reached(target.position, max(lengths))


def recording_engine(
    engine: Any,
    target: ZoomTarget,
    envelopes: Sequence[Envelope],
    mode: Mode,
    golden: tuple[Golden, Path] | None,
) -> Any:
    """The engine, recording ops while it runs: a `OpRecordingEngine`, which is whatever the engine is.

    Raises:
        BadInput: No request reaches the position, or no module of the model matches.
    """
    from ...replay.op_recording.rerun import OpRecordingEngine, check_modules, check_reached
    from ...replay.request.findings import Findings
    from ...replay.request.resolve_request import resolve_request

    lengths = []
    for envelope in envelopes:
        request = resolve_request(envelope, engine, mode, golden, Findings())
        tokens = (
            max(map(len, request.golden.values()))
            if request.golden
            else int(request.sampling["max_tokens"].resolved)
        )
        lengths.append(len(request.prompt) + tokens)
    check_reached(target.position, max(lengths))
    check_modules(engine, target.modules, target.module)
    return OpRecordingEngine(engine, target.position, target.modules)


def save_ops(engine: Any, result: Result) -> SavedOps:
    """Write what a `recording_engine` recorded beside the trace.

    Raises:
        BadInput: Nothing was: no sequence computed the position, or no module matched.
        OutputFailed: It cannot be written.
    """
    from ...replay.op_recording.ops_file import write_ops, zoom_path

    header, passes = engine.recorded(result.header)
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
    return SavedOps(path, count, len(passes), header.left_out_bytes)
