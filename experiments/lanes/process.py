"""The process of a lane whose engine runs in rip's own process: this one, or rip started anew in its place.

Variables and interpreter of a running process cannot be changed, so rip starts itself anew with them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ...schemas.errors import BadInput, EngineFailed, stated_option, stated_setting
from .request import LaneRequest

if TYPE_CHECKING:
    from ...schemas.lane import Setting


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
    from ...schemas.lane import NOT_KEPT, Setting, may_be_secret

    kept = {}
    for variable, value in variables.items():
        name, observed = f"env.{variable}", os.environ.get(variable, "(not set)")
        if may_be_secret(name, value) or may_be_secret(name, observed):
            value = observed = NOT_KEPT
        kept[name] = Setting(requested=value, resolved=value, observed=observed, source="lane")
    return kept


_MARK = "RIP_LANE_PROCESS"
"""Variable of a process that was started for its lane; it is removed at once, so that no child has it."""
_HAS_RIP = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('rip') else 3)"
_ANSWER_S = 60.0


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


def check_interpreter(python: str) -> None:
    """Refuse an interpreter that cannot run rip.

    Raises:
        EngineFailed: It does not exist, or cannot be run.
        BadInput: rip is not installed there.
    """
    about = stated_option("python", python)
    try:
        code = subprocess.run(
            [python, "-P", "-c", _HAS_RIP], capture_output=True, timeout=_ANSWER_S
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no answer within {_ANSWER_S:g} s"
        raise EngineFailed(f"cannot be run: {reason}", "name an interpreter with {option}", about) from None
    if code:
        raise BadInput(
            "rip is not installed there, and this engine runs in rip's own process",
            f"{python} -m pip install 'rip-forensics[local]', or leave {{option}} out",
            about,
        )


def enter_lane_process(lane: LaneRequest) -> None:
    """Continue in the process that a lane needs: this one, or rip started anew in its place.

    Args:
        lane: The lane, whose engine may run anywhere.

    Raises:
        EngineFailed, BadInput: The interpreter cannot run rip.
    """
    if os.environ.pop(_MARK, None) is not None or not runs_in_process(lane.engine, lane.url):
        return
    variables, _ = split_variables(lane.settings)
    if lane.python is not None:
        check_interpreter(lane.python)
    if lane.python is not None or variables:
        _replace_process(lane.python or sys.executable, variables)


def _replace_process(python: str, variables: Mapping[str, str]) -> NoReturn:
    """Run the same command in another interpreter or environment: the process stays, so do its parent, its
    terminal and its exit code. `-P`: nothing in the current folder can stand in for a package."""
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [python, "-P", "-m", "rip", *sys.argv[1:]]
    os.execvpe(python, arguments, {**os.environ, **variables, _MARK: "1"})
