"""The experiment of `rip investigate`: environment, replay, comparison, confirmation, and the postmortem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.command_line import ReplayCommand
from ..schemas.errors import BadInput, EngineFailed, MissingPackage, OutputFailed, RipError
from ..schemas.files import OutputLock, write_private
from ..schemas.jsontext import canonical_json, sha256_of
from .confirm import ConfirmRequest, confirm
from .investigation import sentences
from .investigation.sides import Sides, lane_texts, read_sides
from .lanes.isolated import run_isolated
from .lanes.request import LaneRequest
from .progress import Progress

if TYPE_CHECKING:
    from ..schemas.change import Change
    from ..schemas.findings.experiments import Confirmation
    from ..schemas.narrow import Narrow
    from ..schemas.verdict import Cause, Verdict

STATE = "investigation.json"
"""What the folder is of: a digest of all inputs."""
RESULT = "result"
REPORTS = ("postmortem.html", "postmortem.md")


@dataclass(frozen=True)
class InvestigateRequest:
    """What `rip investigate` is asked for, as its options say it.

    Attributes:
        a: A trace, a lane file or a fingerprint.
        b: Another one of the same kind.
        out: The folder of all that it writes.
        requests: What lanes and fingerprints run.
        model: For both sides.
        engine: Likewise.
        settings: `--set` texts, likewise.
        allow_drift: As of `rip replay`.
        force: Start over, whatever the folder holds.
    """

    a: Path
    b: Path
    out: Path
    requests: Path | None = None
    model: str | None = None
    engine: str | None = None
    settings: tuple[str, ...] = ()
    allow_drift: bool = False
    force: bool = False


@dataclass(frozen=True)
class Investigated:
    """What an investigation found.

    Attributes:
        verdict: With what was confirmed.
        narrowed: The search that was made where no cause was proven; None: none was.
        reports: What was written for people.
        result: The result folder.
    """

    verdict: Verdict
    narrowed: Narrow | None
    reports: list[Path]
    result: Path


def investigate(request: InvestigateRequest, progress: Progress) -> Investigated:
    """Go from two sides to the postmortem. What is finished is not repeated.

    Raises:
        RipError: An input that cannot be used, or a step that cannot be done; earlier steps are kept.
    """
    sides = read_sides(request.a, request.b, request.requests)
    if request.requests is not None:
        from .settings_search.two_lanes import check_requests

        check_requests(request.requests)
    _enter(request)
    with OutputLock(request.out / STATE, force=True):
        traces, lanes = _traces(request, sides, progress)
        verdict = _compare(request, traces, progress)
        narrowed = None
        if _differs(verdict):
            verdict = _confirm(request, verdict, progress)
            if lanes is not None and not _is_proven(verdict):
                narrowed = _narrow(request, lanes, verdict, progress)
        reports = _report(request, progress)
    return Investigated(verdict, narrowed, reports, request.out / RESULT)


def _enter(request: InvestigateRequest) -> None:
    """Make the folder, or go on in it.

    Raises:
        OutputFailed: It holds something else.
    """
    files = [path for path in (request.a, request.b, request.requests) if path is not None]
    found = [(path, path.stat()) for path in files if path.exists()]
    inputs = [[str(path.resolve()), str(about.st_size), str(about.st_mtime_ns)] for path, about in found]
    options = [request.model, request.engine, list(request.settings), request.allow_drift]
    digest = sha256_of([inputs, options])
    state, content = request.out / STATE, canonical_json({"inputs": digest})
    if request.out.exists() and not request.force:
        if not state.is_file():
            if any(request.out.iterdir()):
                raise OutputFailed(f"{request.out} holds something else", "choose another name")
        elif state.read_bytes() != content:
            raise OutputFailed(
                f"{request.out} holds the investigation of other inputs, or of the same before they changed",
                "choose another name, or start over with --force",
            )
    request.out.mkdir(mode=0o700, parents=True, exist_ok=True)
    if request.force and state.is_file():
        for name in ("a.parquet", "b.parquet"):
            (request.out / name).unlink(missing_ok=True)
    write_private(state, content)


def _traces(
    request: InvestigateRequest, sides: Sides, progress: Progress
) -> tuple[tuple[Path, Path], tuple[Path, Path] | None]:
    """The traces of both sides, and their lane files where lanes run."""
    if sides.kind == "trace":
        return sides.paths, None
    lanes = sides.paths
    if sides.fingerprints is not None:
        from ..fingerprint.drift import drift

        progress.note(sentences.environment(drift(*sides.fingerprints)))
        lanes = request.out / "a.toml", request.out / "b.toml"
        for path, text in zip(lanes, lane_texts(sides.fingerprints, request.model), strict=True):
            write_private(path, text)
    traces = request.out / "a.parquet", request.out / "b.parquet"
    for side, lane, trace in zip("AB", lanes, traces, strict=True):
        _replay(request, side, lane, trace, progress)
    return traces, lanes


def _replay(request: InvestigateRequest, side: str, lane: Path, trace: Path, progress: Progress) -> None:
    """Run the requests on a lane, in a process of its own."""
    from ..diverge.reading.load import read_header

    kept = trace.is_file()
    if not kept:
        progress.stage(f"replaying {request.requests} on {side}, {lane.name}")
        command = ReplayCommand(
            str(request.requests),
            str(trace),
            lane=str(lane),
            model=request.model,
            engine=request.engine,
            settings=[_split(pair) for pair in request.settings],
            allow_drift=request.allow_drift or request.model is None,
            force=True,
        )
        log = trace.with_suffix(".log")
        error = run_isolated(command.arguments(), log)
        if error is not None:
            fix = error.fix or f"its output is in {log}"
            raise EngineFailed(f"{side} cannot be replayed on {lane}: {error.message}", fix)
    progress.note(sentences.replayed(side, lane, read_header(trace), kept))


def _split(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise BadInput(f"--set {pair}: not of the form KEY=VALUE", "for example --set threads=1")
    return name, value


def _compare(request: InvestigateRequest, traces: tuple[Path, Path], progress: Progress) -> Verdict:
    """The verdict on the traces."""
    from ..diverge.compare import Context, diverge
    from ..diverge.reading.load import read_header
    from ..diverge.result_folder import SUMMARY_FILE, read_verdict
    from ..fingerprint.drift import drift

    headers = [read_header(trace) for trace in traces]
    base, now = headers[0].fingerprint, headers[1].fingerprint
    changes: Sequence[Change] = [] if base is None or now is None else drift(base, now)
    progress.note(sentences.environment(changes))
    folder = request.out / RESULT
    if (folder / SUMMARY_FILE).is_file() and not request.force:
        verdict = read_verdict(folder)
        progress.note(sentences.compared(verdict, kept=True))
        return verdict

    def show(done: int, total: int) -> None:
        progress.stage("comparing", done, total, f"{done:,} of {total:,} positions")

    verdict = diverge(*traces, folder, Context(list(changes)), show, force=True)
    progress.note(sentences.compared(verdict, kept=False))
    return verdict


def _differs(verdict: Verdict) -> bool:
    return bool(verdict.causes)


def _is_proven(verdict: Verdict) -> bool:
    decided = [cause.confirmation for cause in verdict.causes]
    return any(one is not None and one.state == "confirmed" for one in [*decided, verdict.together])


def _confirm(request: InvestigateRequest, verdict: Verdict, progress: Progress) -> Verdict:
    """The experiments of all causes that have one."""
    wanted = [cause for cause in verdict.causes if cause.has_experiment]
    if not wanted:
        progress.note(sentences.NO_EXPERIMENT)
        return verdict
    if all(cause.confirmation is not None for cause in wanted) and not request.force:
        for number, cause in enumerate(verdict.causes, start=1):
            if cause.confirmation is not None:
                progress.note(sentences.decided(number, cause, cause.confirmation, kept=True))
        return verdict

    def show(number: int, cause: Cause | None, found: Confirmation) -> None:
        progress.note(sentences.decided(number, cause, found, kept=False))

    asked = ConfirmRequest(request.out / RESULT, every=True, force=request.force)
    return confirm(asked, progress, show)


def _narrow(
    request: InvestigateRequest, lanes: tuple[Path, Path], verdict: Verdict, progress: Progress
) -> Narrow | None:
    """Where no cause is proven: which settings of the lanes turn the divergence on."""
    from .narrow import NarrowRequest, narrow_lanes

    assert request.requests is not None
    tokens = verdict.levels["token"].state == "fails"
    asked = NarrowRequest(
        request.requests,
        request.out / "narrowed",
        LaneRequest("narrow", request.engine, request.model, settings=request.settings),
        str(lanes[0]),
        str(lanes[1]),
        (),
        level="token" if tokens else "bitwise",
        repeat=1,
        capture=None,
        allow_drift=request.allow_drift,
        force=request.force,
    )
    try:
        result = narrow_lanes(asked, progress)
    except RipError as error:  # lanes that do not differ, or one that cannot run: the rest still stands
        progress.note(sentences.not_narrowed(error.message))
        return None
    progress.note(sentences.narrowed(result))
    return result


def _report(request: InvestigateRequest, progress: Progress) -> list[Path]:
    """The postmortem, as a page and as text."""
    from ..diverge.present.report.build import write_report

    written: list[Path] = []
    progress.stage("writing the postmortem")
    for name in REPORTS:
        path = request.out / name
        try:
            write_report(request.out / RESULT, path, form="html" if path.suffix == ".html" else "markdown")
        except MissingPackage as error:
            progress.note(sentences.not_reported(error.message))
            return written
        written.append(path)
    return written
