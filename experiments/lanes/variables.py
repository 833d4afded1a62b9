"""Environment variables among the settings of a lane: `env.NAME=VALUE`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...schemas.errors import BadInput, stated_setting

if TYPE_CHECKING:
    from ...schemas.trace import Setting

_VARIABLE = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")


def split_variables(settings: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables among `KEY=VALUE` texts by name, and the other texts.

    Raises:
        BadInput: A variable that is not of the form `env.NAME=VALUE`.
    """
    variables: dict[str, str] = {}
    others = []
    for pair in settings:
        name, equals, value = pair.partition("=")
        if not name.startswith("env."):
            others.append(pair)
            continue
        named = _VARIABLE.fullmatch(name)
        if named is None or not equals:
            raise BadInput(
                "not of the form env.NAME=VALUE", "for example env.OMP_NUM_THREADS=1", stated_setting(pair)
            )
        variables[named[1]] = value
    return variables, tuple(others)


def recorded_variables(variables: Mapping[str, str]) -> dict[str, Setting]:
    """Variables as the trace keeps them; those that may be secrets without their values."""
    from ...schemas.lane import NOT_KEPT, may_be_secret
    from ...schemas.trace import Setting

    kept = {}
    for variable, value in variables.items():
        name, observed = f"env.{variable}", os.environ.get(variable, "(not set)")
        if may_be_secret(name):
            value = observed = NOT_KEPT
        kept[name] = Setting(requested=value, resolved=value, observed=observed, source="lane")
    return kept
