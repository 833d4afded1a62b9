"""The experiment of `rip narrow`: check two lanes, run mixtures of them, find the settings that matter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..schemas.choices import CaptureLevel, NarrowLevel
from ..schemas.command_line import DivergeCommand
from ..schemas.errors import EngineFailed
from ..schemas.files import OutputLock, write_private
from ..schemas.narrow import Narrow, NarrowObservation
from .lanes.request import LaneRequest
from .progress import Progress
from .settings_search.mixtures import Mixture, RunOptions, check, prepare
from .settings_search.resume import RESULT, Ledger, continued_search, make_folder, new_search
from .settings_search.runs import Runs
from .settings_search.search import GOOD, On
from .settings_search.search import narrow as search
from .settings_search.sentences import continuation_line, failure_in_words, run_line, stage_of_run
from .settings_search.two_lanes import Side, check_requests, two_lanes


@dataclass(frozen=True)
class NarrowRequest:
    """What `rip narrow` is asked for, as its options say it.

    Attributes:
        requests: Envelope, request set or trace.
        out: Folder of the traces and the result.
        lane: The options that both lanes share.
        good: Lane file; None: the options alone.
        bad: Lane file; None: the good lane.
        vary: `KEY=GOOD:BAD` texts.
        level: What counts as a divergence.
        repeat: Runs that a mixture gets at most.
        capture: None: as `rip replay` does by default.
        allow_drift: Run although an envelope names a different model, tokenizer or template.
        force: Start over, whatever the folder holds.
    """

    requests: Path
    out: Path
    lane: LaneRequest
    good: str | None
    bad: str | None
    vary: tuple[str, ...]
    level: NarrowLevel
    repeat: int
    capture: CaptureLevel | None
    allow_drift: bool
    force: bool


def narrow_lanes(request: NarrowRequest, progress: Progress) -> Narrow:
    """Find the minimal sets of settings that turn the divergence on, and write the result.

    Raises:
        BadInput: A lane or a value that cannot be used; before the first run.
        OutputFailed: The folder holds something else, or cannot be written.
        EngineFailed: A lane cannot be run at all.
    """
    check_requests(request.requests)
    lanes = two_lanes(request.lane, request.good, request.bad, request.vary)
    mixture = Mixture.of(*(prepare(lane, request.capture) for lane in lanes))
    allow_drift = request.allow_drift and "model" not in mixture.names
    options = RunOptions(request.requests, request.capture, allow_drift)
    new = new_search(mixture, options, request.level, request.repeat)
    known, _ = continued_search(request.out, new, request.force)
    _check_lanes(lanes, Ledger(known, request.out), progress)
    make_folder(request.out)
    with OutputLock(request.out / RESULT, force=True):
        document, kept = continued_search(request.out, new, request.force)  # as it is now that it is locked
        if kept is not None:
            progress.note(continuation_line(kept, request.out))
        return _search(document, mixture, lanes, options, request.out, progress)


def _check_lanes(lanes: tuple[Side, Side], ledger: Ledger, progress: Progress) -> None:
    """Check all values of the lanes that have not run yet.

    Raises:
        BadInput, EngineFailed: One cannot be used.
    """
    for lane, on in zip(lanes, (GOOD, ledger.all_on), strict=True):
        if not ledger.runs_of(on):
            progress.stage(f"checking the {lane.name} lane")
            check(lane)


def _search(
    document: Narrow,
    mixture: Mixture,
    lanes: tuple[Side, Side],
    options: RunOptions,
    out: Path,
    progress: Progress,
) -> Narrow:
    """Run what is not known yet, and write the result.

    Raises:
        EngineFailed: A lane cannot be run at all.
    """
    ledger = Ledger(document, out)
    write_private(out / RESULT, ledger.document().to_json())  # so that the folder is known from the first run
    number = most = 0

    def before_run(on: On, done: int, most_left: int) -> None:
        nonlocal number, most
        number, most = done + 1, most_left - 1
        stage, detail = stage_of_run(number, ledger.name(on), most)
        progress.stage(stage, detail=detail)

    def after_run(on: On, index: int, run: NarrowObservation) -> None:
        progress.note(run_line(ledger.name(on), run, document.level, index, number, most))

    runs = Runs(mixture, options, out, ledger, document.level, after_run)
    finding = search(mixture.names, runs, document.repeat, before_run)
    if finding.failed is not None:
        raise _lane_failed(lanes[bool(finding.failed)], finding.failed, ledger, runs)
    result = ledger.document(finding)
    result = result.model_copy(update={"commands": _commands(result, mixture, options, out)})
    write_private(out / RESULT, result.to_json())
    return result


def _lane_failed(lane: Side, on: On, ledger: Ledger, runs: Runs) -> EngineFailed:
    """Why a lane could not be run."""
    index = 0
    while (run := ledger.known(on, index)) is not None and run.failure is None:
        index += 1
    reason = failure_in_words(run)
    kept = "; the good lane's runs are kept" if on else ""
    log = runs.log(on, index)
    server_log = log.with_suffix(".parquet.server.log")
    logs = [str(path) for path in (log, server_log) if path == log or path.exists()]
    return EngineFailed(
        f"the {lane.name} lane cannot be run: {reason}",
        f"fix it and run the same command again{kept}; its output is in {' and '.join(logs)}",
    )


def _commands(result: Narrow, mixture: Mixture, options: RunOptions, out: Path) -> list[list[str]]:
    """What compares the two deciding runs, and what runs them again."""
    if not result.found:
        return []
    found = result.found[0]
    traces = [str(out / f"{name}.parquet") for name in ("good", found.configuration)]
    repeated = ["good-again.parquet", "bad-again.parquet"]
    replays = [
        mixture.command(on, options, trace, shown=True).arguments()
        for on, trace in zip(([], found.settings), repeated, strict=True)
    ]
    compare, compare_again = (
        DivergeCommand(good, bad, result.level).arguments() for good, bad in (traces, repeated)
    )
    return [["rip", *arguments] for arguments in (compare, *replays, compare_again)]
