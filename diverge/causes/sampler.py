"""Causes behind equal logits: the random draws, the order of candidates, filters, logits processors."""

from __future__ import annotations

import json

from .draws import Choices, Step, processed_alike, scale_of, shifted_by
from .evidence import Evidence
from .finding import Finding

_SHOWN = 40
"""Characters of a value that a label shows."""
_NEUTRAL: dict[str, object] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
"""Fields that change logits, and the value at which they do not; the others do not where they are empty."""
_PROCESSORS = (
    *_NEUTRAL,
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "structured_outputs",
    "logits_processors",
)


def seed_scope(e: Evidence) -> Finding | None:
    """The stream of draws is shared by the sequences on one side, and not on the other."""
    if not _draws_differ(e) or len(e.seen.starts) < 2:
        return None
    shared = [_is_shared([start[side] for start in e.seen.starts]) for side in (0, 1)]
    if shared[0] == shared[1] or None in shared:
        return None
    side = "A" if shared[0] else "B"
    starts = ", ".join(str(start["AB".index(side)]) for start in e.seen.starts[:6])
    evidence = [
        _draws_told(e),
        f"in {side} the sequences go on in one stream: before their first draws it had given {starts}; on "
        "the other side every sequence starts its own",
    ]
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True)


def rng(e: Evidence) -> Finding | None:
    """Equal logits, another random number."""
    if not _draws_differ(e) or seed_scope(e) is not None:
        return None
    assert e.seen.choices is not None
    a, b = e.seen.choices
    evidence, label = [_draws_told(e)], None
    ahead = shifted_by(a, b)
    if ahead is not None:
        side, count = ("B", ahead) if ahead > 0 else ("A", -ahead)
        numbers = "number" if count == 1 else "numbers"
        evidence.append(f"it is the same stream, and {side} is {count} {numbers} ahead in it")
        label = f"Equal logits, another draw: {side} is {count} {numbers} ahead in the same random stream"
    elif min(len(a.steps), len(b.steps)) > 2:
        evidence.append("no shift makes the two series of draws agree: it is another stream (another seed)")
        label = "Equal logits, another draw: another random stream, as of another seed"
    if a.first_offset != b.first_offset:
        evidence.append(
            f"draws taken before the sequence's first: {a.first_offset} in A, {b.first_offset} in B"
        )
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True, label=label)


def logits_processing(e: Evidence) -> Finding | None:
    """Equal raw logits, other ones behind the logits processors."""
    steps = _deciding(e)
    if steps is None or processed_alike(*steps):
        return None
    a, b = steps
    assert e.seen.choices is not None
    evidence = [
        f"the raw logits are bit-identical; behind the logits processors the likeliest is token {a.top1_id} "
        f"with {a.top1_logit:.5g} in A, token {b.top1_id} with {b.top1_logit:.5g} in B"
    ]
    label = None
    scales = [scale_of(side) for side in e.seen.choices]
    if None not in scales:
        evidence.append(f"as temperatures of {scales[0]:.4g} in A and {scales[1]:.4g} in B leave them")
        label = f"Equal logits, scaled as by temperature {scales[0]:.4g} in A and {scales[1]:.4g} in B"
    else:
        changing = [side for side, step in zip("AB", steps, strict=True) if not _is_raw(step)]
        if len(changing) == 1:
            evidence += _one_changes(changing[0], a if changing[0] == "A" else b)
            label = _not_applied(e, changing[0])
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True, label=label)


def _one_changes(side: str, step: Step) -> list[str]:
    """How a side changes the logits of its likeliest token, where the other changes none."""
    raw = [float(x) for token, x in zip(step.ids, step.logits, strict=True) if token == step.top1_id]
    told = f"only {side} changes the logits there: a penalty, a bias, a bad word or a constraint"
    if not raw or step.top1_logit is None:
        return [told]
    moved = step.top1_logit - raw[0]
    how = f"token {step.top1_id} has {raw[0]:.5g} before and {step.top1_logit:.5g} behind it"
    return [told, f"{how}, {moved:+.5g}" if moved else f"{how}: others are lowered"]


def _not_applied(e: Evidence, side: str) -> str | None:
    """The one field that both requests state, and that only one side heeds."""
    stated = [_stated_processors(e, index) for index in (0, 1)]
    if stated[0] != stated[1] or len(stated[0]) != 1:
        return None
    other = "B" if side == "A" else "A"
    return f"Equal logits: {stated[0][0]}, which both requests state, is not applied in {other}"


def _stated_processors(e: Evidence, side: int) -> list[str]:
    """The fields of a side that change logits."""
    found = []
    for name in _PROCESSORS:
        setting = e.sampling_of(side).get(name)
        value = None if setting is None else setting.resolved
        if value and value != _NEUTRAL.get(name):
            text = json.dumps(value)
            found.append(f"{name}={text}" if len(text) <= _SHOWN else name)
    return found


def candidate_order(e: Evidence) -> Finding | None:
    """Equal logits and an equal draw: one side lays the candidates out by probability, the other by id."""
    if not _draws_equal(e) or logits_processing(e) is not None:
        return None
    by_id, by_probability = _rules(e)
    sides = [probable and not plain for plain, probable in zip(by_id, by_probability, strict=True)]
    if sides[0] == sides[1]:
        return None
    side = "A" if sides[0] else "B"
    assert e.seen.choices is not None
    tested = e.seen.choices["AB".index(side)].by_probability(e.temperature("AB".index(side))).tested
    evidence = [
        _same_draw(e),
        f"over the candidates from the likeliest down the recorded draws give all {tested} tokens that "
        f"{side} chose; over the candidates by id they do not",
    ]
    if by_id[1 - "AB".index(side)]:
        evidence.append("on the other side it is the order of the ids that gives every token")
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True)


def sampling_filter(e: Evidence) -> Finding | None:
    """Equal logits and an equal draw: one side left candidates out."""
    if not _draws_equal(e) or logits_processing(e) is not None or candidate_order(e) is not None:
        return None
    assert e.seen.choices is not None
    by_id, _ = _rules(e)
    evidence, filtered = [], []
    for index, side in enumerate("AB"):
        filters = e.seen.choices[index].filters(e.temperature(index))
        if not by_id[index] and filters:
            filtered.append(f"{side}'s candidates are filtered, as by {' or '.join(filters)}")
            evidence.append(
                f"the recorded draws give every token of {side} with {' or '.join(filters)}, and not without"
            )
    if not evidence:
        return None
    label = f"Equal logits and draw: {' and '.join(filtered)}"
    return Finding([_same_draw(e), *evidence], "high", confirm=e.replay(repeat=3), direct=True, label=label)


def sampler(e: Evidence) -> Finding | None:
    """Equal logits, another token, and nothing recorded tells more."""
    token = e.first_token
    if token is None or token.step is None or e.ended or not e.logits_equal or e.prompts_differ:
        return None
    told = (seed_scope, rng, logits_processing, candidate_order, sampling_filter)
    if any(found(e) is not None for found in told):
        return None
    evidence = [
        f"the logits that chose step {token.step} are bit-identical, the chosen tokens are "
        f"{token.token_a} in A and {token.token_b} in B"
    ]
    missing = []
    if token.margin_a == 0 and e.greedy:
        evidence.append(
            "the two likeliest candidates have exactly the same logit: which one is taken is open"
        )
    if e.seen.choices is None:
        missing.append("the sampler's draws were not recorded on both sides")
    return Finding(evidence, "high", missing, e.replay(repeat=3), direct=True)


def own_draws(e: Evidence) -> Finding | None:
    """Two engines drew the token, each with random numbers of its own."""
    token, engines = e.first_token, [header.lane.engine for header in (e.header_a, e.header_b)]
    if token is None or token.step is None or e.ended or e.prompts_differ or engines[0] == engines[1]:
        return None
    if not all(e.is_drawn(side) for side in (0, 1)):
        return None
    evidence = [
        f"the token was drawn on both sides, and {engines[0]} and {engines[1]} share no stream of random "
        "numbers: one seed gives other draws, so other tokens are to be expected"
    ]
    margins, moved = (token.margin_a, token.margin_b), token.max_abs_logprob_diff
    if moved is not None:
        evidence.append(f"the log-probabilities of the candidates differ by at most {moved:.4g} there")
    near = moved is not None and all(margin is not None and margin > moved for margin in margins)
    evidence.append("greedy requests, or --mode golden-decode, compare the numbers without the draws")
    return Finding(evidence, "high" if near else "medium", confirm=e.replay("golden-decode"), of_choice=True)


def _deciding(e: Evidence) -> tuple[Step, Step] | None:
    """The steps that chose the first divergent token, where equal logits did."""
    token, known = e.first_token, e.seen.choices
    if token is None or token.step is None or e.ended or not e.logits_equal or known is None:
        return None
    at = e.seen.deciding
    assert at is not None
    return known[0].steps[at], known[1].steps[at]


def _draws_differ(e: Evidence) -> bool:
    steps = _deciding(e)
    return steps is not None and None not in (steps[0].draw, steps[1].draw) and steps[0].draw != steps[1].draw


def _draws_equal(e: Evidence) -> bool:
    steps = _deciding(e)
    return steps is not None and steps[0].draw is not None and steps[0].draw == steps[1].draw


def _draws_told(e: Evidence) -> str:
    steps = _deciding(e)
    assert steps is not None
    assert e.first_token is not None
    return (
        f"the logits that chose step {e.first_token.step} are bit-identical, the uniform draw is "
        f"{steps[0].draw:.6f} in A and {steps[1].draw:.6f} in B"
    )


def _same_draw(e: Evidence) -> str:
    steps = _deciding(e)
    assert steps is not None
    return (
        f"logits and draw ({steps[0].draw:.6f}) are equal, and give token {steps[0].token} in A, "
        f"{steps[1].token} in B"
    )


def _rules(e: Evidence) -> tuple[list[bool], list[bool]]:
    """Per side, whether the order of ids and that of probabilities gives every token."""
    known: tuple[Choices, Choices] | None = e.seen.choices
    assert known is not None
    return (
        [side.by_ids(e.temperature(index)).holds for index, side in enumerate(known)],
        [side.by_probability(e.temperature(index)).holds for index, side in enumerate(known)],
    )


def _is_raw(step: Step) -> bool:
    return bool(len(step.ids)) and step.top1_id == step.ids[0] and step.top1_logit == float(step.logits[0])


def _is_shared(starts: list[int | None]) -> bool | None:
    """The sequences go on in one stream of draws; None: the trace does not say."""
    if any(start is None for start in starts):
        return None
    known = [start for start in starts if start is not None]
    return len(set(known)) == len(known) and min(known) == 0
