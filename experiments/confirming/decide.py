"""What the runs of an experiment decide of a cause: strict, as a false proof is worse than none.

An experiment that changes something needs a control: B as it was, run again, equals B to the bit. Without
it, whatever the changed run gives could come from anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...schemas.findings.experiments import (
    BeyondRounding,
    Confirmation,
    LargestDrift,
    Limit,
    RepeatsCompared,
    Run,
    RunCompared,
    RunFailed,
)
from ...schemas.findings.statement import Command, Location, Side
from ...schemas.findings.tokens import Margins
from .as_asked import files_changed, not_as_asked
from .mixed_model import KINDS, with_files_of_a
from .outcome import Outcome, compare, differing_repeats, is_of_choice, place_of
from .runs import Runs

if TYPE_CHECKING:
    from ...schemas.findings.experiments import ExperimentFinding
    from ...schemas.trace import TraceHeader
    from ...schemas.verdict import Cause, Verdict

State = Literal["confirmed", "refuted", "not decided"]
_WEAK = ("tokens", "texts")
"""What can be equal by chance: a near tie falls either way."""
_DRIFT_EXPECTED = frozenset({"dtype", "weights", "model-config"})
"""Causes that explain a drift of any size."""


@dataclass(frozen=True)
class Case:
    """A result and what its experiments need.

    Attributes:
        verdict: Of the comparison.
        paths: Traces A and B, as they are opened from here.
        headers: Theirs.
        control: B as it was.
        runs: Makes the runs.
        beyond_rounding: The largest drift, where rounding does not explain it.
    """

    verdict: Verdict
    paths: tuple[Path, Path]
    headers: tuple[TraceHeader, TraceHeader]
    control: Command
    runs: Runs
    beyond_rounding: float | None = None


@dataclass
class Findings:
    """Evidence as it comes, and the runs that it rests on."""

    case: Case
    evidence: list[ExperimentFinding] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)

    def run(self, command: Command, run: Run, label: str) -> Path | None:
        """The trace of a run; None: it failed, which is evidence."""
        made = self.case.runs.make(command, run, label)
        if isinstance(made, RunFailed):
            self.evidence.append(made)
            return None
        self.traces.append(made)
        return made

    def compare(
        self, side: Side, new: Path, run: Run, command: Command, place: Location | None = None
    ) -> Outcome:
        """Compare A or B with a run; where something was compared it is evidence."""
        runs, base = self.case.runs, self.case.paths["AB".index(side)]
        found = compare(base, new, runs.folder / ".comparing", place)
        if found.equal is None:
            self.evidence.append(Limit(what="not compared"))
            return found
        self.evidence.append(
            RunCompared(
                run=run,
                against=side,
                equal=found.equal,
                by=found.by,
                compared=found.compared,
                undoes=command.changes,
                where=None if found.equal else found.where,
                gone_at=place if found.place_equal and not found.equal else None,
            )
        )
        return found

    def decided(self, state: State, command: Command, *more: ExperimentFinding) -> Confirmation:
        """The decision as the verdict holds it."""
        return Confirmation(
            state=state,
            evidence=[*self.evidence, *more],
            undoes=command.changes,
            argv=command.argv,
            traces=[trace.name for trace in dict.fromkeys(self.traces)],
            folder=str(self.case.runs.folder),
            seconds=round(sum(map(_seconds, dict.fromkeys(self.traces))), 3),
            created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )


def decide(case: Case, cause: Cause, label: str, run: Run = "changed") -> Confirmation:
    """Run the experiment of a cause that has one, and decide.

    Args:
        label: What the cause is called, for people.

    Raises:
        KeyboardInterrupt: The user stopped it.
        OutputFailed: There is no room for a trace.
    """
    command = cause.confirm
    assert command is not None
    kind = cause.interpretation
    special = _BY_INTERPRETATION.get(kind) if kind is not None else None
    if special is not None:
        return special(Findings(case), cause, command, label)
    return decide_undone(case, command, label, run, cause)


def decide_undone(case: Case, command: Command, label: str, run: Run, cause: Cause | None) -> Confirmation:
    """B with something as A had it: equal to A, at least at the place of the cause, or to B?"""
    found = Findings(case)
    chooses = is_of_choice(command)
    place = None if cause is None else place_of(case.verdict, cause)
    if not _repeats_itself(found, chooses):
        return found.decided("not decided", command)
    if not command.changes:
        return found.decided("not decided", command, Limit(what="nothing was changed"))
    if cause is not None:
        command = only_files_of(cause.id, command, case)
    new = found.run(command, run, label)
    if new is None:
        return found.decided("not decided", command)
    if missing := not_as_asked(command.changes, _header(new), *case.headers):
        return found.decided("not decided", command, *missing)
    as_a = found.compare("A", new, run, command, place)
    if as_a.equal or as_a.place_equal:
        return _confirmed(found, command, as_a, cause, chooses)
    as_b = found.compare("B", new, run, command)
    if as_b.equal and (chooses or as_b.by not in _WEAK):
        return found.decided("refuted", command)
    return found.decided("not decided", command, Limit(what="neither A nor B"))


def only_files_of(cause: str, command: Command, case: Case) -> Command:
    """An experiment that undoes no more of the model files than a cause is about."""
    if cause not in KINDS or files_changed(*case.headers) is None:
        return command
    return with_files_of_a(command, cause, case.runs.run_in, case.runs.folder) or command


def undoes_whole_model(command: Command) -> bool:
    """Whether it runs B with all of A's model files."""
    return any((one.of, one.name) == ("model", "model") for one in command.changes)


def _repeats_itself(found: Findings, chooses: bool) -> bool:
    """Whether B as it was, run again here, equals B; what it gave is evidence."""
    case = found.case
    control = found.run(case.control, "unchanged", "B as it was")
    if control is None:
        return False
    again = found.compare("B", control, "unchanged", case.control)
    if again.equal and (chooses or again.by not in _WEAK):
        return True
    if again.equal:
        found.evidence.append(Limit(what="tokens only"))
    elif again.equal is False:
        found.compare("A", control, "unchanged", case.control)
        found.evidence.append(Limit(what="not repeated"))
    return False


def _confirmed(
    found: Findings, command: Command, as_a: Outcome, cause: Cause | None, chooses: bool
) -> Confirmation:
    """A confirmation, but for what it would claim too much of."""
    case = found.case
    if as_a.by in _WEAK and not chooses:
        return found.decided("not decided", command, Limit(what="tokens only"))
    if as_a.equal and as_a.by == "rows" and as_a.compared < case.verdict.compared.rows:
        return found.decided("not decided", command, Limit(what="fewer rows"))
    if undoes_whole_model(command) and cause is not None and cause.id in KINDS:
        several = files_changed(*case.headers)
        if several is not None:
            return found.decided("not decided", command, several)
    more: list[ExperimentFinding] = []
    if cause is not None and not chooses and cause.id not in _DRIFT_EXPECTED and case.beyond_rounding:
        more.append(BeyondRounding(drift=case.beyond_rounding))
    return found.decided("confirmed", command, *more)


def _fresh(found: Findings, cause: Cause, command: Command, label: str) -> Confirmation:
    """B as it was, with a cache of its own: A's rows mean that entries of the recorded run were wrong."""
    new = found.run(command, "unchanged", label)
    if new is None:
        return found.decided("not decided", command)
    as_a = found.compare("A", new, "unchanged", command, place_of(found.case.verdict, cause))
    if (as_a.equal or as_a.place_equal) and as_a.by not in _WEAK:
        return found.decided("confirmed", command)
    as_b = found.compare("B", new, "unchanged", command)
    state: State = "refuted" if as_b.equal and as_b.by not in _WEAK else "not decided"
    return found.decided(state, command)


def _repeats_differ(found: Findings, cause: Cause, command: Command, label: str) -> Confirmation:
    """Repeats of B that differ from each other prove that it does not repeat itself; equal ones prove
    nothing: noise may be rare."""
    repeats = _repeat(found, command, label)
    if repeats is None:
        return found.decided("not decided", command)
    return found.decided("confirmed" if repeats.differing else "not decided", command)


def _repeats_same(found: Findings, cause: Cause, command: Command, label: str) -> Confirmation:
    """Repeats of B: does its lane always do so? Nothing is changed, so nothing is proven beyond that."""
    repeats = _repeat(found, command, label)
    if repeats is None:
        return found.decided("not decided", command)
    if repeats.differing:
        return found.decided("refuted", command)
    new = found.traces[-1]
    as_a = found.compare("A", new, "repeated", command)
    if as_a.equal and as_a.by not in _WEAK:
        return found.decided("refuted", command)
    found.compare("B", new, "repeated", command)
    return found.decided("not decided", command, Limit(what="nothing was changed"))


def _repeat(found: Findings, command: Command, label: str) -> RepeatsCompared | None:
    new = found.run(command, "repeated", label)
    if new is None:
        return None
    repeats, requests, differing = differing_repeats(new)
    compared = RepeatsCompared(repeats=repeats, requests=requests, differing=differing)
    found.evidence.append(compared)
    return compared


def _forced(found: Findings, cause: Cause, command: Command, label: str) -> Confirmation:
    """A's tokens forced on B: is the drift everywhere as small as at the step where the tokens part?"""
    margins = next((one for one in cause.evidence if isinstance(one, Margins)), None)
    new = found.run(command, "changed", label)
    if new is None:
        return found.decided("not decided", command)
    if missing := not_as_asked(command.changes, _header(new), *found.case.headers):
        return found.decided("not decided", command, *missing)
    as_a = found.compare("A", new, "changed", command)
    if margins is None or as_a.largest_logit is None or margins.drift is None:
        return found.decided("not decided", command)
    largest = LargestDrift(largest=as_a.largest_logit, there=margins.drift)
    state: State = "confirmed" if 0 < as_a.largest_logit <= margins.drift else "not decided"
    return found.decided(state, command, largest)


_Decide = Callable[[Findings, "Cause", Command, str], Confirmation]
_BY_INTERPRETATION: dict[str, _Decide] = {
    "fresh cache": _fresh,
    "repeats differ": _repeats_differ,
    "repeats at the same place": _repeats_same,
    "repeats choose": _repeats_same,
    "forced tokens": _forced,
}
"""How causes are decided whose experiment undoes nothing of B."""


def _header(trace: Path) -> TraceHeader:
    from ...diverge.reading.load import read_header

    return read_header(trace)


def _seconds(trace: Path) -> float:
    return sum(_header(trace).seconds.values())
