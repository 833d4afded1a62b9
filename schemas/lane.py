"""The lane file: one way to run an engine, as a person writes it down (TOML).

It does not know which settings an engine has.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from .base import Record, describe_validation_error
from .errors import BadInput


class LaneFile(Record):
    """What a lane file may say; whatever is left out is taken from the command line or its default."""

    engine: str | None = None
    """Registered name, or `module:Class`."""
    model: str | None = None
    """As `--model`; a path is relative to the file."""
    url: str | None = None
    """A server that runs already."""
    api_key_env: str | None = None
    """The environment variable that holds the key for it."""
    python: str | None = None
    """Interpreter of the engine's own environment; for an engine in rip's own process, the one that runs rip.
    A path is relative to the file."""
    tap: str | None = None
    """The folder that a running vLLM server's taps write to; relative to the file."""
    neighbours: int | str | None = None
    """As `--neighbours`: a number, or a request set, whose path is relative to the file."""
    set: dict[str, Any] = Field(default={})
    """Settings, as `--set KEY=VALUE`."""
    env: dict[str, str] = Field(default={})
    """Environment variables of a server that is started, or of rip's own process for an engine in it."""

    def settings(self) -> list[str]:
        """Its settings and variables as `--set` would be given them."""
        said = [f"{key}={_text(value)}" for key, value in self.set.items()]
        return said + [f"env.{name}={value}" for name, value in self.env.items()]


def load_lane(path: Path) -> LaneFile:
    """Read a lane file.

    Raises:
        BadInput: Missing, no TOML, or a field that a lane does not have.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", "check the path of --lane") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}", "see docs/engines.md for a lane file") from None
    if unknown := raw.keys() - LaneFile.model_fields.keys():
        raise BadInput(
            f"{path}: a lane has no field {min(unknown)!r}",
            f"it has: {', '.join(LaneFile.model_fields)}; what the engine is given goes under [set]",
        )
    try:
        lane = LaneFile.model_validate(raw)
    except ValidationError as error:
        raise BadInput(f"{path}: {describe_validation_error(error)}", "see docs/engines.md") from None
    folder = path.parent
    near = {
        name: str(folder / value)
        for name in ("model", "python", "tap", "neighbours")
        if isinstance(value := getattr(lane, name), str) and (folder / value).exists()
    }
    if "python" in near and os.sep not in near["python"]:
        near["python"] = f"./{near['python']}"  # without a folder it would be looked for in PATH
    return lane.model_copy(update=near)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
