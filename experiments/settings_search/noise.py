"""When a configuration's runs decide its outcome: one run where outcomes repeat, a sequential test where not.

The test is Wald's sequential probability ratio test between two rates of divergence: that of the good lane
against its own first run, and that of the bad lane against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...diverge.statistics import wilson
from ...schemas.findings.statement import Location
from ...schemas.narrow import NarrowLevel, NarrowOutcome, RunDifference
from ...schemas.verdict import Verdict

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


def judge(verdict: Verdict) -> tuple[dict[NarrowLevel, bool], dict[NarrowLevel, RunDifference]]:
    """Does the run diverge, by level, and where first.

    Where an engine returns less than a level needs, what it returns decides: texts without token ids,
    log-probabilities without hashes.

    Args:
        verdict: Of the reference (A) and the run (B).
    """
    compared = verdict.compared
    token = bool(compared.sequences_diverging or compared.texts_differing)
    bitwise = (
        token
        or verdict.levels["bitwise"].state == "fails"
        or verdict.first_site is not None
        or verdict.first_logprob is not None
    )
    first: dict[NarrowLevel, RunDifference] = {}
    if token:
        first["token"] = _first_token(verdict)
    if bitwise:
        first["bitwise"] = _first_bit(verdict)
    return {"token": token, "bitwise": bitwise}, first


def _first_token(verdict: Verdict) -> RunDifference:
    token, text = verdict.first_token, verdict.first_text
    if token is not None:
        at = Location(
            request_id=token.request_id, sample=token.sample, position=token.position, step=token.step
        )
        return RunDifference(of="token", at=at)
    if text is not None:
        at = Location(request_id=text.request_id, sample=text.sample, character=text.character)
        return RunDifference(of="text", at=at)
    return RunDifference(of="token")


def _first_bit(verdict: Verdict) -> RunDifference:
    site, logprob = verdict.first_site, verdict.first_logprob
    if site is not None:
        at = Location(
            request_id=site.request_id, sample=site.sample, position=site.position, site=site.label()
        )
        return RunDifference(of="site", at=at)
    if logprob is not None:
        at = Location(request_id=logprob.request_id, sample=logprob.sample, position=logprob.position)
        return RunDifference(of="logprobs", at=at)
    if verdict.first_token is None and verdict.first_text is None:
        judged = verdict.levels["bitwise"]
        return RunDifference(of="bits", at=judged.where, why=judged.why)
    return _first_token(verdict)
