"""Causes that lie in the prompt: what was cut off, put in, or told in other token ids."""

from __future__ import annotations

from collections.abc import Sequence

from .evidence import Evidence
from .finding import Finding

_SHOWN = 8
"""Tokens that a sentence shows."""


def prompt(e: Evidence) -> Finding | None:
    """The prompts differ, in no way that tells more."""
    if not e.prompts_differ or any(found(e) for found in (tokenizer, truncated, insertion)):
        return None
    token = e.first_token
    assert token is not None
    told = f"the prompts part at position {token.position}: token {token.token_a} in A, {token.token_b} in B"
    return _finding(e, [told], f"the prompts part at position {token.position}")


def tokenizer(e: Evidence) -> Finding | None:
    """One text, two lists of token ids."""
    if not e.prompts_differ or e.seen.prompts is None:
        return None
    a, b = e.seen.prompts
    texts = _text(e, a, 0), _text(e, b, 1)
    if not texts[0] or texts[0] != texts[1]:
        return None
    at = _shared(a, b)
    return _finding(
        e,
        [
            f"the prompts read the same, and are {len(a)} token ids in A and {len(b)} in B",
            f"from position {at} on: {_ids(a[at:])} in A, {_ids(b[at:])} in B",
        ],
    )


def truncated(e: Evidence) -> Finding | None:
    """One prompt is the beginning or the end of the other."""
    if not e.prompts_differ or e.seen.prompts is None or tokenizer(e) is not None:
        return None
    a, b = e.seen.prompts
    short, long, side = (a, b, "A") if len(a) < len(b) else (b, a, "B")
    if not short or len(short) == len(long):
        return None
    gone = len(long) - len(short)
    many = f"{gone} token{'s' * (gone > 1)}"
    if long[: len(short)] == short:
        label = f"{side}'s prompt lacks the last {many} of the other's"
        told = f"the prompt of {side} is the other's without its last {gone} of {len(long)} tokens"
    elif long[gone:] == short:
        lost = _ids(long[:gone])
        label = f"{side}'s prompt lacks the first {many} of the other's"
        told = f"the prompt of {side} is the other's without its first {gone} of {len(long)} tokens ({lost})"
    else:
        return None
    return _finding(e, [told], label)


def insertion(e: Evidence) -> Finding | None:
    """The prompts are equal but for tokens that only one of them has."""
    if not e.prompts_differ or e.seen.prompts is None or tokenizer(e) or truncated(e):
        return None
    a, b = e.seen.prompts
    at = _shared(a, b)
    behind = min(_shared(a[::-1], b[::-1]), min(len(a), len(b)) - at)
    if len(a) == len(b) or at + behind < min(len(a), len(b)):
        return None
    index, side = (0, "A") if len(a) > len(b) else (1, "B")
    more = (a, b)[index][at : at + abs(len(a) - len(b))]
    text = _text(e, more, index)
    shown = f" ({text!r})" if text else ""
    told = (
        f"the prompt of {side} has {len(more)} more at position {at}: {_ids(more)}{shown}; the rest is equal"
    )
    other = "B" if side == "A" else "A"
    count = f"{len(more)} token{'s' * (len(more) > 1)}"
    label = f"{side}'s prompt has {count} at position {at} that {other}'s has not"
    return _finding(e, [told], label)


def _finding(e: Evidence, evidence: list[str], label: str | None = None) -> Finding:
    changed = e.changed("tokenizer", "template")
    missing = (
        []
        if changed or e.has_fingerprints
        else ["no fingerprint in one of the traces, so tokenizer and template are unknown"]
    )
    evidence += [f"changed in the fingerprint: {name}" for name in changed]
    if label is not None and e.changed("template"):
        label = f"Another chat template: {label}"
    if label is not None:
        label = label[0].upper() + label[1:]
    return Finding(evidence, "high", missing, e.query_differing_tokens(), direct=True, label=label)


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items two lists begin with in common."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _text(e: Evidence, ids: Sequence[int], side: int) -> str:
    """Their text; empty where the trace does not tell it."""
    known = (e.header_a, e.header_b)[side].token_text
    pieces = [known.get(str(token)) for token in ids]
    return "" if None in pieces else "".join(piece or "" for piece in pieces)


def _ids(ids: Sequence[int]) -> str:
    shown = ", ".join(str(token) for token in ids[:_SHOWN])
    word = "token" if len(ids) == 1 else "tokens"
    return f"{word} {shown}{', …' if len(ids) > _SHOWN else ''}"
