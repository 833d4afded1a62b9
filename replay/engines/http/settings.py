"""Settings of server engines: how requests are sent, and what a server is started with.

timeout=600          a setting of the client (the same for all servers)
cache=warm           a setting of the engine's requests
max-model-len=2048   an argument of the server that is started
env.OMP_NUM_THREADS=1   a variable of its environment
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....schemas.errors import BadInput, stated_setting
from ....schemas.lane import NOT_KEPT, Setting, may_be_secret
from ..base import BATCH_SIZE, SettingSpec, defaults, split_pair

_DAY_S = 86_400
CLIENT_SETTINGS: dict[str, SettingSpec] = {
    "batch_size": BATCH_SIZE,
    "arrival": SettingSpec("choice", "when a batch is sent", ("together", "recorded"), default="together"),
    "timeout": SettingSpec(
        "number", "seconds until an answer that has not ended is given up", least=1, most=_DAY_S, default=600
    ),
    "ready_timeout": SettingSpec(
        "number", "seconds until a server that is not ready is given up", least=1, most=_DAY_S, default=900
    ),
    "port": SettingSpec("number", "port of 127.0.0.1; 0: a free one", most=65_535, default=0),
}
"""Settings of every client."""
START_ONLY = ("ready_timeout", "port")

CACHE = SettingSpec(
    "choice",
    "cold: no prefix cached for another request is used; warm: the server's prefix cache is used",
    ("cold", "warm"),
    default="cold",
)
SERVED_MODEL = SettingSpec("text", "name of the served model that is called")

_KEY = r"env\.[A-Za-z_][A-Za-z0-9_]*|(?!env\.)[A-Za-z][A-Za-z0-9_.-]*"


def parse_settings(pairs: Sequence[str], own: Mapping[str, SettingSpec], starts: bool) -> dict[str, Any]:
    """Read `key=value` texts; the last one of a key applies. Argument names may be written with `_` or `-`.

    Args:
        own: Settings of the engine's requests.
        starts: A server will be started, so that its arguments and environment can be chosen.

    Raises:
        BadInput: A value that does not fit, or an argument for a server that is only called.
    """
    settings = {**CLIENT_SETTINGS, **own}
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, text = split_pair(pair, _KEY, "timeout=60")
        known = settings.get(key)
        if not starts and (known is None or key in START_ONLY):
            raise BadInput(
                "not a setting of a server that is already running",
                f"with --url there are: {', '.join(sorted(settings.keys() - set(START_ONLY)))}",
                stated_setting(pair),
            )
        if known is None and not key.startswith("env."):
            key = key.replace("_", "-")
        parsed[key] = text if known is None else known.read(key, text)
    return parsed


def resolve_settings(stated: Mapping[str, Any], known: Mapping[str, SettingSpec]) -> dict[str, Setting]:
    """Each setting with its value and source: lane (`--set`) or engine default.

    Variables of the environment whose names suggest a secret are recorded without their value.
    """
    resolved = {
        name: Setting(resolved=value, source="engine default")
        for name, value in defaults(known).items()
        if name not in stated
    }
    for name, value in stated.items():
        shown = NOT_KEPT if may_be_secret(name, value) else value
        resolved[name] = Setting(requested=shown, resolved=shown, source="lane")
    return resolved


def server_settings(stated: Mapping[str, Any], own: Mapping[str, SettingSpec]) -> dict[str, Any]:
    """The settings that are the server's own: neither of the client, nor of the requests, nor variables."""
    return {
        name: value
        for name, value in stated.items()
        if name not in CLIENT_SETTINGS and name not in own and not name.startswith("env.")
    }


def server_arguments(stated: Mapping[str, Any], own: Mapping[str, SettingSpec]) -> list[str]:
    """The arguments of a server: `max-model-len=2048` → `--max-model-len 2048`; `x=true` → `--x`, `x=false` →
    `--no-x`."""
    arguments: list[str] = []
    for name, value in server_settings(stated, own).items():
        if value in ("true", "false"):
            arguments.append(f"--{'' if value == 'true' else 'no-'}{name}")
        else:
            arguments += [f"--{name}", str(value)]
    return arguments


def server_environment(stated: Mapping[str, Any]) -> dict[str, str]:
    """The variables that `env.NAME=VALUE` states."""
    return {
        name.removeprefix("env."): str(value) for name, value in stated.items() if name.startswith("env.")
    }
