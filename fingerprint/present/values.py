"""A change in words for people: short, bounded, without control characters."""

from __future__ import annotations

from typing import Any

from ...schemas.change import Change
from ...schemas.fingerprint import Fact
from ..drift.compare import narrowed

_SHOWN_DIGITS = 12
"""Of a digest, for people; the document keeps all of it."""
_SHOWN_ENTRIES = 6
"""Of a table or list; the document keeps all of them."""
_SHOWN_CHARACTERS = 200
"""Of one text."""
_MISSING = "not in this fingerprint"


def before_and_after(change: Change) -> tuple[str, str]:
    """Both sides: digests shortened, and of two tables or lists only the entries that differ."""
    if change.before is not None and change.after is not None:
        before, after = change.before.value, change.after.value
        if isinstance(before, dict) and isinstance(after, dict):
            return _tables(before, after)
        if isinstance(before, list) and isinstance(after, list) and _hold_texts(before, after):
            return _lists(before, after)
    return _describe(change.before), _describe(change.after)


def _tables(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, str]:
    mine, theirs = narrowed(before, after)
    if len(mine) <= _SHOWN_ENTRIES:
        return _short(mine), _short(theirs)
    names = list(mine)[:_SHOWN_ENTRIES]
    more = f"; {len(mine)} of {len({*before, *after})} entries differ"
    return (
        _short({name: mine[name] for name in names}) + more,
        _short({name: theirs[name] for name in names}) + more,
    )


def _hold_texts(*lists: list[Any]) -> bool:
    return all(isinstance(item, str) for items in lists for item in items)


def _lists(before: list[str], after: list[str]) -> tuple[str, str]:
    """Instruction sets and names: what one has more than the other. Equal sets differ in their order."""
    both = set(before) & set(after)
    if not both or set(before) == set(after):
        return _short(before), _short(after)
    common = f"{len(both)} in common"
    mine = [item for item in before if item not in both]
    theirs = [item for item in after if item not in both]
    return (
        f"{common} and {_short(mine)}" if mine else common,
        f"{common} and {_short(theirs)}" if theirs else common,
    )


def _describe(reading: Fact | None) -> str:
    if reading is None:
        return _MISSING
    return visible(reading.text()) if reading.unavailable is not None else _short(reading.value)


def _short(value: Any) -> str:
    if value in ("", [], {}):
        return repr(value)
    if isinstance(value, dict):
        shown = [
            f"{visible(name)}: ({_short(item)})"
            if isinstance(item, dict)
            else f"{visible(name)}={_short(item)}"
            for name, item in list(value.items())[:_SHOWN_ENTRIES]
        ]
        return ", ".join(shown) + _more(len(value))
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value[:_SHOWN_ENTRIES]) + _more(len(value))
    text = visible(str(value))
    if len(text) >= 40 and all(character in "0123456789abcdef" for character in text):
        return f"{text[:_SHOWN_DIGITS]}…"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"


def _more(count: int) -> str:
    return f", … {count - _SHOWN_ENTRIES} more" if count > _SHOWN_ENTRIES else ""


def visible(text: str) -> str:
    """A fingerprint may come from anywhere: control characters must not reach a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
