"""Fingerprint drift by rule: which changes one rule judges, what it puts in doubt, and who says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.change import NO_RULE
from ...schemas.claim import LEVELS
from ..words import plain
from .model import RuleGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...schemas.change import Change


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
            rule="no rule is known for this field" if rule == NO_RULE else plain(rule),
            replay=None if replay is None else plain(replay),
            sources=_sources(members),
            fields=[
                (plain(member.name), _value(member, "before"), _value(member, "after")) for member in members
            ],
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
    return "no level at risk" if change.has_rule else "not known until replayed"


def _value(change: Change, side: str) -> str:
    fact = change.before if side == "before" else change.after
    return "absent" if fact is None else plain(fact.text())


def _sources(changes: Sequence[Change]) -> list[str]:
    """Where the documents are, without the scheme: the report holds no link that loads anything."""
    found = dict.fromkeys(source for change in changes for source in change.sources or [])
    return [plain(source.removeprefix("https://").removeprefix("http://")) for source in found]
