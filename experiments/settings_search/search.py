"""The search of `rip narrow`: which settings turn a divergence on, found by running combinations of them.

It knows settings by name only, and runs them through a function: no engine, no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...schemas.narrow import NarrowOutcome, NarrowState
from .noise import Counts, Rule, are_distinguishable

On = frozenset[str]
"""A configuration: the settings that are at the bad lane's value."""

Run = Callable[[On, int], bool | None]
"""Runs a configuration for the n-th time (from 0) and compares it with the good lane's first run: True, it
diverges; False, it does not; None, it cannot be run or compared. It may remember what it ran before."""

Watch = Callable[[On, int, int], None]
"""Called before every run: the configuration, the runs so far, and how many more are needed at most unless
settings mask each other."""

GOOD: On = frozenset()


@dataclass(frozen=True)
class Found:
    """A set of settings that turns the divergence on.

    Attributes:
        settings: In the order in which the lanes state them.
        undecided: Those of them without which the run failed, or stayed undecided.
    """

    settings: tuple[str, ...]
    undecided: tuple[str, ...]

    @property
    def on(self) -> On:
        """The configuration that has exactly them on."""
        return frozenset(self.settings)


@dataclass
class Finding:
    """What a search found.

    Attributes:
        state: How it ended; `noise`: the outcomes are too noisy for this number of repeats.
        found: Sets of settings that have nothing in common, each of which turns the divergence on.
        rest: The configuration with everything on but what was found; None: nothing is left.
        counts: Of every configuration that was run.
        outcomes: Of every configuration whose outcome was decided.
        unstable: A set that diverged when it was found, and did not when it was run again.
        failed: The lane that could not be run, good or bad, so that no search was possible.
    """

    state: NarrowState = "unfinished"
    found: list[Found] = field(default_factory=list)
    rest: On | None = None
    counts: dict[On, Counts] = field(default_factory=dict)
    outcomes: dict[On, NarrowOutcome] = field(default_factory=dict)
    unstable: On | None = None
    failed: On | None = None


def narrow(names: Sequence[str], run: Run, repeat: int = 1, watch: Watch | None = None) -> Finding:
    """Find the minimal sets of settings that turn the divergence on.

    First both lanes: does the good one repeat itself, does the bad one diverge from it? Then the settings are
    halved. A half that diverges by itself is halved again; where neither does, settings of both act together,
    and each half is searched with the other one on (delta debugging: Zeller, "Yesterday, my program worked.
    Today, it does not. Why?", 1999). Of what remains every single setting is taken away once more: it is
    minimal only if the divergence then goes away. The set is run once more, and then everything but the set:
    where that diverges too, it is searched for the next set.

    Args:
        names: The settings in which the lanes differ, at least one.
        run: Runs a configuration.
        repeat: Runs that a configuration gets at most; 1: a single run decides.
        watch: Called with what is about to run.

    Returns:
        What was found. Each set diverged when it was run, whatever the settings do to each other.
    """
    return _Search(tuple(names), run, repeat, watch).search()


class _Search:
    def __init__(self, names: tuple[str, ...], run: Run, repeat: int, watch: Watch | None) -> None:
        self._names, self._run, self._repeat, self._watch = names, run, repeat, watch
        self._all = frozenset(names)
        self._finding = Finding()
        self._rule = Rule(repeat)
        self._open: list[int] = [len(names)]
        """Sizes of the sets that are still to be searched."""
        self._kept = 0
        """Settings that the present search has found to be needed."""
        self._done = 0
        self._lanes = 1 + 2 * repeat
        """Runs that the lanes themselves take: the reference, then both."""

    def search(self) -> Finding:
        finding = self._finding
        finding.state = self._compare_lanes() or self._search_all()
        return finding

    def _compare_lanes(self) -> NarrowState | None:
        """Run both lanes; how the search ends there, or None: it can begin."""
        finding = self._finding
        good = finding.counts.setdefault(GOOD, Counts())
        if self._make(GOOD, 0) is None:
            good.failed += 1
            finding.failed = GOOD
            return "unfinished"
        for on in (self._all, GOOD):  # a bad lane that cannot run is known soon
            if self._observe(on, self._repeat).failed:
                finding.failed = on
                return "unfinished"
        bad = finding.counts[self._all]
        apart = bad.diverged and are_distinguishable(good, bad)
        if not apart and (good.disagree or bad.disagree or good.diverged):
            finding.outcomes = {GOOD: "undecided", self._all: "undecided"}
            return "noise"
        finding.outcomes = {GOOD: "same", self._all: "diverges" if apart else "same"}
        if not apart:
            return "no divergence"
        if self._repeat > 1:
            self._rule = Rule.measured(self._repeat, good, bad)
        return None

    def _search_all(self) -> NarrowState:
        finding, left = self._finding, self._all
        while left and self._outcome(left) == "diverges":
            self._open, self._kept = [len(left)], 0
            found = self._minimal(self._halve(self._ordered(left), GOOD))
            if not self._confirmed(found.on):
                finding.unstable = found.on
                return "found with noise" if finding.found else "noise"
            finding.found.append(found)
            left -= found.on
            finding.rest = left or None
        if left:
            self._confirmed(left)
        noisy = any(counts.disagree for counts in finding.counts.values())
        return "found with noise" if noisy else "found"

    def _halve(self, names: tuple[str, ...], held: On) -> On:
        """Some of `names` that diverge together with `held`, as all of them do."""
        while len(names) > 1:
            self._open[-1] = len(names)
            halves = names[: len(names) // 2], names[len(names) // 2 :]
            alone = next((half for half in halves if self._diverges(held | set(half))), None)
            if alone is None:
                return self._both(*halves, held)
            names = alone
        self._open[-1] = 0
        self._kept += 1
        return frozenset(names)

    def _both(self, one: tuple[str, ...], other: tuple[str, ...], held: On) -> On:
        """Each half with the other one on: settings of both are needed."""
        self._open[-1:] = [len(other), len(one)]
        needed = self._halve(one, held | set(other))
        self._open.pop()
        return needed | self._halve(other, held | needed)

    def _minimal(self, on: On) -> Found:
        """Take away what is not needed, until no single setting can be taken away."""
        self._open, self._kept = [], len(on)
        needless = True
        while needless:
            needless = False
            for name in self._ordered(on):
                if on != {name} and self._settled(on - {name}) == "diverges":
                    on, needless = on - {name}, True
        without = {name: self._outcome(on - {name}) for name in self._ordered(on)}
        return Found(tuple(without), tuple(name for name, outcome in without.items() if outcome != "same"))

    def _confirmed(self, on: On) -> bool:
        """Whether a configuration keeps its outcome when it runs as often as any may, or at least twice."""
        before = self._outcome(on)
        counts = self._observe(on, max(self._repeat, 2 if before == "diverges" else 1))
        after = self._rule.outcome(counts)
        if after != before and after is not None:
            self._finding.outcomes[on] = after
        return after == before

    def _settled(self, on: On) -> NarrowOutcome:
        """The outcome after as many runs as any configuration may have."""
        if self._repeat > 1:
            self._confirmed(on)
        return self._outcome(on)

    def _diverges(self, on: On) -> bool:
        return self._outcome(on) == "diverges"

    def _outcome(self, on: On) -> NarrowOutcome:
        """Run a configuration until its outcome is decided."""
        known = self._finding.outcomes
        if on not in known:
            outcome = None
            while outcome is None:
                counts = self._finding.counts.get(on, Counts())
                outcome = self._rule.outcome(self._observe(on, counts.runs + 1))
            known[on] = outcome
        return known[on]

    def _observe(self, on: On, runs: int) -> Counts:
        """Run a configuration until it ran so often, or failed. The reference is not counted."""
        counts = self._finding.counts.setdefault(on, Counts())
        while counts.runs < runs and not counts.failed:
            counts.add(self._make(on, counts.runs + (on == GOOD)))
        return counts

    def _make(self, on: On, index: int) -> bool | None:
        if self._watch is not None:
            self._watch(on, self._done, max(self._lanes - self._done, 0) + self._most())
        diverges = self._run(on, index)
        self._done += 1
        return diverges

    def _most(self) -> int:
        """How many runs are still to be made at most, if settings only add up."""
        halving = sum(2 * (size - 1) for size in self._open if size)  # two halves at every level
        taking_away = sum(self._open) + self._kept
        return (halving + (taking_away if taking_away > 1 else 0) + 2) * self._repeat

    def _ordered(self, on: On) -> tuple[str, ...]:
        return tuple(name for name in self._names if name in on)
