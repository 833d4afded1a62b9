"""Causes on the first screen: each in a few words, the leading one first, the unlikely ones only counted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....schemas.findings import execution as kinds
from ..findings.experiments import decision, together
from ..findings.labels import LABELS, label
from ..findings.tokens import variable
from ..format import listed, number, plain, plural, shortened_pair
from ..sampled_choice import sampled_choice
from .screen import Decided, Row

if TYPE_CHECKING:
    from ....schemas.findings.evidence import Evidence
    from ....schemas.findings.statement import Statement
    from ....schemas.verdict import Cause, FirstToken, Verdict

NEAR_TIE = "near-tie"
"""Id of the cause that lets a small margin be called a near tie."""
_VALUED = frozenset(
    {
        *("sampling-contract", "model-config", "dtype", "batch-shape", "padding", "prefill-decode"),
        *("cache-boundary", "prefill-chunk", "attention-backend", "threads", "parallel-topology"),
        *("graph-path", "kernel"),
    }
)
"""Causes that are one thing with a value in A and another in B."""
_LIKELY = {"high": "likely", "medium": "possible", "low": "unlikely"}
_VALUE = 32
"""Characters of a value."""
_TENSORS = 2
"""Tensors that are named."""


def by_experiment(verdict: Verdict) -> list[tuple[int, Cause]]:
    """Causes with their numbers: those that an experiment proved first, those that it refuted last."""
    order = {"confirmed": 0, "refuted": 2}
    numbered = list(enumerate(verdict.causes, start=1))
    return sorted(numbered, key=lambda item: order.get(decided(item[1]), 1))


def decided(cause: Cause) -> Decided:
    """What an experiment decided of a cause."""
    return "open" if cause.confirmation is None else cause.confirmation.state


def judgement(cause: Cause) -> str:
    """`likely, not proven`; `proven by experiment`."""
    if cause.confirmation is not None:
        return decision(cause.confirmation)
    return f"{_LIKELY[cause.confidence]}, not proven"


def name(cause: Cause) -> str:
    """A cause in a few words: what it is with both values, else what it is called."""
    if cause.id == "weights":
        changed = next((one for one in cause.evidence if isinstance(one, kinds.TensorsChanged)), None)
        if changed is not None:
            return plain(f"{LABELS['weights']}: {listed(changed.names, _TENSORS, changed.count)}")
    if cause.id in _VALUED:
        for one in cause.evidence:
            text = _NAMES.get(type(one))
            if text is not None:
                return plain(text(one))
    return plain(label(cause))


def own_evidence(causes: Sequence[Cause], index: int) -> list[Evidence]:
    """The evidence of a cause; of an unlikely one only what no cause before it has."""
    cause = causes[index]
    if not is_unlikely(cause):
        return list(cause.evidence)
    seen = [one for earlier in causes[:index] for one in earlier.evidence]
    return [one for one in cause.evidence if one not in seen]


def is_unlikely(cause: Cause) -> bool:
    """Little speaks for it, and nobody tested it."""
    return cause.confidence == "low" and cause.confirmation is None


def cause_rows(verdict: Verdict, more: str) -> list[Row]:
    """A row for each cause but the unlikely ones, which share a row, and what only flips a token.

    Args:
        more: Where all of them stand.
    """
    if not verdict.causes:
        return []
    (first, leading), *behind = by_experiment(verdict)
    number_of = "" if first == 1 else f"{first}. "
    rows = [Row("cause", number_of + name(leading), judgement(leading), decided=decided(leading))]
    others = [(at, one) for at, one in behind if not (one.id == NEAR_TIE and flips(verdict))]
    unlikely = [at for at, one in others if is_unlikely(one)]
    for at, one in others:
        if at not in unlikely:
            also = "" if len(rows) > 1 else "also"
            rows.append(Row(also, f"{at}. {name(one)}", judgement(one), decided=decided(one)))
    if unlikely:
        also = "" if len(rows) > 1 else "also"
        rows.append(Row(also, plural(len(unlikely), "unlikely cause"), more))
    if verdict.together is not None:
        state = verdict.together.state
        names = {(one.of, one.name) for one in verdict.together.undoes}
        tested = [one.confirmation.undoes for one in verdict.causes if one.confirmation is not None]
        many = sum(bool(undoes) and {(one.of, one.name) for one in undoes} <= names for undoes in tested)
        which = f"all {many}" if many else "all"
        rows.append(Row("", f"{which} undone together: {together(verdict.together)}", decided=state))
    return rows


def causes_listed(verdict: Verdict) -> int:
    """Causes that have a row of their own, but for those that an experiment refuted."""
    return sum(
        not is_unlikely(one) and decided(one) != "refuted" and not (one.id == NEAR_TIE and flips(verdict))
        for one in verdict.causes
    )


def is_proven(verdict: Verdict) -> bool:
    """An experiment proved a cause."""
    return any(decided(one) == "confirmed" for one in verdict.causes)


def flips(verdict: Verdict) -> str:
    """What flipped the first divergent token, in numbers; empty: it was no choice, or is not recorded."""
    first = verdict.first_token
    if first is None or first.step is None or first.token_a is None or first.token_b is None:
        return ""
    if first.sampled:
        return sampled_choice(first.sampled, (first.draw_a, first.draw_b), first.max_abs_prob_diff)
    gap = _gap(first)
    if first.margin_a is None or gap is None:
        return ""
    sizes = f"margin {number(first.margin_a)} against drift {number(gap)}"
    return f"{_flip(verdict, first.margin_a, gap)}: {sizes}"


def _flip(verdict: Verdict, margin: float, gap: float) -> str:
    """What margin and drift say of a greedy choice."""
    if any(cause.id == NEAR_TIE for cause in verdict.causes):
        return "near tie"
    if not math.isfinite(gap):
        return "a number is not finite"
    if margin > 2 * gap:  # both candidates may move, in opposite directions
        return "no near tie"
    return "drift far above the margin" if gap > 2 * margin else "drift about as large as the margin"


def _gap(first: FirstToken) -> float | None:
    """The largest difference of the distributions that chose a token."""
    return first.max_abs_logprob_diff if first.max_abs_logit_diff is None else first.max_abs_logit_diff


def _change(what: str, before: object, after: object) -> str:
    left, right = shortened_pair(_value(before), _value(after), _VALUE)
    return f"{what}: {left} → {right}"


def _value(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def _setting(found: kinds.SettingDiffers) -> str:
    sides = (
        ("not stated" if found.stated_in == "B" else found.a),
        ("not stated" if found.stated_in == "A" else found.b),
    )
    return _change(found.name, *sides)


def _field(found: kinds.FieldChanged) -> str:
    path: Sequence[str] = found.path or (found.field,)
    return _change(".".join(path), found.before, found.after)


_NAMES: dict[type[Statement], Callable[[Any], str]] = {
    kinds.VariableChanged: variable,
    kinds.SettingDiffers: _setting,
    kinds.SamplingDiffers: lambda found: _change(found.name, found.a, found.b),
    kinds.ShapeDiffers: lambda found: _change(found.name, found.a, found.b),
    kinds.DtypeDiffers: lambda found: _change("dtype", found.a, found.b),
    kinds.ExecutionDiffers: lambda found: _change(found.of, found.a, found.b),
    kinds.FieldChanged: _field,
}
