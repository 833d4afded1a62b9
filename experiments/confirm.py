"""The experiment of `rip confirm`: run what confirms the causes of a result, decide, and write it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..diverge.present.format import duration
from ..schemas.errors import BadInput
from ..schemas.files import OutputLock
from ..schemas.findings.experiments import Confirmation, Limit, RunCompared
from ..schemas.findings.statement import Command, Undone
from .confirming.decide import Case, decide, decide_undone, only_files_of, undoes_whole_model
from .confirming.mixed_model import KINDS
from .confirming.runs import Runs
from .progress import Progress

if TYPE_CHECKING:
    from ..diverge.causes.commands import Commands
    from ..schemas.verdict import Cause, Verdict

SUFFIX = ".confirm"
"""What the name of a result's folder of experiments ends with."""
TOGETHER = 0
"""In place of a cause's number: all causes together."""
Decided = Callable[[int, "Cause | None", Confirmation], None]
"""Called with the number of a cause, or `TOGETHER`, and what was decided."""


@dataclass(frozen=True)
class ConfirmRequest:
    """What `rip confirm` is asked for, as its options say it.

    Attributes:
        result: The result folder.
        number: Of the cause, from 1.
        every: Go down the list of causes; then all of them together.
        settings: `--set` texts that no trace holds, as they may be secret.
        force: Run again what was run before.
    """

    result: Path
    number: int = 1
    every: bool = False
    settings: tuple[str, ...] = ()
    force: bool = False


def confirm(request: ConfirmRequest, progress: Progress, decided: Decided) -> Verdict:
    """Run the confirming experiments, decide, and write each decision into the result as soon as it is made.

    Args:
        progress: Told how long it will take before anything runs.
        decided: Called with each decision.

    Returns:
        The verdict with the decisions, as it is now in the folder.

    Raises:
        BadInput: No result, no such cause, a cause without an experiment, or the traces are gone.
        OutputFailed: Another process does the same, or there is no room.
    """
    from ..diverge.present.report.reading.traces import find_sources
    from ..diverge.result_folder import read_verdict

    verdict = read_verdict(request.result)
    wanted = _wanted(request, verdict)
    paths, sources = find_sources(verdict, request.result)
    headers = [source.header for source in sources]
    for source in sources:
        if source.header is None:
            raise BadInput(
                f"trace {source.side} of {request.result} is not there: {source.path}",
                "put it back, or replay and compare again: an experiment is compared with it",
            )
    assert headers[0] is not None
    assert headers[1] is not None
    experiments = Path(f"{request.result.absolute()}{SUFFIX}")
    runs = Runs(
        experiments,
        paths.folder,
        headers[1],
        verdict.b.sha256_of_header,
        progress,
        request.settings,
        request.force,
    )
    commands = _commands(sources[0].path, sources[1].path, paths.result, headers[0], headers[1], paths.folder)
    case = Case(
        verdict,
        (paths.folder / sources[0].path, paths.folder / sources[1].path),
        (headers[0], headers[1]),
        commands.undo([]),
        runs,
        _beyond_rounding(request.result, verdict),
    )
    here = [
        (number, cause.model_copy(update={"confirm": paths.here(cause.confirm)}))
        for number, cause in wanted
        if cause.confirm is not None
    ]
    union = _union(here) if request.every else []
    experiments.mkdir(mode=0o700, exist_ok=True)
    with OutputLock(experiments / "runs", force=True):
        _announce(here, union, case, commands, progress)
        return _decide_all(request, case, commands, here, union, decided)


def _commands(*parts: object) -> Commands:
    from ..diverge.causes.commands import Commands

    *positional, folder = parts
    return Commands(*positional, folder=folder)  # type: ignore[arg-type]


def _wanted(request: ConfirmRequest, verdict: Verdict) -> list[tuple[int, Cause]]:
    """The causes to decide, with their numbers.

    Raises:
        BadInput: There is none, or none that an experiment can decide.
    """
    causes = list(enumerate(verdict.causes, start=1))
    if not causes:
        raise BadInput(
            f"{request.result} names no cause",
            "there is nothing to confirm",
        )
    if request.every:
        found = [(number, cause) for number, cause in causes if cause.has_experiment]
        if not found:
            raise BadInput(
                f"no cause of {request.result} has an experiment", "look at the evidence: rip report"
            )
        return found
    if not 1 <= request.number <= len(causes):
        raise BadInput(
            f"{request.result} has no cause {request.number}", f"choose one from 1 to {len(causes)}"
        )
    cause = causes[request.number - 1][1]
    if cause.has_experiment:
        return [(request.number, cause)]
    others = [str(number) for number, other in causes if other.has_experiment]
    if cause.confirm is not None and cause.confirm.purpose == "rerun program":
        raise BadInput(
            f"cause {request.number} needs a run of your own program",
            "run it as the report says",
        )
    raise BadInput(
        f"cause {request.number} has no experiment: A's value cannot be set here",
        f"causes with one: {', '.join(others)}" if others else "look at the evidence: rip report",
    )


def _union(wanted: Sequence[tuple[int, Cause]]) -> list[Undone]:
    """What all causes undo; empty: fewer than two of them undo something of their own."""
    union: dict[tuple[str, str], Undone] = {}
    kinds = set()
    for _, cause in wanted:
        assert cause.confirm is not None
        mine = [one for one in cause.confirm.changes if one.of != "mode"]
        if mine and cause.needs_control and cause.interpretation != "other padding side":
            kinds.add(_names(cause.confirm))
            union |= {(one.of, one.name): one for one in mine if (one.of, one.name) not in union}
    return list(union.values()) if len(kinds) > 1 else []


def _names(command: Command) -> frozenset[tuple[str, str]]:
    return frozenset((one.of, one.name) for one in command.changes)


def _announce(
    wanted: Sequence[tuple[int, Cause]],
    union: Sequence[Undone],
    case: Case,
    commands: Commands,
    progress: Progress,
) -> None:
    """Say how many runs it takes, and how long."""
    planned = [cause.confirm for _, cause in wanted if cause.confirm is not None]
    if any(cause.needs_control for _, cause in wanted):
        planned.insert(0, case.control)
    if union:
        planned.append(commands.undo(union))
    runs = case.runs
    missing = {runs.trace(command): command for command in planned if not runs.is_done(command)}
    runs.expected = len(missing)
    kept = len({runs.trace(command) for command in planned}) - len(missing)
    if not missing:
        progress.note(f"{kept} runs are there already; nothing runs (--force runs them again)")
        return
    total = duration(*(case.headers[1].seconds_again(command.repeats) for command in missing.values()))
    many = "1 run" if len(missing) == 1 else f"{len(missing)} runs"
    before = f"; {kept} more are there already" if kept else ""
    progress.note(f"{many} of B's requests, about {total} in all{before}. Ctrl-C keeps what is finished.")


def _decide_all(
    request: ConfirmRequest,
    case: Case,
    commands: Commands,
    wanted: Sequence[tuple[int, Cause]],
    union: Sequence[Undone],
    decided: Decided,
) -> Verdict:
    """Decide one cause after another; then all together, and what only that can decide."""
    verdict, states = case.verdict, {}
    seen: dict[tuple[str, ...], int] = {}
    for number, cause in wanted:
        assert cause.confirm is not None
        confirmation = decide(case, cause, _label(number, cause))
        earlier = seen.setdefault(tuple(_without_out(confirmation.argv)), number)
        if earlier != number and confirmation.state == "confirmed":
            confirmation = _same_as(confirmation, earlier)
        states[number] = confirmation
        verdict = _save(request.result, number, confirmation)
        decided(number, verdict.causes[number - 1], confirmation)
    if not union:
        return verdict
    command = commands.undo(union)
    together = decide_undone(case, command, "all causes undone", "all undone", None)
    verdict = _save(request.result, TOGETHER, together)
    decided(TOGETHER, None, verdict.together or together)
    if together.state != "confirmed":
        return verdict
    for number, cause in wanted:
        if states[number].state == "not decided" and (rest := _others(cause, union)):
            command = commands.undo(rest)
            for _, other in wanted:
                command = only_files_of(other.id, command, case) if other is not cause else command
            left = _left_out(case, command, cause, states[number], number)
            if left is not None:
                verdict = _save(request.result, number, left)
                decided(number, verdict.causes[number - 1], left)
    return verdict


def _without_out(argv: Sequence[str]) -> list[str]:
    """A command line without the name of its trace."""
    at = argv.index("-o")
    return [*argv[:at], *argv[at + 2 :]]


def _others(cause: Cause, union: Sequence[Undone]) -> list[Undone]:
    """What the other causes undo; empty: this one undoes nothing of its own, or everything."""
    assert cause.confirm is not None
    own = _names(cause.confirm)
    rest = [one for one in union if (one.of, one.name) not in own]
    return rest if len(rest) < len(union) and cause.needs_control else []


def _left_out(
    case: Case, command: Command, cause: Cause, before: Confirmation, number: int
) -> Confirmation | None:
    """Where all undone equals A: does B with only this cause left still differ from A?"""
    from .confirming.as_asked import files_changed
    from .confirming.decide import Findings

    several = files_changed(*case.headers)
    if several is not None and undoes_whole_model(command):
        return None  # it may undo this cause, too: the files of one model come together
    found = Findings(case)
    new = found.run(command, "the others undone", f"all but {_label(number, cause)} undone")
    if new is None:
        return None
    outcome = found.compare("A", new, "the others undone", command)
    if outcome.equal is None or cause.confirm is None:
        return None
    if several is not None and cause.id in KINDS and not outcome.equal:
        return None
    found.evidence[:0] = [one for one in before.evidence if isinstance(one, RunCompared)]
    found.traces[:0] = [case.runs.folder / name for name in before.traces]
    return found.decided("refuted" if outcome.equal else "confirmed", cause.confirm)


def _same_as(confirmation: Confirmation, earlier: int) -> Confirmation:
    """One experiment cannot tell two causes apart: it proves the first of them at most."""
    limit = Limit(what="same experiment as an earlier cause", names=[str(earlier)])
    evidence = [*confirmation.evidence, limit]
    return confirmation.model_copy(update={"state": "not decided", "evidence": evidence})


def _save(folder: Path, number: int, confirmation: Confirmation) -> Verdict:
    """Write a decision into the result, as it is there now."""
    from ..diverge.present.findings.sentences import with_sentences
    from ..diverge.result_folder import read_verdict
    from .zoom import save_verdict

    verdict = read_verdict(folder)
    if number == TOGETHER:
        verdict = verdict.model_copy(update={"together": confirmation})
    else:
        causes = list(verdict.causes)
        causes[number - 1] = causes[number - 1].model_copy(update={"confirmation": confirmation})
        verdict = verdict.model_copy(update={"causes": causes})
    verdict = with_sentences(verdict)
    save_verdict(verdict, folder)
    return verdict


def _label(number: int, cause: Cause) -> str:
    from ..diverge.present.findings.labels import label

    return f"cause {number}, {label(cause)}"


def _beyond_rounding(folder: Path, verdict: Verdict) -> float | None:
    """The drift of the first differing row, where it is more than rounding explains; else the largest of all
    rows, where most of a row is something else."""
    import pyarrow.parquet as pq

    from ..diverge.causes.observe.changed_logits import OTHER_VALUES, ROUNDING, coarser, in_ulps

    site = verdict.first_site
    if site is None or site.rel_drift is None:
        return None
    columns = ["name", "occurrence", "part", "dtype_a", "dtype_b", "drift_max"]
    totals = pq.read_table(folder / "site_totals.parquet", columns=columns).to_pylist()
    key = site.site, site.occurrence, site.part
    own = (one for one in totals if (one["name"], one["occurrence"], one["part"]) == key)
    dtype = next((coarser(one["dtype_a"], one["dtype_b"]) for one in own), "")
    ulps = in_ulps(dtype, site.rel_drift)
    if ulps is not None and ulps > ROUNDING:
        return site.rel_drift
    largest = max((one["drift_max"] for one in totals if one["drift_max"] is not None), default=0.0)
    return largest if largest >= OTHER_VALUES else None
