"""Small texts beside a model's weights: what a fingerprint keeps of them, and how two of them differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any

from ...schemas import redact
from ...schemas.base import canonical_json, exactly_representable
from ...schemas.change import KeyChange

MAX_TEXT = 64 << 10
"""Bytes of one text as JSON; longer ones are known by their digest only."""
MAX_CHANGES = 100
"""Entries or lines of one change."""
MAX_VALUE = 300
"""Characters of one value or line."""
_CONTEXT_LINES = 1
_ABSENT = object()
_LONG_LINE = 120
_AFTER_TAG = re.compile(r"(?<=[%}]\})")


def keep_texts(found: Mapping[str, Any]) -> dict[str, Any]:
    """The texts and JSON objects that a fingerprint keeps: secrets taken out, none of them long.

    Args:
        found: Field → content. A text in place of a JSON object says why there is none, and is left out.
    """
    return {
        name: redact.without_secrets(exactly_representable(content))
        for name, content in found.items()
        if isinstance(content, dict) and content and len(canonical_json(content)) <= MAX_TEXT
    }


def differing_keys(before: Any, after: Any) -> list[KeyChange]:
    """The entries in which two JSON values differ, by the order of the first; at most `MAX_CHANGES`."""
    found: list[KeyChange] = []
    for key, mine, theirs in _differences("", before, after):
        if len(found) == MAX_CHANGES:
            break
        found.append(KeyChange(key=key, before=_as_text(mine), after=_as_text(theirs)))
    return found


def differing_lines(before: str, after: str) -> list[str]:
    """The lines in which two texts differ, marked as `diff -u` marks them; at most `MAX_CHANGES`."""
    lines = list(unified_diff(_lines(before), _lines(after), lineterm="", n=_CONTEXT_LINES))
    shown = [_shortened(line) for line in lines[2:] if not line.startswith("@@")]  # after the two file names
    if not shown and before != after:
        return ["only the ends of lines differ"]
    more = len(shown) - MAX_CHANGES
    return shown if more <= 0 else [*shown[:MAX_CHANGES], f"… {more} more lines"]


def _lines(text: str) -> list[str]:
    """The lines of a text; a long one, as of a template that is one line, is cut after its tags."""
    return [
        part
        for line in text.splitlines()
        for part in (_AFTER_TAG.split(line) if len(line) > _LONG_LINE else [line])
        if part or len(line) <= _LONG_LINE
    ]


def _differences(key: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            inner = f"{key}.{name}" if key else str(name)
            yield from _differences(inner, before.get(name, _ABSENT), after.get(name, _ABSENT))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (mine, theirs) in enumerate(zip(before, after, strict=True)):
            yield from _differences(f"{key}[{place}]", mine, theirs)
    elif before is _ABSENT or after is _ABSENT or canonical_json([before]) != canonical_json([after]):
        yield key, before, after


def _as_text(value: Any) -> str | None:
    return None if value is _ABSENT else _shortened(json.dumps(value, ensure_ascii=False))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
