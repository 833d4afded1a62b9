"""Two fingerprints to a list of changes, the thirteen flat keys first. It reads nothing by itself."""

from __future__ import annotations

from typing import Any

from ..schemas.base import canonical_json
from ..schemas.change import Change, Drift
from ..schemas.fingerprint import FLAT_KEYS, SECTIONS, Fact, Fingerprint
from .rules import NO_RULE, rule_for

_SHOWN_DIGITS = 12
"""Of a digest, for people; the document keeps all of it."""


def drift(base: Fingerprint, now: Fingerprint) -> list[Change]:
    """The fields that read differently, most telling first. Volatile readings are not compared.

    A reading that has the same value from another source is not a change (see `source_changes`). Two
    readings that are unavailable for the same reason are equal; a value against `unavailable` is a change,
    and so is a field that only one of the two has.
    """
    changes = []
    for section, field in _fields(base, now):
        before, after = base.get(section, field), now.get(section, field)
        if not _says_the_same(before, after):
            rule = rule_for(section, field)
            changes.append(
                Change(
                    section=section,
                    field=field,
                    before=before,
                    after=after,
                    risk=rule.risk if rule else None,
                    rule=rule.text() if rule else NO_RULE,
                )
            )
    return changes


def source_changes(base: Fingerprint, now: Fingerprint) -> list[str]:
    """Readings of equal value whose source differs, in words: weaker or stronger evidence, not drift."""
    return [
        f"{section}.{field}: {before.source} → {after.source}"
        for section, field in _fields(base, now)
        if (before := base.get(section, field)) is not None
        and (after := now.get(section, field)) is not None
        and before.source != after.source
        and _says_the_same(before, after)
    ]


def compare(base: Fingerprint, now: Fingerprint) -> Drift:
    """`drift` and `source_changes` as one document."""
    return Drift(
        base_root_digest=base.root_digest,
        now_root_digest=now.root_digest,
        changes=drift(base, now),
        source_changes=source_changes(base, now),
    )


def describe(change: Change) -> tuple[str, str]:
    """Before and after for people: digests shortened, and of two tables only the entries that differ."""
    if change.before is not None and change.after is not None:
        before, after = change.before.value, change.after.value
        if isinstance(before, dict) and isinstance(after, dict):
            return _short(_only_differing(before, after)), _short(_only_differing(after, before))
    return _in_words(change.before), _in_words(change.after)


def _fields(base: Fingerprint, now: Fingerprint) -> list[tuple[str, str]]:
    """Every (section, field) that one of the two has: flat keys, then sections in their order, then names."""
    found = {
        (section, field)
        for fingerprint in (base, now)
        for section, content in fingerprint.sections.items()
        for field in content.facts
    }
    first = {place: rank for rank, place in enumerate(FLAT_KEYS.values())}
    order = {section: rank for rank, section in enumerate(SECTIONS)}
    return sorted(
        found, key=lambda place: (first.get(place, len(first)), order.get(place[0], len(order)), *place)
    )


def _says_the_same(before: Fact | None, after: Fact | None) -> bool:
    if before is None or after is None:
        return before is after
    # Canonical JSON, because Python takes True for 1, and a stored document keeps large integers as text.
    readings = [canonical_json([reading.value, reading.unavailable]) for reading in (before, after)]
    return readings[0] == readings[1]


def _only_differing(side: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The entries of `side` that `other` has differently, and `absent` for those that `side` lacks."""
    kept: dict[str, Any] = {}
    for name in sorted({*side, *other}):
        mine, theirs = side.get(name, "absent"), other.get(name, "absent")
        if isinstance(mine, dict) and isinstance(theirs, dict):
            mine, theirs = _only_differing(mine, theirs), _only_differing(theirs, mine)
        if canonical_json(mine) != canonical_json(theirs):
            kept[name] = mine
    return kept


def _in_words(reading: Fact | None) -> str:
    if reading is None:
        return "not in this fingerprint"
    return _visible(reading.text()) if reading.unavailable is not None else _short(reading.value)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{_visible(name)}: ({_short(item)})"
            if isinstance(item, dict)
            else f"{_visible(name)}={_short(item)}"
            for name, item in value.items()
        )
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value)
    text = _visible(str(value))
    is_digest = len(text) >= 40 and all(character in "0123456789abcdef" for character in text)
    return f"{text[:_SHOWN_DIGITS]}…" if is_digest else text


def _visible(text: str) -> str:
    """A fingerprint may come from anywhere: control characters must not reach a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
