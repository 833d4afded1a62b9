"""Fingerprint drift by rule: which changes one rule judges, what it puts in doubt, and who says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....schemas.change import ABSENT, NO_RULE
from ....schemas.claim import LEVELS
from ..format import plain, plural, shortened_pair
from .document import RuleGroup

MAX_ENTRIES = 8
"""Entries of one reading that are shown."""
LONGEST = 300
"""Characters of a value."""

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....schemas.change import Change


def group_by_rule(changes: Sequence[Change], limit: int) -> list[RuleGroup]:
    """Groups of changes, the weakest promise at risk first, then what no rule knows, then what is harmless.

    Args:
        changes: The drift from A's fingerprint to B's.
        limit: Most changes shown; later ones are left out.
    """
    groups: dict[tuple[str, str, str | None], list[Change]] = {}
    for change in sorted(changes, key=_order)[:limit]:
        groups.setdefault((_risk(change), change.rule, change.replay), []).append(change)
    return [
        RuleGroup(
            risk=risk,
            rule="no rule for this field" if rule == NO_RULE else plain(rule),
            replay=None if replay is None else plain(replay),
            sources=_sources(members),
            fields=[row for member in members for row in _rows(member)],
        )
        for (risk, rule, replay), members in groups.items()
    ]


def _order(change: Change) -> int:
    if change.risk is not None:
        return -LEVELS.index(change.risk)
    return 2 if change.has_rule else 1


def _risk(change: Change) -> str:
    if change.risk is not None:
        return f"{change.risk} at risk"
    return "no level at risk" if change.has_rule else "unknown: replay to find out"


def _rows(change: Change) -> list[tuple[str, str, str]]:
    """A row; of a reading with many entries (the tensors of a model) one for each entry that differs."""
    before, after = change.before, change.after
    if change.keys:
        entries = [(f"{change.name} › {one.key}", one.before, one.after) for one in change.keys]
        shown = [_row(name, mine or ABSENT, theirs or ABSENT) for name, mine, theirs in entries[:MAX_ENTRIES]]
        return shown + _left_out(change, len(entries))
    if change.diff:
        removed, added = (
            " ⏎ ".join(line[1:].strip() for line in change.diff if line.startswith(mark)) for mark in "-+"
        )
        return [_row(change.name, removed, added)]
    if before is None or after is None or before.value is None or after.value is None:
        return [_row(change.name, change.before_text, change.after_text)]
    found = list(_differences(change.name, before.value, after.value))
    return [_row(*one) for one in found[:MAX_ENTRIES]] + _left_out(change, len(found))


def _left_out(change: Change, count: int) -> list[tuple[str, str, str]]:
    if count <= MAX_ENTRIES:
        return []
    return [(f"{plain(change.name)}: {plural(count - MAX_ENTRIES, 'more entry')}", "…", "…")]


def _row(name: str, before: str, after: str) -> tuple[str, str, str]:
    return plain(name), *shortened_pair(plain(before), plain(after), LONGEST)


def _differences(name: str, before: object, after: object) -> Iterator[tuple[str, str, str]]:
    """The parts of two readings that differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            if before.get(key) != after.get(key):
                yield from _differences(f"{name} › {key}", before.get(key), after.get(key))
        return
    left, right = (ABSENT if value is None else str(value) for value in (before, after))
    yield name, left, right


def _sources(changes: Sequence[Change]) -> list[str]:
    """Where the documents are, without the scheme: the report holds no link that loads anything."""
    found = dict.fromkeys(source for change in changes for source in change.sources or [])
    return [plain(source.removeprefix("https://").removeprefix("http://")) for source in found]
