"""`rip gate`: does a policy let this evidence pass?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..schemas.errors import BadInput
from ..schemas.gate import Changed, Gate, Held, Policy, Refusal, load_policy

if TYPE_CHECKING:
    from ..schemas.fingerprint import Fingerprint
    from .gating.environments import Environments
    from .matrix import OpenedPlan

_OF_LANE = "lane:"


@dataclass(frozen=True)
class GateRequest:
    """What `rip gate` is to judge.

    Attributes:
        evidence: The folder of a plan, or a bundle.
        policy: None: that of the bundle.
        environment: A fingerprint of where the candidate will serve, or a trace from there: the evidence
            must be of that.
    """

    evidence: Path
    policy: Path | None = None
    environment: Path | None = None


def decide_gate(request: GateRequest, now: datetime | None = None) -> Gate:
    """Judge evidence by a policy.

    Args:
        now: When the evidence is judged. [default: the clock]

    Raises:
        BadInput: A file that cannot be used, a damaged bundle, or a lane that the plan does not have.
    """
    from .acceptance.inputs import digest_of
    from .acceptance.store import LEDGER
    from .gating.bundle_folder import POLICY, check_bundle, is_bundle
    from .gating.decide import conclude
    from .matrix import show_matrix

    folder = request.evidence
    if is_bundle(folder):
        check_bundle(folder)
    elif request.policy is None:
        raise BadInput(f"{folder} is no bundle, so it has no policy", "name one with --policy policy.toml")
    path = request.policy or folder / POLICY
    policy = load_policy(path)
    opened = show_matrix(folder)
    now = now or datetime.now(UTC)
    held, changed, refusals = _judge(policy, path.parent, request.environment, opened, now)
    ledger = folder / LEDGER
    return Gate(
        tool_version=__version__,
        created=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        decision=conclude(held, changed, refusals),
        policy=digest_of(path),
        evidence=digest_of(ledger) if ledger.is_file() else "",
        rollback=policy.rollback,
        claims=held,
        changed=changed,
        refusals=refusals,
    )


def candidate_environments(bundle: Path) -> dict[str, Fingerprint]:
    """The environment of every candidate of a bundle, by its lane."""
    from .gating.bundle_folder import POLICY
    from .gating.environments import Environments
    from .matrix import show_matrix

    opened = show_matrix(bundle)
    environments = Environments(opened.store)
    lanes = _candidates(load_policy(bundle / POLICY), list(opened.plan.lanes))
    found = {lane: _environment(lane, environments)[0] for lane in lanes}
    return {lane: one for lane, one in found.items() if one is not None}


def _judge(
    policy: Policy, folder: Path, environment: Path | None, opened: OpenedPlan, now: datetime
) -> tuple[list[Held], list[Changed], list[Refusal]]:
    from .gating.decide import cells_of, check_age, check_claims, check_lane, check_runs, claims_needed
    from .gating.environments import Environments

    verdict, cells = opened.verdict, opened.store.cells
    environments = Environments(opened.store)
    lanes = list(opened.plan.lanes)
    base = _Baseline(policy, folder, environments, lanes)
    refusals = [*base.refusals]
    changed: list[Changed] = []
    candidates = _candidates(policy, lanes)
    for lane in candidates:
        found, why = base.changes(lane)
        changed += found
        refusals += why
    needed = claims_needed(policy, verdict, changed)
    deciding = cells_of(verdict, cells, needed)
    refusals += check_claims(policy, needed, verdict, cells)
    refusals += check_runs(deciding, environments)
    for lane in candidates:
        refusals += check_lane(lane, deciding)
        refusals += base.check_tolerated(lane, [one for one in changed if one.lane == lane], opened)
        if environment is not None:
            refusals += _elsewhere(lane, environment, environments)
    keys = (key for cell in deciding for key in (*cell.runs_a, *cell.runs_b))
    refusals += check_age(policy, environments.runs(keys), now)
    states = {claim.id: claim.state for claim in verdict.claims if not claim.control}
    held = [Held(id=name, state=states.get(name, "not covered")) for name in needed]
    return held, changed, list({one.model_dump_json(): one for one in refusals}.values())


class _Baseline:
    """What serves now, against the lanes of the plan."""

    def __init__(self, policy: Policy, folder: Path, environments: Environments, lanes: list[str]) -> None:
        from .gating.environments import list_changes, read_environment

        self._policy, self._environments = policy, environments
        self.refusals: list[Refusal] = []
        file = baseline_file(policy, folder)
        if file is None:
            name = _lane(policy.baseline, lanes)
            self._fingerprint, self.refusals = _environment(name, environments)
            self._roots = set(environments.of_lane(name))
        else:
            known = read_environment(file)
            self._fingerprint = known
            self.refusals = [Refusal(kind="claimed hashes")] if known.is_claimed else []
            ran = environments.of_keys(environments.configurations())
            self._roots = {root for root, one in ran.items() if not list_changes(known, one)}

    def changes(self, lane: str) -> tuple[list[Changed], list[Refusal]]:
        """What has changed on a lane, and what that leads to."""
        from .gating.decide import judge_changes
        from .gating.environments import list_changes

        candidate, refusals = _environment(lane, self._environments)
        if candidate is None or self._fingerprint is None:
            return [], refusals
        return judge_changes(self._policy, lane, list_changes(self._fingerprint, candidate)), refusals

    def check_tolerated(self, lane: str, changed: list[Changed], opened: OpenedPlan) -> list[Refusal]:
        """Refuse tolerated changes that no cell compares."""
        from .gating.decide import check_tolerated, pairs

        cells = opened.store.cells
        candidate = self._environments.of_lane(lane)
        is_pair = pairs(cells.values(), self._environments, self._roots, candidate)
        return check_tolerated(self._policy, opened.verdict, cells, changed, is_pair)


def baseline_file(policy: Policy, folder: Path) -> Path | None:
    """The fingerprint that a policy names, if it names one; `folder` is that of the policy."""
    from .gating.bundle_folder import BASELINE, is_bundle

    if policy.baseline.startswith(_OF_LANE):
        return None
    return folder / (BASELINE if is_bundle(folder) else policy.baseline)


def _environment(lane: str, environments: Environments) -> tuple[Fingerprint | None, list[Refusal]]:
    """The one environment of a lane."""
    from .gating.environments import list_changes

    ran = list(environments.of_lane(lane).values())
    if not ran:
        return None, [Refusal(kind="no fingerprint", lane=lane)]
    if names := {change.name for other in ran[1:] for change in list_changes(ran[0], other)}:
        return None, [Refusal(kind="several environments", lane=lane, variables=sorted(names))]
    found = ran[0]
    return found, [Refusal(kind="claimed hashes", lane=lane)] if found.is_claimed else []


def _candidates(policy: Policy, lanes: list[str]) -> list[str]:
    if policy.candidate is not None:
        return [_lane(policy.candidate, lanes)]
    found = [lane for lane in lanes if f"{_OF_LANE}{lane}" != policy.baseline]
    if not found:
        raise BadInput(
            "the plan has no lane but the baseline, so there is no candidate",
            "give the plan a second lane, or name a fingerprint as the baseline",
        )
    return found


def _lane(stated: str, lanes: list[str]) -> str:
    name = stated.removeprefix(_OF_LANE)
    if name not in lanes:
        raise BadInput(
            f"the policy names {stated!r}, which the plan does not have",
            "write lane:NAME; the plan has " + ", ".join(f"lane:{lane}" for lane in lanes),
        )
    return name


def _elsewhere(lane: str, environment: Path, environments: Environments) -> list[Refusal]:
    """Refuse evidence of an environment other than that in which the candidate will serve."""
    from .gating.environments import list_changes, read_environment

    candidate, _ = _environment(lane, environments)
    if candidate is None:
        return []
    names = [change.name for change in list_changes(read_environment(environment), candidate)]
    return [Refusal(kind="different environment", lane=lane, variables=names)] if names else []
