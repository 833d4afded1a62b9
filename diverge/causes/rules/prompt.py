"""Causes in the prompt: what was cut off, inserted, or encoded in different token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ....schemas.findings.evidence import Evidence
from ....schemas.findings.statement import SIDES, Command, other_side
from ....schemas.findings.tokens import PromptsDiffer, SequenceEnded
from ....schemas.findings.unseen import Missing, NoEvidence
from ..evidence import Basis
from ..observe.prompt_texts import begins_a_text, written_by_a_clock
from ..settings import OF_LENGTH, OF_STOPPING
from .finding import Finding

_KEPT = 9
"""Tokens of a difference that are kept as evidence: one more than a sentence shows."""


def prompt(basis: Basis) -> Finding | None:
    """The prompts differ, in no way that says more."""
    if not basis.prompts_differ or any(rule(basis) for rule in (tokenizer, clock, truncated, insertion)):
        return None
    token = basis.first_token
    assert token is not None
    sides = ([] if one is None else [one] for one in (token.token_a, token.token_b))
    a, b = sides
    return _finding(basis, PromptsDiffer(how="tokens", position=token.position, tokens_a=a, tokens_b=b))


def tokenizer(basis: Basis) -> Finding | None:
    """One text, two lists of token ids."""
    if not basis.prompts_differ or basis.observed.prompts is None:
        return None
    a, b = basis.observed.prompts
    texts = _text(basis, a, 0), _text(basis, b, 1)
    if not texts[0] or texts[0] != texts[1]:
        return None
    at = _shared(a, b)
    return _finding(
        basis,
        PromptsDiffer(
            how="same text",
            position=at,
            length_a=len(a),
            length_b=len(b),
            tokens_a=a[at:][:_KEPT],
            tokens_b=b[at:][:_KEPT],
        ),
    )


def clock(basis: Basis) -> Finding | None:
    """The prompts differ in nothing but what a clock wrote: a chat template that reads it."""
    if not basis.prompts_differ or basis.observed.prompts is None or tokenizer(basis) is not None:
        return None
    a, b = basis.observed.prompts
    found = written_by_a_clock(_text(basis, a, 0), _text(basis, b, 1))
    if found is None:
        return None
    at = _shared(a, b)
    differ = PromptsDiffer(
        how="clock",
        position=at,
        length_a=len(a),
        length_b=len(b),
        tokens_a=a[at:][:_KEPT],
        tokens_b=b[at:][:_KEPT],
        clock_a=found.a,
        clock_b=found.b,
    )
    return _finding(basis, differ)


def truncated(basis: Basis) -> Finding | None:
    """One prompt is the beginning or the end of the other."""
    if not basis.prompts_differ or basis.observed.prompts is None or tokenizer(basis) or clock(basis):
        return None
    a, b = basis.observed.prompts
    side = 0 if len(a) < len(b) else 1
    short, long = (a, b) if side == 0 else (b, a)
    if not short or len(short) == len(long):
        return None
    count = len(long) - len(short)
    how: Literal["first tokens missing", "last tokens missing"]
    if long[: len(short)] == short:
        how, lost = "last tokens missing", long[len(short) :]
    elif long[count:] == short:
        how, lost = "first tokens missing", long[:count]
    else:
        return None
    found = PromptsDiffer(
        how=how,
        position=len(short) if how == "last tokens missing" else 0,
        side=SIDES[side],
        count=count,
        length_a=len(a),
        length_b=len(b),
        tokens_a=[] if side == 0 else lost[:_KEPT],
        tokens_b=lost[:_KEPT] if side == 0 else [],
    )
    return _finding(basis, _of_beginning(basis, found, long, lost))


def _of_beginning(basis: Basis, found: PromptsDiffer, long: list[int], lost: list[int]) -> PromptsDiffer:
    """The same, where what is missing at the start is the token that begins a text."""
    side = SIDES.index(other_side(found.side or "A"))
    begins = begins_a_text(basis.headers[side], lost[0])
    if found.how != "first tokens missing" or not begins or set(lost) != {lost[0]}:
        return found
    if len(long) > len(lost) and long[len(lost)] == lost[0]:
        # The longer one has it again: that is the side that is wrong.
        return found.model_copy(update={"how": "BOS doubled", "side": SIDES[side]})
    return found.model_copy(update={"how": "BOS missing"}) if len(lost) == 1 else found


def insertion(basis: Basis) -> Finding | None:
    """The prompts are equal but for tokens that only one of them has."""
    if not basis.prompts_differ or basis.observed.prompts is None:
        return None
    if any(rule(basis) is not None for rule in (tokenizer, clock, truncated)):
        return None
    a, b = basis.observed.prompts
    at = _shared(a, b)
    after = min(_shared(a[::-1], b[::-1]), min(len(a), len(b)) - at)
    if len(a) == len(b) or at + after < min(len(a), len(b)):
        return None
    side = 0 if len(a) > len(b) else 1
    inserted = (a, b)[side][at : at + abs(len(a) - len(b))]
    found = PromptsDiffer(
        how="inserted",
        position=at,
        side=SIDES[side],
        count=len(inserted),
        length_a=len(a),
        length_b=len(b),
        inserted_text=_text(basis, inserted, side) or None,
    )
    tokens = "tokens_a" if side == 0 else "tokens_b"
    return _finding(basis, found.model_copy(update={tokens: inserted[:_KEPT]}))


def _finding(basis: Basis, differ: PromptsDiffer) -> Finding:
    changed = basis.changed("tokenizer", "template")
    missing: list[Missing] = []
    if not changed and not basis.has_fingerprints:
        missing.append(NoEvidence(kind="fingerprint", of="tokenizer and template"))
    confirm = _prompts_as_a(basis) or basis.commands.show_differing_tokens()
    return Finding([differ, *changed], "high", missing, confirm, direct=True)


def _prompts_as_a(basis: Basis) -> Command | None:
    """A's prompts on B's lane: by A's tokenizer and template where B tokenized the text itself."""
    texts = any("prompt_token_ids" not in (request.envelope or {}) for request in basis.headers[1].requests)
    commands = basis.commands
    if texts and basis.changed("tokenizer", "template"):
        return commands.model_as_a()
    return commands.requests_as_a()


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items two lists begin with in common."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _text(basis: Basis, ids: Sequence[int], side: int) -> str:
    """Their text; empty where the trace does not hold it."""
    known = basis.headers[side].token_text
    pieces = [known.get(str(token)) for token in ids]
    return "" if None in pieces else "".join(piece or "" for piece in pieces)


Rule = Literal["stop", "stop_token_ids", "max_tokens"]


def length_limit(basis: Basis) -> Finding | None:
    """The side that ended first had reached a limit."""
    return _ended(basis, "limit")


def stop_rule(basis: Basis) -> Finding | None:
    """The side that ended first had met a stop rule that the other did not apply."""
    return _ended(basis, "stop")


def length(basis: Basis) -> Finding | None:
    """One output is longer, and no trace says by which rule the other ended."""
    return _ended(basis, "")


def _ended(basis: Basis, wanted: Literal["limit", "stop", ""]) -> Finding | None:
    token, side = basis.first_token, basis.ended
    if token is None or side is None or basis.prompts_differ:
        return None
    limits = [one for one in basis.sampling_differences if one.name in OF_LENGTH]
    stops = [one for one in basis.sampling_differences if one.name in OF_STOPPING]
    result, other = basis.observed.ends[side], basis.observed.ends[1 - side]
    reason = (result.reason if result is not None else None) or None
    by_reason = {"length": "limit", "stop": "stop"}.get(reason or "")
    kind = by_reason or ("limit" if limits else "stop" if stops else "")
    if kind != wanted:
        return None
    stated = [one.resolved if (one := sampling.get("max_tokens")) else None for sampling in basis.sampling]
    rule = _rule(basis, side)
    evidence: list[Evidence] = [
        SequenceEnded(
            side=SIDES[side],
            position=token.position,
            step=token.step,
            reason=reason,
            rule=None if rule is None else rule[0],
            rule_value=None if rule is None else rule[1],
            limit=stated[side] if isinstance(stated[side], int) else None,
            same_limit=stated[0] == stated[1],
            other_reason=other.reason if reason and other is not None else None,
        ),
        *limits,
        *stops,
    ]
    missing: list[Missing] = [] if limits or stops or reason else [NoEvidence(kind="finish reasons")]
    stated_in_a = basis.commands.sampling_as_a([one.name for one in (*limits, *stops)])
    if stated_in_a is None:
        return Finding(evidence, "high", missing, basis.commands.replay(), direct=True)
    return Finding(evidence, "high", missing, stated_in_a, direct=True, interpretation="same setting as A")


def _rule(basis: Basis, side: int) -> tuple[Rule, Any] | None:
    """Which stated rule the end of a side's output meets, and its value."""
    sampling, result = basis.sampling[side], basis.observed.ends[side]
    if result is None:
        return None
    strings, text = sampling.get("stop"), result.text or ""
    if strings is not None and isinstance(strings.resolved, list):
        met = [stop for stop in strings.resolved if stop and stop in text]
        met = met or [stop for stop in strings.resolved if stop and text.rstrip().endswith(stop.rstrip())]
        if met:
            return "stop", met[0]
    ids, last = sampling.get("stop_token_ids"), basis.observed.last[side]
    if result.reason == "stop" and ids is not None and last in (ids.resolved or []):
        return "stop_token_ids", last
    limit = sampling.get("max_tokens")
    if result.reason == "length" and limit is not None:
        return "max_tokens", limit.resolved
    return None
