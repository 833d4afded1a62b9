"""Causes in the prompt: what was cut off, inserted, or encoded in different token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ....schemas.findings.statement import SIDES
from ....schemas.findings.tokens import PromptsDiffer
from ....schemas.findings.unseen import Missing, NoEvidence
from ..evidence import Basis
from .finding import Finding

_KEPT = 9
"""Tokens of a difference that are kept as evidence: one more than a sentence shows."""


def prompt(basis: Basis) -> Finding | None:
    """The prompts differ, in no way that says more."""
    if not basis.prompts_differ or any(rule(basis) for rule in (tokenizer, truncated, insertion)):
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


def truncated(basis: Basis) -> Finding | None:
    """One prompt is the beginning or the end of the other."""
    if not basis.prompts_differ or basis.observed.prompts is None or tokenizer(basis) is not None:
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
    return _finding(basis, found)


def insertion(basis: Basis) -> Finding | None:
    """The prompts are equal but for tokens that only one of them has."""
    if not basis.prompts_differ or basis.observed.prompts is None or tokenizer(basis) or truncated(basis):
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
    confirm = basis.commands.show_differing_tokens()
    return Finding([differ, *changed], "high", missing, confirm, direct=True)


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
