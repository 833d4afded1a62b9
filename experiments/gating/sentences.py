"""What the gate, a bundle and its check say, in sentences: the one place of them."""

from __future__ import annotations

from ...fingerprint.present.drift_sentences import before_and_after
from ...schemas.bundle import Bundle
from ...schemas.gate import Changed, Gate, Held, Refusal
from .bundle_folder import Fault

DECISIONS = {
    "pass": "Pass",
    "drift report": "Pass with a drift report",
    "block": "Block",
    "refused": "Refused",
}
_EFFECTS = {
    "block": "blocks: it must match",
    "drift report": "within tolerance",
    "recorded": "recorded, no earlier guarantee is inherited",
}
_SHOWN = 6
"""Names in one sentence; the document has all."""


def headline(gate: Gate) -> str:
    """The decision in one sentence, with what to do."""
    if gate.decision == "pass":
        return "Pass: nothing has changed, and every required claim holds."
    if gate.decision == "drift report":
        changed = _count(len(gate.changed), "variable")
        return f"Pass with a drift report: {changed} changed, every required claim holds."
    if gate.decision == "block":
        failing = sum(claim.state != "holds" for claim in gate.claims)
        blocking = sum(one.effect == "block" for one in gate.changed)
        why = [f"{_count(failing, 'required claim')} failed"] if failing else []
        why += [f"{_count(blocking, 'change')} not allowed"] if blocking else []
        return f"Block: {', '.join(why)}. Go back to {gate.rollback}."
    return f"Refused: the evidence does not support a decision. Stay on {gate.rollback}."


def claim(held: Held) -> str:
    """One required claim."""
    return f"claim {held.id}: {held.state}"


def change(one: Changed) -> str:
    """What a variable was and is."""
    before, after = before_and_after(one.change)
    return f"lane {one.lane}: {one.change.name}: {before} → {after}"


def effect(one: Changed) -> str:
    """What a change leads to, and by which rule."""
    by = "the default" if one.rule is None else f"the rule {one.rule}"
    return f"{_EFFECTS[one.effect]} ({by})"


def refusal(why: Refusal) -> str:
    """Why evidence is none, and what to do about it."""
    lane, names = f"lane {why.lane}", _listed(why.variables)
    cells = f" (cells {_listed(why.cells)})" if why.cells else ""
    who = "the baseline" if why.lane is None else lane
    return {
        "invalid plan": "the plan is invalid: its negative control holds, or it has none",
        "nothing required": "no claim is required, so nothing could fail",
        "no such claim": f"the plan has no claim {why.claim}",
        "claim not covered": f"claim {why.claim} is not covered: see rip matrix show",
        "invalid cell": f"claim {why.claim} has invalid cells{cells}: see rip matrix show",
        "nothing compared": f"claim {why.claim} compared no outputs{cells}",
        "lane not covered": f"no required claim has a cell of {lane}",
        "not compared with the baseline": f"{lane}: no cell of the claims compares the baseline with it, "
        f"so nothing covers {names}: vary lane in the plan",
        "claimed hashes": f"{who}: the hashes of the weights are claimed, not computed{cells}: "
        "fingerprint with --strength verified",
        "no fingerprint": f"{who}: runs without a fingerprint{cells}",
        "stale cell": f"{lane}: launches in different environments{cells}: run into a new folder",
        "several environments": f"{lane}: its runs have several environments, which differ in {names}: "
        "vary repeat or restart on it, or run the plan into a new folder",
        "different environment": f"{lane}: not the environment to serve in: {names}",
        "too old": f"the oldest run is {why.days} days old",
    }[why.kind]


def rollback(gate: Gate) -> str:
    """What to go back to."""
    return f"rollback target: {gate.rollback}"


def not_inherited(gate: Gate) -> str:
    """What of the earlier guarantees ends."""
    return f"no earlier guarantee covers: {_listed(gate.not_inherited)}"


def packed(bundle: Bundle, out: str) -> list[str]:
    """What was packed, and what is absent."""
    said = [f"Wrote {out}: {_count(len(bundle.files), 'file')}. Sign {out}/statement.json"]
    said += [f"absent: {name}" for name in bundle.absent]
    if not bundle.traces:
        said.append("absent: the traces (--no-traces): outputs cannot be looked at or scored again")
    return said


def fault(found: Fault) -> str:
    """What is wrong with a file of a bundle."""
    return f"{found.path}: {found.kind}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
