"""A policy against evidence: what has changed, what that leads to, and whether the evidence is any."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from ...schemas.change import Change
from ...schemas.gate import Changed, Decision, Effect, Held, Policy, Refusal, Rule
from ...schemas.matrix import Cell, ClaimVerdict, MatrixVerdict, Run
from .environments import Environments, sides

_EFFECTS: dict[str, Effect] = {
    "must match": "block",
    "within tolerance": "drift report",
    "unsupported": "recorded",
}


def required(policy: Policy, verdict: MatrixVerdict) -> list[str]:
    """The claims that must hold whatever has changed."""
    if policy.require is not None:
        return list(policy.require)
    return [claim.id for claim in verdict.claims if not claim.control]


def rule_for(policy: Policy, variable: str) -> Rule:
    """The first rule that fits a variable; none: the default, for any variable."""
    fits = (rule for rule in policy.rules if fnmatchcase(variable, rule.variable))
    return next(fits, Rule(variable="", action=policy.default))


def judge_changes(policy: Policy, lane: str, changes: Iterable[Change]) -> list[Changed]:
    """What each change of a lane leads to, by the policy alone."""
    found = []
    for change in changes:
        rule = rule_for(policy, change.name)
        found.append(
            Changed(
                lane=lane,
                change=change,
                action=rule.action,
                effect=_EFFECTS[rule.action],
                rule=rule.variable or None,
            )
        )
    return found


def claims_needed(policy: Policy, verdict: MatrixVerdict, changed: Iterable[Changed]) -> list[str]:
    """The claims that decide: those required, and those of the rules that allow a change within tolerance."""
    needed = required(policy, verdict)
    for one in changed:
        if one.action == "within tolerance":
            needed += rule_for(policy, one.change.name).claims or []
    return list(dict.fromkeys(needed))


def check_claims(
    policy: Policy, needed: Sequence[str], verdict: MatrixVerdict, cells: Mapping[str, Cell]
) -> list[Refusal]:
    """Why the claims that decide are not decided: no such claim, not covered, invalid, or vacuous."""
    found = [] if verdict.valid else [Refusal(kind="invalid plan")]
    if not needed:
        found.append(Refusal(kind="nothing required"))
    claims = _by_id(verdict)
    of_rules = [name for rule in policy.rules for name in rule.claims or []]
    for name in dict.fromkeys([*needed, *of_rules]):
        if name not in claims:
            found.append(Refusal(kind="no such claim", claim=name))
        elif name in needed:
            found += _undecided(claims[name], cells)
    return found


def _by_id(verdict: MatrixVerdict) -> dict[str, ClaimVerdict]:
    return {claim.id: claim for claim in verdict.claims if not claim.control}


def _undecided(claim: ClaimVerdict, cells: Mapping[str, Cell]) -> list[Refusal]:
    if claim.state == "not covered":
        return [Refusal(kind="claim not covered", claim=claim.id)]
    invalid = [one.cell for one in claim.cells if one.state == "invalid"]
    if invalid:
        return [Refusal(kind="invalid cell", claim=claim.id, cells=invalid)]
    empty = [
        one.cell for one in claim.cells if not any(each.sequences for each in cells[one.cell].comparisons)
    ]
    return [Refusal(kind="nothing compared", claim=claim.id, cells=empty)] if empty or not claim.cells else []


def cells_of(verdict: MatrixVerdict, cells: Mapping[str, Cell], names: Collection[str]) -> list[Cell]:
    """The finished cells that decide claims."""
    claims = [claim for name, claim in _by_id(verdict).items() if name in names]
    return [cells[name] for name in dict.fromkeys(one.cell for claim in claims for one in claim.cells)]


def check_runs(cells: Iterable[Cell], environments: Environments) -> list[Refusal]:
    """Refuse runs without an environment, with claimed hashes, or of a configuration whose launches ran in
    different environments: then a cell compares more than it says."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for lane, keys in sides(cell):
            runs = list(environments.runs(keys))
            kinds = {
                "no fingerprint": any(run.environment is None for run in runs),
                "claimed hashes": any(run.claimed for run in runs),
                "stale cell": any(
                    len({run.environment for run in environments.runs([key])}) > 1 for key in keys
                ),
            }
            for kind in (kind for kind, there in kinds.items() if there):
                named = found.setdefault((kind, lane), [])
                named += [cell.id] * (cell.id not in named)
    return [Refusal(kind=kind, lane=lane, cells=named) for (kind, lane), named in found.items()]  # type: ignore[arg-type]


def check_lane(lane: str, cells: Iterable[Cell]) -> list[Refusal]:
    """Refuse claims that say nothing of a candidate: none of their cells ran it."""
    ran = {name for cell in cells for name, keys in sides(cell) if keys}
    return [] if lane in ran else [Refusal(kind="lane not covered", lane=lane)]


def check_tolerated(
    policy: Policy,
    verdict: MatrixVerdict,
    cells: Mapping[str, Cell],
    changed: Sequence[Changed],
    is_pair: Mapping[str, bool],
) -> list[Refusal]:
    """Refuse changes that a tolerance is to cover where no cell compares what serves now with the candidate.

    Args:
        is_pair: Cell → whether it does.
    """
    open_changes: dict[str, list[str]] = {}
    for one in changed:
        if one.action != "within tolerance":
            continue
        claims = rule_for(policy, one.change.name).claims or required(policy, verdict)
        if not any(is_pair[cell.id] for cell in cells_of(verdict, cells, claims)):
            open_changes.setdefault(one.lane, []).append(one.change.name)
    return [
        Refusal(kind="not compared with the baseline", lane=lane, variables=names)
        for lane, names in open_changes.items()
    ]


def pairs(
    cells: Iterable[Cell], environments: Environments, baseline: Collection[str], candidate: Collection[str]
) -> dict[str, bool]:
    """Cell → whether one side ran in an environment of the baseline, the other in one of the candidate."""
    base, now = set(baseline), set(candidate)
    found = {}
    for cell in cells:
        a, b = set(environments.of_keys(cell.runs_a)), set(environments.of_keys(cell.runs_b))
        found[cell.id] = any(
            bool(one and other) and one <= base and other <= now for one, other in ((a, b), (b, a))
        )
    return found


def check_age(policy: Policy, runs: Iterable[Run], now: datetime) -> list[Refusal]:
    """Refuse evidence whose oldest run is older than the policy allows."""
    started = [datetime.fromisoformat(run.started) for run in runs]
    if policy.max_age_days is None or not started:
        return []
    days = (now - min(started).astimezone(UTC)).total_seconds() / 86_400
    return [Refusal(kind="too old", days=round(days, 1))] if days > policy.max_age_days else []


def conclude(held: Sequence[Held], changed: Sequence[Changed], refusals: Sequence[Refusal]) -> Decision:
    """The decision: evidence that is none is refused before anything passes or blocks on it."""
    if refusals:
        return "refused"
    if any(claim.state != "holds" for claim in held) or any(one.effect == "block" for one in changed):
        return "block"
    return "drift report" if changed else "pass"
