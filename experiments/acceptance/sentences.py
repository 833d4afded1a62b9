"""What a plan and its verdict say, in sentences: the one place of them."""

from __future__ import annotations

from ...schemas.matrix import Cell, CellVerdict, ClaimVerdict, Invalid, MatrixVerdict
from ...schemas.plan import Value
from .cells import PlannedCell

MARKS = {"holds": "✓", "fails": "✗", "not covered": "–", "invalid": "!"}


def change(dimension: str, value_a: Value | None, value_b: Value | None) -> str:
    """`batch_size: 1 → 8`; for runs of one side `restart: 3 launches`."""
    if value_a is None:
        times = "times" if dimension == "repeat" else "launches"
        return f"{dimension}: {value_b} {times}"
    return f"{dimension}: {_shown(value_a)} → {_shown(value_b)}"


def _shown(value: Value | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "not set" if value in ("", None) else str(value)


def cell_line(cell: PlannedCell) -> tuple[str, str, str]:
    """Id, lane and what is varied, of a cell of a plan."""
    return cell.id, cell.lane, change(cell.dimension, cell.value_a, cell.value_b)


def invalid(why: Invalid) -> str:
    """Why a cell says nothing."""
    side = "" if why.side is None else f"side {why.side.upper()}: "
    if why.kind == "run failed":
        return f"{side}a run failed: {why.message}"
    if why.kind == "not as planned":
        return f"{side}{why.name} is {why.found}, not {why.wanted}"
    if why.kind == "not exercised":
        return f"{side}{why.name}={why.wanted}, and no two requests ever shared a pass"
    return f"nothing could be compared: {why.message}"


def cell_result(verdict: CellVerdict, cell: Cell) -> str:
    """What a cell says of a claim, with where it first differs."""
    if verdict.state == "invalid":
        return "; ".join(invalid(one) for one in cell.why)
    if verdict.state == "noise":
        return f"side {(verdict.side or '').upper()} does not repeat itself: {cell.dimension} stays open"
    if verdict.state == "not comparable":
        return "not comparable: what the engine returned does not decide this level"
    compared = sum(one.sequences for one in cell.comparisons)
    if verdict.state == "holds":
        return f"equal in all {compared} compared outputs"
    differing = sum(one.sequences_diverging for one in cell.comparisons)
    tokens = f"{differing} of {compared} outputs differ" if differing else "equal outputs, different numbers"
    first = next(
        (one for one in cell.comparisons if one.bitwise == "differs" or one.token == "differs"), None
    )
    places = []
    if first is not None and first.first_token is not None:
        places.append(f"first token: {first.first_token.request_id} step {first.first_token.step}")
    if first is not None and first.first_site is not None:
        places.append(f"first layer: {first.first_site.site}")
    if first is not None and first.causes:
        places.append(f"cause: {first.causes[0]}")
    return "; ".join([tokens, *places])


def claim_line(claim: ClaimVerdict) -> str:
    """One line of a claim: its state, and how far the evidence reaches."""
    state = claim.state
    if claim.control:
        word = {"fails": "fails, as a control must", "holds": "holds: the plan sees no difference"}
        return word.get(state, state)
    if state == "holds" and claim.bound is not None:
        bound = claim.bound
        return f"holds: 0 of {bound.of} outputs differ (at most {bound.most:.1%} at 95 %)"
    if state == "not covered" and claim.not_covered:
        return f"not covered: {', '.join(claim.not_covered)}"
    return state


def summary_line(verdict: MatrixVerdict) -> str:
    """The verdict of a plan in one sentence."""
    claims = [claim for claim in verdict.claims if not claim.control]
    if not verdict.valid:
        what = "its negative control holds" if verdict.controls_planned else "it has no negative control"
        return f"The plan is invalid: {what}, so equal results prove nothing."
    counts = {state: sum(claim.state == state for claim in claims) for state in MARKS}
    said = ", ".join(f"{count} {_plural(state, count)}" for state, count in counts.items() if count)
    return f"{len(claims)} {'claim' if len(claims) == 1 else 'claims'}: {said}."


def _plural(state: str, count: int) -> str:
    if count == 1 or state in ("not covered", "invalid"):
        return state
    return {"holds": "hold", "fails": "fail"}[state]
