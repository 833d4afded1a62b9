"""Sentences of what experiments on a cause gave."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ....schemas.findings.experiments import (
    BeyondRounding,
    By,
    Confirmation,
    LargestDrift,
    Limit,
    NotAsAsked,
    RepeatsCompared,
    Run,
    RunCompared,
    RunFailed,
)
from ....schemas.findings.statement import Location, Undone
from ..format import drift, listed, number, plural, request_name, shortened

_SHOWN = 40
"""Characters of a value."""
_NAMED = 4
"""Things undone that a sentence names."""
DECISIONS = {
    "confirmed": "proven by experiment",
    "refuted": "refuted by experiment",
    "not decided": "not decided by experiment",
}
"""What a decision is called beside a cause."""
_BY: dict[By, str] = {
    "rows": "to the bit",
    "logits": "to the bit",
    "logprobs": "in every log-probability",
    "tokens": "in its tokens",
    "texts": "in its texts",
}
_COUNTED: dict[By, str] = {
    "rows": "row",
    "logits": "distribution",
    "logprobs": "distribution",
    "tokens": "token",
    "texts": "text",
}
_RUNS: dict[Run, str] = {
    "unchanged": "B as it was, run again",
    "changed": "B with {undone}",
    "all undone": "B with {undone}",
    "the others undone": "B with only this cause left, so with {undone}",
    "repeated": "B as it was, run several times",
}
_LIMITS = {
    "not repeated": (
        "B's run cannot be had again here (noise, or another environment), so a changed run proves nothing"
    ),
    "tokens only": "only tokens or texts were compared, and these can be equal by chance",
    "fewer rows": "fewer rows were compared than between A and B",
    "nothing was changed": "nothing was changed in B, so this shows only whether its lane always does so",
    "neither A nor B": "it changes something, but a difference stays at this place: another cause matters",
    "not compared": "the run and the trace hold nothing in common that decides it",
}


def undone(one: Undone) -> str:
    """`batch_size 8 → 1`."""
    if one.of == "model":
        return f"A's {'model files' if one.name == 'model' else one.name} ({_value(one.value)})"
    if one.of == "requests":
        return f"A's requests ({_value(one.value)})"
    before, now = _value(one.was), _value(one.value)
    return f"{one.name} {now}" if before == now else f"{one.name} {before} → {now}"


def all_undone(undoes: Sequence[Undone]) -> str:
    """Several of them."""
    return listed([undone(one) for one in undoes], _NAMED) or "nothing changed"


def _value(value: object) -> str:
    if value is None:
        return "not set"
    return shortened(value if isinstance(value, str) else json.dumps(value), _SHOWN)


def _place(where: Location) -> str:
    parts = [where.site or "", "" if where.position is None else f"position {where.position}"]
    at = ", ".join(part for part in parts if part)
    name = "" if where.request_id is None else f" of {request_name(where.request_id, where.sample)}"
    return f"{at}{name}"


def run_compared(found: RunCompared) -> str:
    run = _RUNS[found.run].format(undone=all_undone(found.undoes))
    if found.equal:
        return f"{run}: equals {found.against} {_BY[found.by]} ({plural(found.compared, _COUNTED[found.by])})"
    rest = "" if found.where is None else f", first at {_place(found.where)}"
    if found.gone_at is not None:
        remains = "" if found.where is None else f"; what remains begins at {_place(found.where)}"
        return f"{run}: the difference from {found.against} at {_place(found.gone_at)} is gone{remains}"
    return f"{run}: differs from {found.against}{rest}"


def repeats_compared(found: RepeatsCompared) -> str:
    what = f"{plural(found.repeats, 'repeat')} of {plural(found.requests, 'request')}"
    if found.differing:
        return f"{what}: {found.differing} of them with repeats that differ from each other"
    return f"{what}: all equal each other"


def not_as_asked(found: NotAsAsked) -> str:
    if found.undone.of in ("model", "requests"):
        return f"asked for {undone(found.undone)}, but they are not what A ran"
    return f"asked for {found.undone.name} {_value(found.undone.value)}, ran with {_value(found.found)}"


def largest_drift(found: LargestDrift) -> str:
    return (
        f"with A's tokens forced, the largest logit difference is {number(found.largest)}, and "
        f"{number(found.there)} where the tokens part"
    )


def beyond_rounding(found: BeyondRounding) -> str:
    return (
        f"it proves that this matters, not that it is rounding: a drift of {drift(found.drift)} is more than "
        "rounding explains, so what is computed so may be wrong"
    )


def run_failed(found: RunFailed) -> str:
    run = {"unchanged": "B as it was could not be run", "repeated": "the repeats could not be run"}
    return f"{run.get(found.run, 'the experiment could not be run')}: {found.message}"


def limit(found: Limit) -> str:
    if found.what == "same experiment as an earlier cause":
        return f"the same experiment decides cause {found.names[0]}: it cannot tell the two apart"
    if found.what == "files changed together":
        names = ", ".join(found.names)
        return f"A's model folder brings more than one change ({names}), so none is proven alone"
    return _LIMITS[found.what]


def together(found: Confirmation) -> str:
    """What undoing all causes at once gave: `equals A to the bit`."""
    run = next(
        (one for one in found.evidence if isinstance(one, RunCompared) and one.run == "all undone"), None
    )
    if run is None or run.against != "A":
        return decision(found)
    if run.equal:
        return f"equals A {_BY[run.by]}"
    return "still differs from A"


def decision(found: Confirmation) -> str:
    """`proven by experiment`."""
    return DECISIONS[found.state]
