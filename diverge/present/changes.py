"""One change between two fingerprints in words."""

from __future__ import annotations

from ...schemas.change import Change

_SHOWN = 60
"""Characters of a value that a sentence shows."""


def in_words(change: Change) -> str:
    """One change; of two records only what differs in them."""
    name = f"{change.section}.{change.field}"
    if change.before is None or change.after is None:
        before, after = ("absent" if fact is None else fact.text() for fact in (change.before, change.after))
        return f"{name}: {_short(before)} → {_short(after)}"
    a, b = change.before.value, change.after.value
    others = 0
    while isinstance(a, dict) and isinstance(b, dict) and not others:
        differing = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        if not differing:
            break
        name, others = f"{name}.{differing[0]}", len(differing) - 1
        a, b = a.get(differing[0], "absent"), b.get(differing[0], "absent")
    if a is change.before.value:
        before, after = change.before.text(), change.after.text()
    else:
        before, after = str(a), str(b)
    more = f" (and {others} more)" if others else ""
    return f"{name}: {_short(before)} → {_short(after)}{more}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}…"
