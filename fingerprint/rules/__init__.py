"""What a change puts at risk: tables of rules, each with its reason and its source. They measure nothing.

Official documents promise bitwise equality only. So a rule names the level in doubt; whether it was really
lost is unknown until a replay.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from ...schemas.change import NO_RULE
from . import advice, engine_rules, machine_rules, model_rules, software_rules, variable_rules
from .base import Compared, Condition, Rule, Source

__all__ = ["NO_RULE", "RULES", "Compared", "Condition", "Rule", "Source", "advice", "rule_for", "rules_of"]

RULES: tuple[Rule, ...] = (
    *machine_rules.CPU_RULES,
    *machine_rules.OS_RULES,
    *machine_rules.PROCESS_RULES,
    *model_rules.RULES,
    *engine_rules.RULES,
    *software_rules.FRAMEWORK_RULES,
    *software_rules.KERNEL_RULES,
    *software_rules.LIBRARY_RULES,
    *machine_rules.GPU_RULES,
    *machine_rules.DRIVER_RULES,
    *variable_rules.RULES,
)
"""The first row that fits counts; special rows stand before general ones."""


def rules_of(section: str, field: str) -> list[Rule]:
    """Every row that may apply to a field, in their order: those with a condition, and the first without."""
    found: list[Rule] = []
    for rule in RULES:
        if fnmatchcase(f"{section}.{field}", rule.pattern):
            found.append(rule)
            if rule.when is None:
                break
    return found


def rule_for(section: str, field: str, compared: Compared | None = None) -> Rule | None:
    """The rule for a field, or None where nobody has stated one.

    Args:
        section: Of the fingerprint.
        field: In that section.
        compared: Both values and their surroundings. Without them only rows without a condition apply.
    """
    return next(
        (
            rule
            for rule in rules_of(section, field)
            if rule.when is None or (compared is not None and rule.when.holds(compared))
        ),
        None,
    )
