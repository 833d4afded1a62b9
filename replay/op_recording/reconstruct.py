"""From what a trace says of its run back to the batch that one of its sequences ran in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput
from ...schemas.trace import Mode, TraceHeader
from ..engines.base import Engine
from ..engines.hf.settings import SETTINGS
from ..request.batches import Batch, Neighbours, plan_batches
from ..request.findings import Findings
from ..request.resolve_request import Golden, resolve_request

ENGINE = "hf"
"""The engine whose ops can be recorded."""


def check_rerunnable(name: str, header: TraceHeader) -> None:
    """Refuse a trace that cannot be run again op by op.

    Args:
        name: What to call it.
        header: Its header.

    Raises:
        BadInput: Another engine wrote it, or it keeps only digests of its requests.
    """
    lane = header.lane
    if lane.engine != ENGINE:
        raise BadInput(
            f"--zoom runs both sides again inside this process, on the engine {ENGINE}; {name} ran on "
            f"{lane.engine}",
            f"replay its requests on the engine {ENGINE} under both settings (rip replay TRACE --model DIR "
            "--set KEY=VALUE) and zoom into those two traces",
        )
    if any(request.envelope is None for request in header.requests):
        raise BadInput(
            f"{name} keeps only digests of its requests, so they cannot run again",
            "replay the envelopes themselves",
        )


def check_model_exists(side: str, header: TraceHeader) -> None:
    """Refuse a trace whose model lay in a folder or file that is not there any more.

    A name of the hub is left to what opens it.

    Args:
        side: What to call the trace: `A`.
        header: Its header.

    Raises:
        BadInput: Nothing is there.
    """
    model, known = header.lane.model, header.fingerprint
    section = None if known is None else known.sections.get("model")
    from_hub = section is not None and "revision" in {**section.facts, **section.volatile}
    if model is None or from_hub or Path(model).exists():
        return
    from_here = "" if Path(model).is_absolute() else f", seen from {Path.cwd()}"
    raise BadInput(
        f"{side}'s model was at {model}, and nothing is there now{from_here}",
        f"put it back, or replay {side} again",
    )


def settings_of(header: TraceHeader) -> tuple[str, ...]:
    """The engine's settings as they were, as `--set` texts: defaults too, for they may be others here."""
    found = []
    for name, setting in header.lane.settings.items():
        if name in SETTINGS and name != "batch_size" and setting.resolved is not None:
            found.append(f"{name}={setting.resolved}")
    return tuple(found)


def mode_of(header: TraceHeader) -> Mode:
    """How the sequence is run again: tokens forced, on the path that computed it."""
    return "golden-prefill" if header.mode == "golden-prefill" else "golden-decode"


def envelopes_of(header: TraceHeader) -> list[Envelope]:
    """The requests of a trace."""
    return [
        Envelope.from_object(request.envelope, request.request_id)
        for request in header.requests
        if request.envelope is not None
    ]


def rebuild_batch(
    header: TraceHeader,
    engine: Engine,
    target: tuple[str, int],
    tokens: Sequence[int],
    own: Golden,
    path: Path,
) -> tuple[Batch, int]:
    """The batch that a sequence ran in, with its neighbours.

    Args:
        header: Of the trace.
        engine: Opened with the trace's settings.
        target: (request_id, sample) of the sequence that is examined.
        tokens: Tokens that are forced on it: those of the base trace.
        own: What every sequence of this trace generated; forced on the others of the batch.
        path: The trace, for errors.

    Returns:
        The batch, and the sequence's index in the trace.

    Raises:
        BadInput: The trace does not hold the sequence, or the model cannot run it.
    """
    golden = {**own, target: tuple(tokens)}
    settings = {name: setting.resolved for name, setting in header.lane.settings.items()}
    mode = mode_of(header)
    requests = [
        resolve_request(envelope, engine, mode, (golden, path), Findings(), request.overrides)
        for envelope, request in zip(envelopes_of(header), header.requests, strict=True)
    ]
    neighbours = Neighbours((), _whole(settings, "neighbours", 0), engine.vocab_size, engine.context_length)
    batches = plan_batches(
        requests, _whole(settings, "repeat", 1), _whole(settings, "batch_size", 1), neighbours
    )
    for batch in batches:
        for plan in batch.sequences:
            if plan.recorded and (plan.request_id, plan.sample) == target:
                return batch, plan.sequence
    raise BadInput(f"{path} holds no sample {target[1]} of {target[0]}", "compare traces that hold it")


def _whole(settings: Mapping[str, object], name: str, default: int) -> int:
    value = settings.get(name)
    return value if isinstance(value, int) else default
