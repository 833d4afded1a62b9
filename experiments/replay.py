"""One replay of recorded requests on a lane: resolve, plan, open, execute."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.choices import CaptureLevel, Mode
from ..schemas.errors import BadInput
from ..schemas.files import check_output_file
from .lanes.process import enter_lane_process
from .lanes.request import LaneRequest, read_lane
from .lanes.resolve_lane import IN_PROCESS, ResolvedLane
from .progress import Progress, show_bytes
from .replay_plan.options import (
    kept_positions,
    read_neighbours,
    read_sampling,
    recorded_requests,
    site_pattern,
)
from .replay_plan.zoom import (
    ZoomTarget,
    check_reached_before_loading,
    check_zoom_engine,
    recording_engine,
    zoom_target,
)

if TYPE_CHECKING:
    from ..replay.engines.base import Engine
    from ..replay.request.resolve_request import Golden
    from ..replay.run import Result
    from ..schemas.envelope import Envelope


@dataclass(frozen=True)
class ReplayRequest:
    """What `rip replay` is asked for, as its options say it.

    Attributes:
        requests: Envelope, request set or trace.
        out: The trace to write.
        lane: The lane; its name may be the path of a lane file.
        sampling: `KEY=VALUE` texts: sampling fields in place of every envelope's.
        golden: The trace whose tokens are forced; None: the envelopes' expected ones.
        repeat: Times that every request runs.
        capture: None: sites where the engine shows them, else tokens.
        sites: Pattern for the labels of observed sites.
        positions: `A:B`: positions whose rows are kept.
        zoom: `POSITION[:SITE]`: the ops to record.
        topk: Size of the recorded distributions.
        allow_drift: Run although an envelope names a different model, tokenizer or template.
        force: Replace a trace, or the rest of an unfinished one.
    """

    requests: Path
    out: Path
    lane: LaneRequest
    mode: Mode = "free"
    golden: Path | None = None
    sampling: tuple[str, ...] = ()
    repeat: int = 1
    capture: CaptureLevel | None = None
    sites: str | None = None
    positions: str | None = None
    zoom: str | None = None
    topk: int | None = None
    allow_drift: bool = False
    force: bool = False


@dataclass(frozen=True)
class Replayed:
    """A finished replay.

    Attributes:
        result: The trace and what came of its requests.
        errors: Requests that were not run, because they were answered with an error when recorded.
        recorder: The engine that recorded ops, for `replay_plan.zoom.save_ops`; None: none were asked for.
    """

    result: Result
    errors: int
    recorder: Any | None


@dataclass(frozen=True)
class _Plan:
    """A replay whose options are checked as far as they can be before the model is read."""

    request: ReplayRequest
    lane: ResolvedLane
    envelopes: Sequence[Envelope]
    errors: int
    neighbours: Sequence[Envelope]
    fill: int
    capture: CaptureLevel
    sites: re.Pattern[str] | None
    positions: range | None
    golden: tuple[Golden, Path] | None
    sampling: Mapping[str, Any]
    zoom: ZoomTarget | None

    @property
    def stated(self) -> list[Envelope]:
        """The envelopes with the sampling that is stated in place of theirs."""
        from ..replay.request.contract import with_sampling

        return [with_sampling(envelope, self.sampling) for envelope in self.envelopes]


def replay_on_lane(request: ReplayRequest, progress: Progress) -> Replayed:
    """Run recorded requests on a lane and write a trace. May start rip anew for the lane, with this command.

    Raises:
        RipError: As `replay.run.replay`; or options that cannot be used, before anything is loaded.
    """
    plan = _plan(request)
    engine, seconds = _open(plan, progress)
    with closing(engine):
        capture = _observable_capture(plan, engine)
        recorder = None
        if plan.zoom is not None:
            recorder = recording_engine(engine, plan.zoom, plan.stated, request.mode, plan.golden)
        result = _execute(plan, recorder or engine, capture, seconds, progress)
    return Replayed(result, plan.errors, recorder)


def _plan(request: ReplayRequest) -> _Plan:
    """Check everything that shows before the model is read."""
    from ..replay.request.from_trace import answered, golden_from_trace
    from ..schemas.files import OutputLock

    capture = request.capture or "sites"
    if request.golden is not None and request.mode == "free":
        raise BadInput("--golden: free mode forces no tokens", "add --mode golden-decode or golden-prefill")
    sampling = read_sampling(request.sampling)
    sites = site_pattern(request.sites, capture)
    positions = kept_positions(request.positions, capture)
    check_output_file(request.out, request.force)
    zoom = None
    if request.zoom is not None:
        zoom = zoom_target(request.zoom, request.sites, capture, request.out, request.force)
    with OutputLock(request.out, request.force):  # before any work; the writer takes it for good
        pass
    envelopes, errors = answered(recorded_requests(request.requests), request.requests)
    lane_request = read_lane(request.lane)
    enter_lane_process(lane_request)
    neighbours, fill = read_neighbours(lane_request.neighbours)
    lane = ResolvedLane(lane_request)
    lane.check_capabilities(request.mode, request.capture, request.topk, request.sites)
    if zoom is not None:
        check_zoom_engine(lane.engine)
    golden = (golden_from_trace(request.golden), request.golden) if request.golden else None
    plan = _Plan(
        request,
        lane,
        envelopes,
        errors,
        neighbours,
        fill,
        capture,
        sites,
        positions,
        golden,
        sampling,
        zoom,
    )
    if zoom is not None:
        check_reached_before_loading(zoom, plan.stated, request.mode, golden)
    return plan


def _open(plan: _Plan, progress: Progress) -> tuple[Engine, float]:
    """The opened engine, and the seconds that took. The model's identity is checked first."""
    from ..replay.request.identity import check_identity

    request, lane = plan.request, plan.lane
    identity = lane.identify(show_bytes(progress, "hashing the model"))
    for envelope in plan.envelopes:
        check_identity(envelope, identity, request.allow_drift)
    once = " (a GGUF file is converted once)" if lane.is_gguf and lane.engine == IN_PROCESS else ""
    progress.stage(f"loading the model{once}")
    started = time.perf_counter()
    engine = lane.open(
        lane.opening(
            request.topk,
            runtime=plan.envelopes[0].runtime,
            mode=request.mode,
            sites=plan.sites,
            keep_positions=plan.positions,
            log=request.out.with_name(f"{request.out.name}.server.log"),
            say=progress.stage,
        )
    )
    return engine, time.perf_counter() - started


def _observable_capture(plan: _Plan, engine: Engine) -> CaptureLevel:
    """The capture level that the opened engine allows.

    Raises:
        BadInput: Sites were asked for, and it shows none.
    """
    request = plan.request
    from ..replay.request.findings import sentence

    if engine.capabilities.sites:
        return plan.capture
    if request.capture not in (None, "tokens") or request.sites is not None:
        reason = "; ".join(map(sentence, engine.findings)) or "the engine has no taps"
        raise BadInput(f"no site can be observed: {reason}", "use --capture tokens")
    return "tokens"


def _execute(
    plan: _Plan, engine: Engine, capture: CaptureLevel, load_seconds: float, progress: Progress
) -> Result:
    """Run the requests and write the trace."""
    from ..replay.run import OpenedLane, Options, replay

    request = plan.request
    options = Options(
        mode=request.mode,
        capture=capture,
        repeat=request.repeat,
        neighbours=plan.neighbours,
        fill=plan.fill,
        golden=plan.golden,
        sampling=plan.sampling,
        allow_drift=request.allow_drift,
        site_filter="" if capture == "tokens" else request.sites or "",
        load_seconds=load_seconds,
        force=request.force,
    )
    lane = OpenedLane(engine, plan.lane.lane(), plan.lane.fingerprint(engine))

    def show(done: int, total: int, name: str) -> None:
        # Until the first token the bar only shows that the run is alive.
        progress.stage(name, done, total if done else None, f"{done}/{total} tokens" if done else "")

    return replay(plan.envelopes, lane, options, request.out, show)
