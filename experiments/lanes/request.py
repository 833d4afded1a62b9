"""A lane as it was requested: options of the command line joined with a lane file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ...schemas.errors import BadInput, stated_option
from ...schemas.redact import holds_secret

LANE_SUFFIX = ".toml"


@dataclass(frozen=True)
class LaneRequest:
    """What options or a lane file say of one way to run an engine.

    Attributes:
        name: What the lane is called in the trace; before `read_lane` it may be the path of a lane file.
        engine: Registered name or `module:Class`; None: what the server at `url` reports, else `hf`.
        model: What the user calls the model.
        api_key_env: The environment variable that holds the key for `url`.
        tap: The folder that the taps in a running server write to.
        settings: `KEY=VALUE` texts; later ones win.
        neighbours: What runs beside the requests, as `--neighbours` takes it.
    """

    name: str
    engine: str | None = None
    model: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    python: str | None = None
    tap: Path | None = None
    settings: tuple[str, ...] = ()
    neighbours: str | None = None


def setting_key(name: str) -> str:
    """What all spellings of one setting share: `max-model-len`, `max_model_len`."""
    return name if name.startswith("env.") else name.replace("-", "_")


def read_lane(request: LaneRequest) -> LaneRequest:
    """Join options with the lane file that `request.name` names, if it does; options win over the file.

    Raises:
        BadInput: The file cannot be used.
    """
    if not request.name.endswith(LANE_SUFFIX):
        return request
    from ...schemas.lane import load_lane

    path = Path(request.name)
    file = load_lane(path)
    neighbours = None if file.neighbours is None else str(file.neighbours)
    return replace(
        request,
        name=path.stem,
        engine=request.engine or file.engine,
        model=request.model or file.model,
        url=request.url or file.url,
        api_key_env=request.api_key_env or file.api_key_env,
        python=request.python or file.python,
        tap=request.tap or (Path(file.tap) if file.tap else None),
        settings=(*file.settings(), *request.settings),
        neighbours=neighbours if request.neighbours is None else request.neighbours,
    )


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def read_server_key(url: str | None, api_key_env: str | None) -> str | None:
    """The key of the server at `url`, from the environment variable that was named; None: none was.

    Raises:
        BadInput: There is no server, or the variable is not set.
    """
    if api_key_env is None:
        return None
    if url is None:
        raise BadInput("no server is named that needs a key", "add --url", stated_option("api_key_env"))
    key = os.environ.get(api_key_env)
    if not key:
        named = _VARIABLE.fullmatch(api_key_env) is not None and not holds_secret(api_key_env)
        raise BadInput(
            f"the environment variable {api_key_env} is not set"
            if named
            else "this is no name of a variable",
            "export it; the option takes its name, not the key",
            stated_option("api_key_env"),
        )
    return key
