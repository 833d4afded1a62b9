"""A policy against evidence: what has changed, what that leads to, and whether the evidence is any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ...schemas.gate import Changed, Decision, Effect, Held, Policy, Refusal, Rule

if TYPE_CHECKING:
    from ...schemas.change import Change
    from ...schemas.fingerprint import Fingerprint
    from ...schemas.matrix import Cell, MatrixVerdict, Run


def judge_changes(
    policy: Policy, lane: str, changes: Iterable[Change], states: Mapping[str, str]
) -> list[Changed]:
    """What each change leads to.

    Args:
        states: Claim → its state.
    """
    found = []
    for change in changes:
        rule = next((rule for rule in policy.rules if fnmatchcase(change.name, rule.variable)), None)
        action = policy.default if rule is None else rule.action
        failing = _failing(rule, states) if action == "within tolerance" else []
        effect: Effect = "recorded" if action == "unsupported" else "drift report"
        if action == "must match" or failing:
            effect = "block"
        found.append(
            Changed(
                lane=lane,
                change=change,
                action=action,
                effect=effect,
                rule=None if rule is None else rule.variable,
                failing=failing,
            )
        )
    return found


def _failing(rule: Rule | None, states: Mapping[str, str]) -> list[str]:
    wanted = list(states) if rule is None or rule.claims is None else rule.claims
    return [name for name in wanted if states.get(name) != "holds"]


def check_evidence(policy: Policy, verdict: MatrixVerdict, cells: Mapping[str, Cell]) -> list[Refusal]:
    """Why the evidence of the claims that a policy names is none: not covered, invalid, vacuous."""
    found = [] if verdict.valid else [Refusal(kind="invalid plan")]
    claims = {claim.id: claim for claim in verdict.claims if not claim.control}
    named = required(policy, verdict)
    named += [name for rule in policy.rules for name in rule.claims or [] if name not in named]
    for name in named:
        claim = claims.get(name)
        if claim is None:
            found.append(Refusal(kind="no such claim", claim=name))
        elif claim.state in ("not covered", "invalid"):
            invalid = [one.cell for one in claim.cells if one.state == "invalid"]
            kind = "claim not covered" if claim.state == "not covered" else "invalid cell"
            found.append(Refusal(kind=kind, claim=name, cells=invalid))  # type: ignore[arg-type]
        elif not any(one.sequences for cell in claim.cells for one in cells[cell.cell].comparisons):
            found.append(Refusal(kind="nothing compared", claim=name))
    return found


def check_age(policy: Policy, runs: Iterable[Run], now: datetime) -> list[Refusal]:
    """Refuse evidence whose oldest run is older than the policy allows."""
    started = [datetime.fromisoformat(run.started) for run in runs]
    if policy.max_age_days is None or not started:
        return []
    days = (now - min(started).astimezone(UTC)).total_seconds() / 86_400
    return [Refusal(kind="too old", days=round(days, 1))] if days > policy.max_age_days else []


def check_environments(lane: str, of_lane: Sequence[tuple[Run, Fingerprint | None]]) -> list[Refusal]:
    """Refuse runs without an environment, with claimed hashes, or of a configuration whose launches ran in
    different environments: then a cell compares more than it says."""
    found = []
    if any(fingerprint is None for _, fingerprint in of_lane):
        found.append(Refusal(kind="no fingerprint", lane=lane))
    if any(run.claimed for run, _ in of_lane):
        found.append(Refusal(kind="claimed hashes", lane=lane))
    roots: dict[str, set[str | None]] = {}
    for run, _ in of_lane:
        roots.setdefault(run.key, set()).add(run.environment)
    stale = sorted(key for key, seen in roots.items() if len(seen) > 1)
    return [*found, *([Refusal(kind="stale cell", lane=lane, cells=stale)] if stale else [])]


def required(policy: Policy, verdict: MatrixVerdict) -> list[str]:
    """The claims that must hold whatever has changed."""
    if policy.require is not None:
        return list(policy.require)
    return [claim.id for claim in verdict.claims if not claim.control]


def conclude(held: Sequence[Held], changed: Sequence[Changed], refusals: Sequence[Refusal]) -> Decision:
    """The decision: evidence that is none is refused before anything passes or blocks on it."""
    if refusals:
        return "refused"
    if any(claim.state == "fails" for claim in held) or any(one.effect == "block" for one in changed):
        return "block"
    return "drift report" if changed else "pass"
