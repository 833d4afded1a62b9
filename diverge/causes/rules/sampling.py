"""Causes behind the choice of a token: the sampling contract, draws, order and filters of candidates, logits
processors, near ties.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ....schemas.findings.evidence import Conclusion, Evidence
from ....schemas.findings.execution import ExecutionDiffers
from ....schemas.findings.statement import SIDES
from ....schemas.findings.tokens import (
    CandidateOrder,
    CandidatesFiltered,
    DrawStream,
    LogprobDrift,
    Margins,
    ProcessedLogits,
    SameLogits,
)
from ....schemas.findings.unseen import Missing, NoEvidence
from ..evidence import Basis
from ..observe.draws import Choices, Step, processed_alike, scale_of, shifted_by
from ..observe.routing import is_choice
from ..settings import NEUTRAL, OF_DRAWS, OF_LOGITS
from .describe_module import beyond_rounding
from .finding import Finding

_SHOWN = 40
"""Characters of a value that is named with its field."""
_STARTS = 6
"""Sequences whose first draw the evidence names."""


def contract(basis: Basis) -> Finding | None:
    """A sampling field differs."""
    differences = basis.sampling_differences
    if basis.greedy:
        differences = [one for one in differences if one.name not in OF_DRAWS]
    if not differences or not (basis.parts_in_the_answer or basis.prompts_differ):
        return None
    confirm = basis.commands.sampling_as_a([one.name for one in differences])
    if basis.logits_equal:
        processed = _processed(basis) if _explains_processing(basis) else None
        follows = [SameLogits()] if processed is None else [SameLogits(), processed]
        return Finding([*differences, *follows], "high", confirm=confirm, direct=True)
    missing: list[Missing] = [] if basis.logits_equal is not None else [NoEvidence(kind="logits hash")]
    return Finding([*differences], "medium", missing, confirm)


def no_seed(basis: Basis) -> Finding | None:
    """The answers differ, and no engine accepts the draws to choose them with."""
    if not basis.without_seed or basis.greedy or not basis.parts_in_the_answer:
        return None
    return Finding([*basis.without_seed], "high", confirm=basis.commands.replay(repeat=8), direct=True)


def near_tie(basis: Basis) -> Finding | None:
    """The drift is at least as large as the margin."""
    token, pattern = basis.first_token, basis.observed.pattern
    if token is None or token.step is None or basis.ended is not None or basis.logits_equal:
        return None
    if beyond_rounding(pattern) or (pattern is not None and is_choice(pattern.site)):
        return None  # a drift that is no rounding swaps tokens that are no tie
    margins = [margin for margin in (token.margin_a, token.margin_b) if margin is not None]
    by_logits = token.max_abs_logit_diff is not None
    drift = token.max_abs_logit_diff if by_logits else token.max_abs_logprob_diff
    if len(margins) < 2 or not drift or min(margins) > drift:
        return None
    evidence: list[Evidence] = [
        Margins(
            a=token.margin_a,
            b=token.margin_b,
            drift=drift,
            of="logits" if by_logits else "logprobs",
            enough=True,
        )
    ]
    if not basis.greedy:
        evidence.append(Conclusion(what="sampled tokens"))
    return Finding(
        evidence,
        "high" if basis.greedy and max(margins) <= drift else "medium",
        confirm=basis.commands.in_mode("golden-decode"),
        of_choice=True,
    )


def seed_scope(basis: Basis) -> Finding | None:
    """The stream of draws is shared by the sequences on one side, and not on the other."""
    starts = basis.observed.starts
    if not _draws_differ(basis) or len(starts) < 2:
        return None
    shared = [_is_shared([start[side] for start in starts]) for side in (0, 1)]
    if shared[0] == shared[1] or None in shared:
        return None
    side = 0 if shared[0] else 1
    stream = DrawStream(
        relation="shared by sequences",
        side=SIDES[side],
        starts=[start[side] for start in starts[:_STARTS]],
    )
    return _of_sampler(basis, _same_logits(basis), stream)


def rng(basis: Basis) -> Finding | None:
    """Equal logits, a different random number."""
    if not _draws_differ(basis) or seed_scope(basis) is not None or basis.observed.choices is None:
        return None
    a, b = basis.observed.choices
    streams = []
    ahead = shifted_by(a, b)
    if ahead is not None:
        streams.append(DrawStream(relation="shifted", ahead=ahead))
    elif min(len(a.steps), len(b.steps)) > 2:
        streams.append(DrawStream(relation="other stream"))
    if a.first_offset != b.first_offset:
        streams.append(DrawStream(relation="different start", start_a=a.first_offset, start_b=b.first_offset))
    return _of_sampler(basis, _same_logits(basis), *streams)


def _of_sampler(basis: Basis, *evidence: Evidence, missing: Sequence[Missing] = ()) -> Finding:
    """Equal logits, and something behind them that repeats show."""
    return Finding([*evidence], "high", [*missing], basis.commands.replay(repeat=3), direct=True)


def logits_processing(basis: Basis) -> Finding | None:
    """Equal raw logits, different ones behind the logits processors, and no sampling field says why."""
    processed = _processed(basis)
    if processed is None or _explains_processing(basis):
        return None
    return _of_sampler(basis, processed)


def _explains_processing(basis: Basis) -> bool:
    """A sampling field that processes logits differs."""
    return any(one.name in (*OF_LOGITS, "temperature") for one in basis.sampling_differences)


def _processed(basis: Basis) -> ProcessedLogits | None:
    """What the logits processors made of equal raw logits; None: the same, or not known."""
    steps, choices = _deciding(basis), basis.observed.choices
    if steps is None or choices is None or processed_alike(*steps):
        return None
    a, b = steps
    assert a.top1_id is not None
    assert b.top1_id is not None
    processed = ProcessedLogits(
        token_a=a.top1_id, logit_a=a.top1_logit or 0.0, token_b=b.top1_id, logit_b=b.top1_logit or 0.0
    )
    scales = [scale_of(side) for side in choices]
    changing = [index for index, step in enumerate(steps) if not _is_raw(step)]
    if None not in scales:
        processed = processed.model_copy(update={"temperature_a": scales[0], "temperature_b": scales[1]})
    elif len(changing) == 1:
        side = changing[0]
        processed = processed.model_copy(
            update={
                "changed_by": SIDES[side],
                "raw": _raw_logit(steps[side]),
                "not_applied": _not_applied(basis),
            }
        )
    return processed


def _raw_logit(step: Step) -> float | None:
    """That of the token which is likeliest behind the processors."""
    raw = [float(x) for token, x in zip(step.ids, step.logits, strict=True) if token == step.top1_id]
    return raw[0] if raw else None


def _not_applied(basis: Basis) -> str | None:
    """The one field that changes logits, where both requests state the same one."""
    stated = [_stated_processors(basis, index) for index in (0, 1)]
    return stated[0][0] if stated[0] == stated[1] and len(stated[0]) == 1 else None


def _stated_processors(basis: Basis, side: int) -> list[str]:
    """The fields of a side that change logits, those with short values as `name=value`."""
    found = []
    for name in OF_LOGITS:
        setting = basis.sampling[side].get(name)
        value = None if setting is None else setting.resolved
        if value and value != NEUTRAL.get(name):
            text = json.dumps(value)
            found.append(f"{name}={text}" if len(text) <= _SHOWN else name)
    return found


def candidate_order(basis: Basis) -> Finding | None:
    """Equal logits and an equal draw: one side orders the candidates by probability, the other by id."""
    choices = basis.observed.choices
    if choices is None or not _draws_equal(basis) or _processed(basis) is not None:
        return None
    by_id, by_probability = _rules(basis, choices)
    sides = [probable and not plain for plain, probable in zip(by_id, by_probability, strict=True)]
    if sides[0] == sides[1]:
        return None
    side = 0 if sides[0] else 1
    order = CandidateOrder(
        side=SIDES[side],
        tested=choices[side].by_probability(basis.temperature(side)).tested,
        other_by_id=by_id[1 - side],
    )
    return _of_sampler(basis, _same_logits(basis), order)


def sampling_filter(basis: Basis) -> Finding | None:
    """Equal logits and an equal draw: one side left candidates out."""
    choices = basis.observed.choices
    if choices is None or not _draws_equal(basis) or _processed(basis) is not None:
        return None
    if candidate_order(basis) is not None:
        return None
    by_id, _ = _rules(basis, choices)
    filtered = [
        CandidatesFiltered(side=side, filters=filters)
        for index, side in enumerate(SIDES)
        if not by_id[index] and (filters := choices[index].filters(basis.temperature(index)))
    ]
    return _of_sampler(basis, _same_logits(basis), *filtered) if filtered else None


def sampler(basis: Basis) -> Finding | None:
    """Equal logits, a different token, and nothing recorded says more."""
    token = basis.first_token
    if token is None or token.step is None or basis.ended is not None or not basis.logits_equal:
        return None
    more_exact = (seed_scope, rng, candidate_order, sampling_filter)
    if (
        basis.prompts_differ
        or _processed(basis) is not None
        or any(rule(basis) is not None for rule in more_exact)
    ):
        return None
    evidence: list[Evidence] = [SameLogits(step=token.step, token_a=token.token_a, token_b=token.token_b)]
    if token.margin_a == 0 and basis.greedy:
        evidence.append(Conclusion(what="equal logits of two candidates"))
    missing: list[Missing] = [NoEvidence(kind="draws")] if basis.observed.choices is None else []
    return _of_sampler(basis, *evidence, missing=missing)


def own_draws(basis: Basis) -> Finding | None:
    """Two engines drew the token, each with random numbers of its own."""
    token, (a, b) = basis.first_token, (lane.engine for lane in basis.lanes)
    if token is None or token.step is None or basis.ended is not None or basis.prompts_differ or a == b:
        return None
    if not all(basis.is_drawn(side) for side in (0, 1)):
        return None
    evidence: list[Evidence] = [
        ExecutionDiffers(of="engine", a=a, b=b),
        Conclusion(what="separate random numbers"),
    ]
    margins, moved = (token.margin_a, token.margin_b), token.max_abs_logprob_diff
    if moved is not None:
        evidence.append(LogprobDrift(largest=moved))
    near = moved is not None and all(margin is not None and margin > moved for margin in margins)
    evidence.append(Conclusion(what="comparison without draws"))
    return Finding(
        evidence,
        "high" if near else "medium",
        confirm=basis.commands.in_mode("golden-decode"),
        of_choice=True,
    )


def _deciding(basis: Basis) -> tuple[Step, Step] | None:
    """The steps that chose the first divergent token, where equal logits did."""
    token, known = basis.first_token, basis.observed.choices
    if token is None or token.step is None or basis.ended is not None or not basis.logits_equal:
        return None
    at = basis.observed.deciding
    return None if known is None or at is None else (known[0].steps[at], known[1].steps[at])


def _draws_differ(basis: Basis) -> bool:
    steps = _deciding(basis)
    return steps is not None and None not in (steps[0].draw, steps[1].draw) and steps[0].draw != steps[1].draw


def _draws_equal(basis: Basis) -> bool:
    steps = _deciding(basis)
    return steps is not None and steps[0].draw is not None and steps[0].draw == steps[1].draw


def _same_logits(basis: Basis) -> SameLogits:
    """The step of the first divergent token, with its draws."""
    steps, token = _deciding(basis), basis.first_token
    assert steps is not None
    return SameLogits(
        step=None if token is None else token.step,
        token_a=steps[0].token,
        token_b=steps[1].token,
        draw_a=steps[0].draw,
        draw_b=steps[1].draw,
    )


def _rules(basis: Basis, choices: tuple[Choices, Choices]) -> tuple[list[bool], list[bool]]:
    """Per side, whether the order of ids and that of probabilities gives every token."""
    return (
        [side.by_ids(basis.temperature(index)).holds for index, side in enumerate(choices)],
        [side.by_probability(basis.temperature(index)).holds for index, side in enumerate(choices)],
    )


def _is_raw(step: Step) -> bool:
    return bool(len(step.ids)) and step.top1_id == step.ids[0] and step.top1_logit == float(step.logits[0])


def _is_shared(starts: list[int | None]) -> bool | None:
    """The sequences go on in one stream of draws; None: the trace does not say."""
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        return None
    return len(set(known)) == len(known) and min(known) == 0
