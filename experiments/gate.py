"""`rip gate`: does a policy let this evidence pass?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..schemas.errors import BadInput
from ..schemas.gate import Gate, Held, Policy, Refusal, load_policy

if TYPE_CHECKING:
    from ..schemas.fingerprint import Fingerprint
    from ..schemas.matrix import Run
    from .acceptance.store import Store

_OF_LANE = "lane:"


@dataclass(frozen=True)
class GateRequest:
    """What `rip gate` is asked for.

    Attributes:
        evidence: The folder of a plan, or a bundle.
        environment: The fingerprint of where the candidate will serve: the evidence must be of that.
    """

    evidence: Path
    policy: Path
    environment: Path | None = None


def decide_gate(request: GateRequest, now: datetime | None = None) -> Gate:
    """Judge evidence by a policy.

    Args:
        now: For tests. [default: the clock]

    Raises:
        BadInput: A file that cannot be used, or a lane that the plan does not have.
    """
    from .acceptance.inputs import digest_of
    from .gating.decide import (
        check_age,
        check_environments,
        check_evidence,
        conclude,
        judge_changes,
        required,
    )
    from .matrix import VERDICT, show_matrix

    now = now or datetime.now(UTC)
    policy = load_policy(request.policy)
    opened = show_matrix(request.evidence)
    store, verdict = opened.store, opened.verdict
    assert store is not None
    assert verdict is not None
    states = {claim.id: claim.state for claim in verdict.claims if not claim.control}
    held = [Held(id=name, state=states.get(name, "not covered")) for name in required(policy, verdict)]
    refusals = check_evidence(policy, verdict, store.cells)
    refusals += check_age(policy, store.runs.values(), now)
    environments = {lane: runs_of_lane(store, lane) for lane in opened.plan.lanes}
    for lane, of_lane in environments.items():
        refusals += check_environments(lane, of_lane)
    baseline = _baseline(policy, request.policy.parent, environments)
    changed = []
    for lane in _candidates(policy, environments):
        candidate = _environment(environments[lane])
        if candidate is None or baseline is None:
            refusals.append(Refusal(kind="no fingerprint", lane=lane))
            continue
        changed += judge_changes(policy, lane, _changes(baseline, candidate), states)
        if request.environment is not None:
            refusals += _elsewhere(lane, request.environment, candidate)
    verdict_file = request.evidence / VERDICT
    return Gate(
        tool_version=__version__,
        created=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        decision=conclude(held, changed, refusals),
        policy=digest_of(request.policy),
        evidence=digest_of(verdict_file) if verdict_file.exists() else "",
        rollback=policy.rollback,
        claims=held,
        changed=changed,
        refusals=refusals,
        not_inherited=[one.change.name for one in changed if one.effect == "recorded"],
    )


def runs_of_lane(store: Store, lane: str) -> list[tuple[Run, Fingerprint | None]]:
    """The finished runs of a lane as the plan states it, with what their traces say of the environment."""
    from ..diverge.reading.load import read_header

    keys = {
        key
        for cell in store.cells.values()
        for side, keys in ((cell.lane, cell.runs_a), (_lane_b(cell), cell.runs_b))
        if side == lane
        for key in keys
    }
    runs = [run for run in store.runs.values() if run.key in keys and run.trace is not None]
    return [(run, read_header(store.trace(run)).fingerprint) for run in runs]


def _lane_b(cell: object) -> str:
    from ..schemas.matrix import Cell

    assert isinstance(cell, Cell)
    return str(cell.value_b) if cell.dimension == "lane" else cell.lane


Environments = Mapping[str, "list[tuple[Run, Fingerprint | None]]"]


def _environment(of_lane: list[tuple[Run, Fingerprint | None]]) -> Fingerprint | None:
    return next((fingerprint for _, fingerprint in of_lane if fingerprint is not None), None)


def _baseline(policy: Policy, folder: Path, environments: Environments) -> Fingerprint | None:
    from ..fingerprint.load import read_fingerprint

    if not policy.baseline.startswith(_OF_LANE):
        return read_fingerprint(folder / policy.baseline)
    return _environment(environments[_lane(policy.baseline, environments)])


def _candidates(policy: Policy, environments: Environments) -> list[str]:
    if policy.candidate is not None:
        return [_lane(policy.candidate, environments)]
    return [lane for lane in environments if f"{_OF_LANE}{lane}" != policy.baseline]


def _lane(text: str, environments: Environments) -> str:
    name = text.removeprefix(_OF_LANE)
    if name not in environments:
        raise BadInput(f"the policy names {text!r}", f"lanes of the plan: {', '.join(environments)}")
    return name


def _changes(base: Fingerprint, now: Fingerprint) -> list:  # type: ignore[type-arg]
    from ..fingerprint.drift import compare

    return list(compare(base, now).changes)


def _elsewhere(lane: str, environment: Path, candidate: Fingerprint) -> list[Refusal]:
    """Refuse evidence of an environment other than that in which the candidate will serve."""
    from ..fingerprint.load import read_fingerprint

    names = [change.name for change in _changes(read_fingerprint(environment), candidate)]
    return [Refusal(kind="different environment", lane=lane, variables=names)] if names else []
