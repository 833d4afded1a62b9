"""What a change puts at risk: tables of rules, each with its reason and its source. They measure nothing.

Official documents promise bitwise equality only. So a rule names the level in doubt; whether it was really
lost is unknown until a replay.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from . import engine_rules, machine_rules, model_rules, software_rules, variable_rules
from .base import Compared, Rule

__all__ = ["RULES", "Compared", "Rule", "rule_for", "rules_of"]

RULES: tuple[Rule, ...] = (
    *machine_rules.RULES,
    *model_rules.RULES,
    *engine_rules.RULES,
    *software_rules.RULES,
    *variable_rules.RULES,
)
"""The first row that fits counts; special rows stand before general ones."""


@cache
def rules_of(section: str, field: str) -> tuple[Rule, ...]:
    """Every row that may apply to a field, in their order: those with a condition, and the first without."""
    found: list[Rule] = []
    for rule in RULES:
        if fnmatchcase(f"{section}.{field}", rule.pattern):
            found.append(rule)
            if rule.when is None:
                break
    return tuple(found)


def rule_for(compared: Compared) -> Rule | None:
    """The row that counts for a change, or None where nobody has stated one."""
    rules = rules_of(compared.section, compared.field)
    return next((rule for rule in rules if rule.when is None or rule.when.holds(compared)), None)
