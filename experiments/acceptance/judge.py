"""Claims against finished cells: what each cell says of a claim, and what the plan as a whole says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Literal

from ... import __version__
from ...diverge.statistics import rate_without_failures
from ...schemas.claim import Claim
from ...schemas.matrix import (
    Bound,
    Cell,
    CellVerdict,
    ClaimState,
    ClaimVerdict,
    Comparison,
    MatrixVerdict,
    Numbers,
    Score,
    Scored,
)
from ...schemas.plan import Plan, PlanClaim, Tolerance
from .dimensions import DIMENSIONS

Outcome = Literal["equal", "differs", "not comparable"]
Scores = Mapping[tuple[str, int, str], Score]
"""(cell, index of the comparison, scorer with its parameters) → what it said."""


def judge(
    plan: Plan,
    planned: Mapping[str, tuple[str, str]],
    cells: Mapping[str, Cell],
    scores: Iterable[Scored],
    digests: tuple[str, str],
) -> MatrixVerdict:
    """The verdict of a plan as far as it was run.

    Args:
        planned: Id of each cell of the plan → its lane and dimension.
        cells: The finished ones.
        scores: What was scored of them.
        digests: SHA-256 of the plan and of its requests.
    """
    finished = [cells[name] for name in planned if name in cells]
    by_place = {(one.cell, one.comparison, one.scorer.model_dump_json()): one.score for one in scores}
    claims = [_judge_claim(claim, plan, planned, finished, by_place) for claim in plan.claims]
    controls = [claim for claim in claims if claim.control]
    failing = sum(claim.state == "fails" for claim in controls)
    varied = {dimension for _, dimension in planned.values()}
    return MatrixVerdict(
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        plan=digests[0],
        requests=digests[1],
        valid=bool(controls) and failing == len(controls),
        controls_planned=len(controls),
        controls=failing,
        claims=claims,
        cells=len(planned),
        cells_done=sum(cell.state == "done" for cell in finished),
        cells_invalid=sum(cell.state == "invalid" for cell in finished),
        not_covered=[name for name in DIMENSIONS if name not in varied],
    )


def _judge_claim(
    claim: PlanClaim,
    plan: Plan,
    planned: Mapping[str, tuple[str, str]],
    finished: Sequence[Cell],
    scores: Scores,
) -> ClaimVerdict:
    lanes = claim.lanes or list(plan.lanes)
    covered = [cell for cell in finished if cell.lane in lanes and cell.dimension in claim.varied]
    verdicts = [_judge_cell(claim, cell, scores) for cell in covered]
    missing = _missing(claim, lanes, planned, covered)
    return ClaimVerdict(
        id=claim.id,
        state=_state(verdicts, missing),
        control=claim.control,
        card=_card(claim, plan, lanes, covered),
        tolerance=claim.tolerance,
        scorers=claim.scorers,
        cells=verdicts,
        bound=_bound(covered, verdicts),
        not_covered=missing,
    )


def _missing(
    claim: PlanClaim, lanes: Sequence[str], planned: Mapping[str, tuple[str, str]], covered: Sequence[Cell]
) -> list[str]:
    """`lane/dimension` of the claim that no finished cell has, or of which a planned cell is not finished."""
    has = {(cell.lane, cell.dimension) for cell in covered}
    done = {cell.id for cell in covered}
    unfinished = {place for name, place in planned.items() if name not in done}
    wanted = list(product(lanes, claim.varied))
    if claim.lanes is None:  # it is about every lane that the plan varies in its dimensions
        varied = {dimension for _, dimension in planned.values()}
        wanted = [place for place in planned.values() if place[1] in claim.varied]
        wanted += [("*", name) for name in claim.varied if name not in varied]
    missing = [place for place in wanted if place not in has or place in unfinished]
    return [f"{lane}/{dimension}" for lane, dimension in dict.fromkeys(missing)]


def _state(verdicts: Sequence[CellVerdict], missing: Sequence[str]) -> ClaimState:
    states = {verdict.state for verdict in verdicts}
    if states & {"fails", "noise"}:
        return "fails"
    if "invalid" in states:
        return "invalid"
    if missing or not verdicts or "not comparable" in states:
        return "not covered"
    return "holds"


def _judge_cell(claim: PlanClaim, cell: Cell, scores: Scores) -> CellVerdict:
    """What a cell says of a claim. Each side's noise comes first: it is no difference between the sides."""
    if cell.state == "invalid":
        return CellVerdict(cell=cell.id, state="invalid")
    within: dict[str, list[Outcome]] = {"a-a": [], "b-b": [], "a-b": []}
    for index, comparison in enumerate(cell.comparisons):
        outcome = _outcome(claim, comparison)
        if claim.level == "semantic":
            found = [scores.get((cell.id, index, use.model_dump_json())) for use in claim.scorers]
            outcome = _semantic(found)
        within[comparison.pair].append(outcome)
    alone = not within["a-b"]
    for pair, side in (("a-a", "a"), ("b-b", "b")):
        if "differs" in within[pair]:
            if alone:
                return CellVerdict(cell=cell.id, state="fails", side="a")
            return CellVerdict(cell=cell.id, state="noise", side=side)  # type: ignore[arg-type]
    outcomes = [one for found in within.values() for one in found]
    if "differs" in outcomes:
        return CellVerdict(cell=cell.id, state="fails")
    if "not comparable" in outcomes or not outcomes:
        return CellVerdict(cell=cell.id, state="not comparable")
    return CellVerdict(cell=cell.id, state="holds")


def _outcome(claim: PlanClaim, comparison: Comparison) -> Outcome:
    if claim.level == "bitwise":
        return comparison.bitwise
    if claim.tolerance is None:
        return comparison.token
    if comparison.bitwise == "equal":
        return "equal"
    return within_tolerance(comparison.numbers, claim.tolerance)


def within_tolerance(numbers: Numbers, tolerance: Tolerance) -> Outcome:
    """Whether the numbers of two runs keep every bound that is stated; a number that is not there decides
    nothing, and NaN keeps no bound."""
    missing = False
    for found, most in (
        (numbers.max_abs, tolerance.max_abs),
        (numbers.max_rel, tolerance.max_rel),
        (numbers.max_kl, tolerance.max_kl),
    ):
        if most is None:
            continue
        missing |= found is None
        if found is not None and not found <= most:
            return "differs"
    if tolerance.same_ranks is not None:
        missing |= numbers.same_ranks is None
        if numbers.same_ranks is not None and numbers.same_ranks < tolerance.same_ranks:
            return "differs"
    return "not comparable" if missing else "equal"


def _semantic(scores: Sequence[Score | None]) -> Outcome:
    if any(score is not None and score.agree < score.of for score in scores):
        return "differs"
    return "equal" if all(score is not None and score.of for score in scores) else "not comparable"


def _bound(covered: Iterable[Cell], verdicts: Sequence[CellVerdict]) -> Bound | None:
    """What the outputs of B that were compared with A's, in cells that hold, bound the rate of difference to.

    In cells of one side: the outputs of its repeats.
    """
    holding = {verdict.cell for verdict in verdicts if verdict.state == "holds"}
    compared = sum(
        one.sequences
        for cell in covered
        if cell.id in holding
        for one in cell.comparisons
        if one.pair == "a-b" or not cell.runs_b
    )
    if not compared or len(holding) < len(verdicts):
        return None
    return Bound(failures=0, of=compared, most=rate_without_failures(compared))


def _card(claim: PlanClaim, plan: Plan, lanes: Sequence[str], covered: Sequence[Cell]) -> Claim:
    """The identity card: what is compared, what is varied and held, where, by which evidence."""
    compared = {
        "bitwise": ["tokens", "logits", "layer-hashes"],
        "numeric": ["logits", "topk"],
        "token": ["tokens"],
        "semantic": ["text"],
    }[claim.level]
    varied: dict[str, list[object]] = {}
    for cell in covered:
        values = varied.setdefault(cell.dimension, [])
        values += [
            value for value in (cell.value_a, cell.value_b) if value is not None and value not in values
        ]
    held = [name for name in DIMENSIONS if name not in claim.varied]
    return Claim(
        level=claim.level,
        compared=compared,
        equality="within tolerance" if claim.level == "numeric" else "exact",
        held={"dimensions": held, "requests": plan.requests, "mode": plan.mode},
        varied=dict(varied),
        environment={"lanes": list(lanes)},
        evidence="run",
    )
