"""When a configuration's runs decide its outcome: one run where outcomes repeat, a sequential test where not.

The test is Wald's sequential probability ratio test between two rates of divergence: that of the good lane
against its own first run, and that of the bad lane against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...diverge.statistics.intervals import wilson
from ...schemas.narrow import NarrowOutcome

ERROR_RATE = 0.05
"""Chance of a wrong decision, for either outcome, that the sequential test accepts."""
_DECIDED = math.log((1 - ERROR_RATE) / ERROR_RATE)
_LEAST = 2
"""Runs of a configuration before it is decided, where several are allowed: a single one cannot show noise."""


@dataclass
class Counts:
    """How the runs of one configuration ended.

    Attributes:
        diverged: Runs that differ from the reference.
        same: Runs that do not.
        failed: Runs that could not be made or compared.
    """

    diverged: int = 0
    same: int = 0
    failed: int = 0

    @property
    def compared(self) -> int:
        """Runs that could be compared."""
        return self.diverged + self.same

    @property
    def runs(self) -> int:
        """All runs."""
        return self.compared + self.failed

    @property
    def disagree(self) -> bool:
        """Whether equal runs ended differently."""
        return bool(self.diverged and self.same)

    def add(self, diverges: bool | None) -> None:
        """Count one run; None: it failed."""
        if diverges is None:
            self.failed += 1
        elif diverges:
            self.diverged += 1
        else:
            self.same += 1


@dataclass(frozen=True)
class Rule:
    """Turns the runs of a configuration into its outcome.

    Attributes:
        repeat: Runs that a configuration gets at most.
        good_rate: Share of the good lane's runs that differ from its first.
        bad_rate: Share of the bad lane's runs that differ from it.
    """

    repeat: int
    good_rate: float = 0.0
    bad_rate: float = 1.0

    @classmethod
    def measured(cls, repeat: int, good: Counts, bad: Counts) -> Rule:
        """The rule from the rates of the two lanes' own runs."""
        return cls(repeat, *(_smoothed(counts) for counts in (good, bad)))

    def outcome(self, counts: Counts) -> NarrowOutcome | None:
        """The outcome so far; None: another run is needed."""
        if counts.failed:
            return "failed"
        if counts.runs >= min(self.repeat, _LEAST):
            if self.repeat == 1:
                return "undecided" if counts.disagree else "diverges" if counts.diverged else "same"
            weight = self.weight(counts)
            if abs(weight) >= _DECIDED:
                return "diverges" if weight > 0 else "same"
            if counts.runs >= self.repeat:
                return "undecided"
        return None

    def weight(self, counts: Counts) -> float:
        """Log likelihood ratio (nats) of diverging as often as the bad lane to as often as the good one."""
        of_one = math.log(self.bad_rate / self.good_rate)
        of_other = math.log((1 - self.bad_rate) / (1 - self.good_rate))
        return counts.diverged * of_one + counts.same * of_other


def _smoothed(counts: Counts) -> float:
    # Never 0 or 1: some equal runs do not prove that all are. Half a run of each kind is added (Jeffreys).
    return (counts.diverged + 0.5) / (counts.compared + 1)


def are_distinguishable(good: Counts, bad: Counts) -> bool:
    """Whether the bad lane diverges more often than the good one does from itself.

    True where every run of the bad lane diverges and none of the good one; else their Wilson intervals must
    not overlap.
    """
    if not good.diverged and not bad.same:
        return True
    return wilson(bad.diverged, bad.compared).low > wilson(good.diverged, good.compared).high
