"""Settings of server engines: how requests are sent, and what a server is started with.

timeout=600          a setting of the client (the same for all servers)
cache=warm           a setting of the engine's requests
max-model-len=2048   an argument of the server that is started
env.OMP_NUM_THREADS=1   a variable of its environment
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ....schemas.errors import BadInput, stated_setting
from ....schemas.lane import NOT_KEPT, may_be_secret
from ....schemas.trace import Setting

CLIENT_SETTINGS: dict[str, Any] = {
    "batch_size": 1,
    "arrival": "together",
    "timeout": 600,
    "ready_timeout": 900,
    "port": 0,
}
"""Settings of every client, with what applies where nothing is said."""

CHOICES = {
    "arrival": ("together", "recorded"),
    "cache": ("cold", "warm"),
    "stream": ("true", "false"),
    "max_tokens_field": ("max_tokens", "max_completion_tokens"),
}
MOST = {"batch_size": 10_000, "timeout": 86_400, "ready_timeout": 86_400, "port": 65_535}
START_ONLY = ("ready_timeout", "port")
_NUMBERS = frozenset(MOST)


def parse_settings(pairs: Sequence[str], engine: str, own: Mapping[str, str], starts: bool) -> dict[str, Any]:
    """Read `key=value` texts; the last one of a key applies. Argument names may be written with `_` or `-`.

    Args:
        engine: Its name, for messages.
        own: Settings of the engine's requests → what they do.
        starts: A server will be started, so that its arguments and environment can be chosen.

    Raises:
        BadInput: A value that does not fit, or an argument for a server that is only called.
    """
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not re.fullmatch(
            r"env\.[A-Za-z_][A-Za-z0-9_]*|(?!env\.)[A-Za-z][A-Za-z0-9_.-]*", key
        ):
            raise BadInput("not of the form KEY=VALUE", "for example timeout=60", stated_setting(pair))
        known = key in CLIENT_SETTINGS or key in own
        if not starts and (not known or key in START_ONLY):
            raise BadInput(
                "not a setting of a server that is already running",
                f"with --url there are: {', '.join(sorted({*CLIENT_SETTINGS, *own} - set(START_ONLY)))}",
                stated_setting(pair),
            )
        if not known and not key.startswith("env."):
            key = key.replace("_", "-")
        parsed[key] = _value(key, text, pair) if known else text
    return parsed


def _value(key: str, text: str, pair: str) -> Any:
    if key in _NUMBERS:
        least = 0 if key == "port" else 1
        if not re.fullmatch(r"[0-9]{1,6}", text) or not least <= int(text) <= MOST[key]:
            raise BadInput(
                f"not a whole number from {least} to {MOST[key]}",
                f"for example {key}=8",
                stated_setting(pair),
            )
        return int(text)
    if key in CHOICES and text not in CHOICES[key]:
        raise BadInput(
            f"not a value of {key}", f"choose one of: {', '.join(CHOICES[key])}", stated_setting(pair)
        )
    return text


def resolve_settings(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Setting]:
    """Each setting with its value and source: lane (`--set`) or engine default.

    Variables of the environment whose names sound like secrets are recorded without their value.
    """
    resolved = {
        name: Setting(resolved=value, source="engine default")
        for name, value in defaults.items()
        if name not in given
    }
    for name, value in given.items():
        shown = NOT_KEPT if may_be_secret(name) else value
        resolved[name] = Setting(requested=shown, resolved=shown, source="lane")
    return resolved


def server_arguments(given: Mapping[str, Any], own: Mapping[str, str]) -> list[str]:
    """The arguments of a server: `max-model-len=2048` → `--max-model-len 2048`; `x=true` → `--x`, `x=false` →
    `--no-x`."""
    arguments: list[str] = []
    for name, value in given.items():
        if name in CLIENT_SETTINGS or name in own or name.startswith("env."):
            continue
        if value in ("true", "false"):
            arguments.append(f"--{'' if value == 'true' else 'no-'}{name}")
        else:
            arguments += [f"--{name}", str(value)]
    return arguments


def server_environment(given: Mapping[str, Any]) -> dict[str, str]:
    """The variables that `env.NAME=VALUE` asks for."""
    return {name.removeprefix("env."): str(value) for name, value in given.items() if name.startswith("env.")}
