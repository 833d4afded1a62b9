"""The batch-invariance check: random sequences one by one and together, compared bit for bit.

It is the acceptance test that DeepInfer publishes for itself, for any engine that rip can replay on.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from .. import __version__
from ..replay.engines.base import Engine
from ..replay.record_run import Progress as ReplayProgress
from ..replay.run import OpenedLane, Options, replay
from ..schemas.check import Check, Together
from ..schemas.choices import CheckMode, Mode
from ..schemas.claim import Claim
from ..schemas.envelope import Envelope, Runtime
from ..schemas.errors import BadInput, OutputFailed, stated_option, stated_setting
from ..schemas.files import check_output, write_private
from ..schemas.fingerprint import Fingerprint
from ..schemas.lane import Lane
from .batch_check.exact_comparison import CheckPlan, compare, random_requests
from .batch_check.sentences import verdict_sentence
from .lanes.process import enter_lane_process
from .lanes.request import LaneRequest, read_lane
from .lanes.resolve_lane import ResolvedLane
from .progress import Progress, show_bytes

ALONE, BATCHED = "alone.parquet", "batched.parquet"
REQUESTS, RESULT, SERVER_LOG = "set.jsonl", "check.json", "server.log"


@dataclass(frozen=True)
class CheckRequest:
    """What `rip check batch-invariance` is asked for, as its options say it.

    Attributes:
        lane: The lane; its name may be the path of a lane file.
        out: Folder of requests, traces and result.
        sequences: How many run.
        tokens: Generated tokens of each.
        seed: Of everything random.
        min_length: Tokens of the shortest prompt.
        max_length: Of the longest; None: 256, or less where the context is shorter.
        batch: Sequences that run together; None: all.
        mode: None: tokens are forced where the engine can.
        sampled: Draw at temperature 1.
        force: Replace what the folder holds.
    """

    lane: LaneRequest
    out: Path
    sequences: int
    tokens: int
    seed: int
    min_length: int
    max_length: int | None
    batch: int | None
    mode: CheckMode | None
    sampled: bool
    force: bool


def check_batch_invariance(request: CheckRequest, progress: Progress) -> Check:
    """Run random sequences one by one and together, compare them exactly, and write the result.

    May start rip anew for the lane, with this command.

    Raises:
        BadInput: The engine cannot be checked so.
        OutputFailed: The folder cannot be used.
        EngineFailed: The engine cannot be opened, or fails.
    """
    if request.sampled and request.mode == "golden-decode":
        raise BadInput(
            "forced tokens are not sampled", "leave {option} out", stated_option("mode", request.mode)
        )
    _check_folder(request.out, request.force)
    lane_request = read_lane(request.lane)
    enter_lane_process(lane_request)
    batch = min(request.batch or request.sequences, request.sequences)
    if lane_request.neighbours is not None:
        raise BadInput(f"{request.lane.name}: neighbours: the check chooses the batches", "use --batch N")
    lane = _lane_with_batch(lane_request, batch)
    plan = CheckPlan(
        request.sequences,
        request.tokens,
        request.seed,
        request.min_length,
        request.max_length,
        batch,
        _check_mode(lane, request),
        request.sampled,
    )
    return _run(plan, lane, request.out, request.force, progress)


def _lane_with_batch(request: LaneRequest, batch: int) -> ResolvedLane:
    """The lane, whose engine runs `batch` sequences together.

    Raises:
        BadInput: It states batches of its own.
    """
    for pair in request.settings:
        if pair.partition("=")[0].replace("-", "_") == "batch_size":
            raise BadInput("the check chooses the batches", "use --batch N", stated_setting(pair))
    return ResolvedLane(replace(request, settings=(*request.settings, f"batch_size={batch}")))


def _check_mode(lane: ResolvedLane, request: CheckRequest) -> Mode:
    """The mode that the check runs in.

    Raises:
        BadInput: The engine does not have it, or lacks what the check needs.
    """
    can = lane.capabilities
    mode: Mode = "golden-decode" if "golden-decode" in can.modes else "free"
    mode = "free" if request.sampled else request.mode or mode
    lane.check_capabilities(mode)
    if not can.token_ids:
        raise BadInput(
            f"the engine {lane.engine} does not return token ids, so nothing can be exactly equal",
            "check an engine that returns them",
        )
    if request.sampled and not can.seed:
        raise BadInput(f"the engine {lane.engine} does not support seeds", "leave --sampled out")
    return mode


def _check_folder(out: Path, force: bool) -> None:
    """Refuse, before any work, a folder that cannot be written, or that holds an earlier check.

    Raises:
        OutputFailed: It cannot be used.
    """
    if out.exists() and not out.is_dir():
        raise OutputFailed(f"{out} exists and is not a folder", "choose another name with -o")
    for name in (REQUESTS, ALONE, BATCHED, RESULT):
        check_output(out / name if out.exists() else out, force)


def _run(plan: CheckPlan, lane: ResolvedLane, out: Path, force: bool, progress: Progress) -> Check:
    """Open the engine, run the check, write requests and result."""
    lane.identify(show_bytes(progress, "hashing the model"))
    progress.stage("loading the model")
    out.mkdir(exist_ok=True)
    opening = lane.opening(None, runtime=Runtime(), mode=plan.mode, log=out / SERVER_LOG, say=progress.stage)

    def show(done: int, total: int, name: str) -> None:
        progress.stage(name, done, total, f"{done}/{total} tokens")

    with closing(lane.open(opening)) as engine:
        fingerprint = lane.fingerprint(engine)
        requests = random_requests(plan, engine, fingerprint)
        result = run_and_compare(plan, requests, engine, lane.lane(), fingerprint, out, force, show)
    lines = [json.dumps(request.to_object(), ensure_ascii=False) + "\n" for request in requests]
    write_private(out / REQUESTS, "".join(lines))
    write_private(out / RESULT, result.to_json())
    return result


def run_and_compare(
    plan: CheckPlan,
    requests: list[Envelope],
    engine: Engine,
    lane: Lane,
    fingerprint: Fingerprint,
    folder: Path,
    force: bool,
    progress: ReplayProgress,
) -> Check:
    """Run the requests one by one, then together, and compare.

    Args:
        plan: What is checked.
        requests: From `random_requests`.
        engine: An opened engine that has the mode.
        lane: How it was opened.
        fingerprint: The environment, model included.
        folder: Where both traces go.
        force: Replace traces that are there.
        progress: Called with every piece of work done.

    Raises:
        RipError: As `run.replay`.
    """
    for name, size in ((ALONE, 1), (BATCHED, plan.batch)):
        options = Options(
            mode=plan.mode,
            capture="tokens",
            batch_size=size,
            force=force,
        )
        named = lane.model_copy(update={"name": name.removesuffix(".parquet")})
        replay(requests, OpenedLane(engine, named, fingerprint), options, folder / name, progress)
    lines = compare(folder / ALONE, folder / BATCHED, plan.required)
    together: Together = "as one batch" if engine.capabilities.batch == "static" else "sent together"
    lengths = [len(request.prompt_token_ids or ()) for request in requests]
    prompt_lengths = [min(lengths), max(lengths)]
    found = Check(
        tool_version=__version__,
        created=fingerprint.created,
        check="batch-invariance",
        engine=lane.engine,
        model=lane.model or "",
        mode=plan.mode,
        sampled=plan.sampled,
        sequences=plan.sequences,
        tokens=plan.tokens,
        prompt_lengths=prompt_lengths,
        batch=plan.batch,
        together=together,
        claim=_claim(plan, prompt_lengths, fingerprint),
        holds=all(line.state == "equal" for line in lines if line.required),
        lines=lines,
        alone=ALONE,
        batched=BATCHED,
    )
    return found.model_copy(update={"sentence": verdict_sentence(found)})


def _claim(plan: CheckPlan, prompt_lengths: list[int], fingerprint: Fingerprint) -> Claim:
    return Claim(
        level="token" if plan.sampled else "bitwise",
        compared=list(plan.required),
        equality="exact",
        held={
            "sequences": plan.sequences,
            "tokens": plan.tokens,
            "seed": plan.seed,
            "prompt_lengths": prompt_lengths,
            "temperature": 1 if plan.sampled else 0,
        },
        varied={"batch": [1, plan.batch]},
        environment={"fingerprint": fingerprint.root_digest, **fingerprint.flat()},
        evidence="run",
    )
