"""A lane whose engine runs in rip's own process, under other variables or another interpreter than this one.

Variables and interpreter of a running process cannot be changed, so rip starts itself anew with them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ...schemas.errors import BadInput

if TYPE_CHECKING:
    from ...schemas.trace import Setting
    from .resolve import Chosen

_VARIABLE = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")
_MARK = "RIP_LANE_PROCESS"
"""Variable of a process that was started for its lane; it is taken away at once, so that no child has it."""


def runs_in_process(engine: str | None, url: str | None) -> bool:
    """Whether an engine runs in the process of rip itself.

    Raises:
        BadInput: There is no such engine.
    """
    if engine is None:
        return url is None
    from ...replay.engines.http.server import ServerEngine
    from ...replay.engines.registry import engine_class

    kind = engine_class(engine)
    return not (isinstance(kind, type) and issubclass(kind, ServerEngine))


def split_variables(settings: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables among `--set` texts by name, and the texts that are none.

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
                f"--set {pair}: not of the form env.NAME=VALUE", "for example --set env.OMP_NUM_THREADS=1"
            )
        variables[named[1]] = value
    return variables, tuple(others)


def recorded(variables: Mapping[str, str]) -> dict[str, Setting]:
    """Variables as the trace keeps them; what may be a secret without its value."""
    from ...schemas.trace import NOT_KEPT, Setting, may_be_secret

    kept = {}
    for name, value in variables.items():
        setting, found = f"env.{name}", os.environ.get(name, "(not set)")
        if may_be_secret(setting):
            value = found = NOT_KEPT
        kept[setting] = Setting(requested=value, resolved=value, observed=found, source="lane")
    return kept


def check_interpreter(python: str) -> None:
    """Refuse an interpreter that cannot run rip.

    Raises:
        EngineFailed: It is not there, or cannot be run.
        BadInput: rip is not installed there.
    """
    from ...replay.engines.interpreter import has_module

    if not has_module(python, "rip", "-P"):
        raise BadInput(
            f"{python} has no rip: an engine in rip's own process runs where rip does",
            f"{python} -m pip install 'rip-forensics[local]', or leave --python out",
        )


def enter(chosen: Chosen) -> None:
    """Go on in the process that a lane asks for: this one, or rip started anew in its place.

    Args:
        chosen: The lane, whose engine may run anywhere.

    Raises:
        EngineFailed, BadInput: The interpreter cannot run rip.
    """
    if os.environ.pop(_MARK, None) is not None or not runs_in_process(chosen.engine, chosen.url):
        return
    variables, _ = split_variables(chosen.settings)
    if chosen.python is not None:
        check_interpreter(chosen.python)
    if chosen.python is not None or variables:
        _become(chosen.python or sys.executable, variables)


def _become(python: str, variables: Mapping[str, str]) -> NoReturn:
    """Take the same command up in another interpreter or environment: the process stays, so do its parent,
    its terminal and its exit code. `-P`: nothing in the current folder can stand in for a package."""
    sys.stdout.flush()
    sys.stderr.flush()
    words = [python, "-P", "-m", "rip", *sys.argv[1:]]
    os.execvpe(python, words, {**os.environ, **variables, _MARK: "1"})
