"""What is said in prompts beside their words: the token that begins a text, and what a clock wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ....schemas.trace import TraceHeader

_BEGINNINGS = frozenset(
    {"<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]", "<｜begin▁of▁sentence｜>", "[BOS]"}
)
"""Texts of tokens that begin a sequence, where no fingerprint names the token."""
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
# No part may match what the next one matches, so that time is linear in the text.
_WRITTEN_BY_A_CLOCK = re.compile(
    rf"\b\d{{4}}-\d{{2}}-\d{{2}}\b|\b\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}\b|\b\d{{1,2}} {_MONTH} \d{{2,4}}\b"
    rf"|\b{_MONTH} \d{{1,2}},? \d{{2,4}}\b|\b{_MONTH} \d{{4}}\b|(?<!\d)\d{{1,2}}:\d{{2}}(?::\d{{2}})?"
    rf"(?:\.\d{{1,6}})?(?: ?[AaPp][Mm])?|\b{_DAY}\b|\b1[6-9]\d{{8}}\b"
)
_LONGEST = 1 << 20
"""Characters of a prompt that are looked through."""


@dataclass(frozen=True)
class ClockTexts:
    """The first thing that a clock wrote differently."""

    a: str
    b: str


def written_by_a_clock(a: str, b: str) -> ClockTexts | None:
    """Two texts that differ in dates and times only; None: they differ in anything else, or not at all."""
    if a == b or max(len(a), len(b)) > _LONGEST:
        return None
    times = [_WRITTEN_BY_A_CLOCK.findall(prompt) for prompt in (a, b)]
    rest = [_WRITTEN_BY_A_CLOCK.sub("\0", prompt) for prompt in (a, b)]
    if rest[0] != rest[1]:
        return None
    first = next(((one, other) for one, other in zip(*times, strict=True) if one != other), None)
    return None if first is None else ClockTexts(*first)


def begins_a_text(header: TraceHeader, token: int) -> bool:
    """The token is the one with which the tokenizer begins a sequence (BOS)."""
    fingerprint = header.fingerprint
    found = None if fingerprint is None else fingerprint.get("tokenizer", "special_tokens")
    roles = found.value if found is not None and isinstance(found.value, dict) else {}
    ids = [roles[role].get("id") for role in ("bos_token", "cls_token") if isinstance(roles.get(role), dict)]
    if any(isinstance(one, int) for one in ids):
        return token in ids
    return header.token_text.get(str(token), "").strip() in _BEGINNINGS
