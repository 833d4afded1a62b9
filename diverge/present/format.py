"""Number formats, plurals, and how things are called in text. Plain text out; escaping is the template's."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...schemas.verdict import FirstSite

NONE = "–"
BROKEN = "\ufffd"
"""What a decoder gives for a token that holds only some bytes of a character."""

MARKS = {"\n": "↵", "\t": "⇥", "\r": "␍"}


def drift(value: float | None) -> str:
    """A relative drift: two significant digits with an exponent."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def drift_size(value: float | None) -> str:
    """How large the difference of a differing row is; it may be less than a sketch resolves."""
    if value is not None and math.isnan(value):
        return "a value is not finite"
    if value == 0:
        return "drift below the sketch's resolution"
    return f"relative drift {drift(value)}"


def drift_cell(value: float | None) -> str:
    """The same in a table."""
    if value is not None and math.isnan(value):
        return "not finite"
    return "below resolution" if value == 0 else drift(value)


START_S = 5.0
"""Seconds that a process takes to start and to hash a small model, beside what a trace tells."""


def duration(*runs: float | None) -> str:
    """How long runs take, each in a process of its own: `20 s`, `3 min`, `2.5 h`.

    Args:
        runs: Seconds of each; None: not known.
    """
    known = [seconds + START_S for seconds in runs if seconds is not None]
    seconds = sum(known)
    if len(known) < len(runs):
        return f"{len(runs)} times as long as B's run" if len(runs) > 1 else "as long as B's run"
    return time_in_words(seconds)


def time_in_words(seconds: float) -> str:
    """`20 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{max(5, round(seconds / 5) * 5)} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def moment(time: str) -> str:
    """An ISO 8601 time in UTC, to the second, for people; any other text as it is."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)", time)
    return f"{found[1]} {found[2]} UTC" if found else time


def number(value: float | None) -> str:
    """A logit, margin or logit difference: four significant digits, small ones with an exponent."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value and abs(value) < 1e-3:
        return drift(value)
    text = f"{value:.4g}"
    return text.replace("-", "−") if "e" not in text else text


def logit(value: float | None) -> str:
    """A logit in a column of logits: four decimals, so that the points stand above each other."""
    return NONE if value is None else f"{value:.4f}".replace("-", "−")


def count(value: int | None) -> str:
    """A count with thousands separators."""
    return NONE if value is None else f"{value:,}"


def percent(logprob: float | None) -> str:
    """A log-probability as a probability in per cent."""
    if logprob is None:
        return NONE
    if math.isnan(logprob):
        return "NaN"
    share = 100 * math.exp(min(logprob, 0.0))
    return "<0.01 %" if share < 0.005 else f"{share:.2f} %"


def bar(logprob: float | None, largest: float) -> float:
    """Length of a probability's bar, of 1 for the largest; 0 where there is no number."""
    if logprob is None or math.isnan(logprob):
        return 0.0
    return math.exp(min(logprob - largest, 0.0))


def plural(value: int, word: str) -> str:
    """`1 row`, `2 rows`, `2 hashes`, `2 entries`."""
    if value == 1:
        return f"1 {word}"
    many = f"{word[:-1]}ies" if word.endswith("ry") else f"{word}es" if word.endswith("sh") else f"{word}s"
    return f"{value:,} {many}"


def listed(names: Sequence[str], shown: int, of: int | None = None, what: str = "more") -> str:
    """Some names; of many, how many more there are: `a, b and 3 more`.

    Args:
        names: All of them, or the first.
        shown: How many are named at most.
        of: How many there are. [default: the names]
        what: What the others are called.
    """
    left = (len(names) if of is None else of) - min(len(names), shown)
    return ", ".join(names[:shown]) + (f" and {left:,} {what}" if left > 0 else "")


def shortened(text: str, longest: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shortened_pair(before: str, after: str, longest: int) -> tuple[str, str]:
    """Two texts of at most so many characters, around the first character that differs."""
    if len(before) <= longest and len(after) <= longest:
        return before, after
    pairs = enumerate(zip(before, after, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(before), len(after)))
    start = max(0, at - longest // 3) if at >= longest * 2 // 3 else 0
    cut = "…" if start else ""
    left, right = (shortened(cut + text[start:], longest) for text in (before, after))
    return left, right


def does(value: int, verb: str) -> str:
    """A verb that agrees with a count: 1 differs, 2 differ; 1 was, 2 were."""
    if value != 1:
        return verb
    return {"were": "was", "are": "is", "have": "has"}.get(verb, f"{verb}s")


def pieces(text: str, spaces: bool = False) -> list[tuple[bool, str]]:
    """Token text in pieces, each with whether it is a mark that stands for something invisible.

    A newline becomes a mark and the newline itself; other control, format and half characters become
    escapes, so that no text can reorder or hide its surroundings.

    Args:
        text: Decoded text of one token.
        spaces: Mark spaces too, where a single token stands alone.
    """
    found: list[tuple[bool, str]] = []
    for character in text:
        if character in MARKS:
            found.append((True, MARKS[character]))
            if character == "\n" and not spaces:
                found.append((False, "\n"))
        elif character == " " and spaces:
            found.append((True, "␣"))
        elif unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            found.append((True, character.encode("unicode_escape").decode()))
        elif found and not found[-1][0]:
            found[-1] = (False, found[-1][1] + character)
        else:
            found.append((False, character))
    return found


def plain(text: object) -> str:
    """Any text on one line with nothing invisible in it."""
    return "".join(part for _, part in pieces(str(text))).replace("\n", " ")


def shell(path: object) -> str:
    """A path as one word of a shell command."""
    return plain(shlex.quote(str(path)))


def request_name(request_id: str, sample: int) -> str:
    """How a sequence is called."""
    return f"request {plain(request_id)}" + (f", sample {sample}" if sample else "")


def quoted_token(token_id: int, texts: dict[str, str]) -> str:
    """A token in running text: “amplify” (25292), or token 25292 where its text is not known."""
    text = texts.get(str(token_id))
    if text is None:
        return f"token {token_id}"
    if BROKEN in text:
        return f"token {token_id}, part of a character"
    shown = "".join(part for _, part in pieces(text.strip(" ") or text, spaces=not text.strip(" ")))
    return f"“{shown.replace(chr(10), '')}” ({token_id})"


def site_label(site: FirstSite) -> str:
    """`layers.4.self_attn#1:attn`."""
    return plain(site.label())
