"""The lane file: one way to run an engine, as a person writes it down (TOML).

It does not know which settings an engine has.
"""

from __future__ import annotations

import os
import re
import tomllib
from io import BufferedReader
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from .base import Record, describe_validation_error
from .choices import CaptureLevel as CaptureLevel
from .choices import Mode as Mode
from .errors import BadInput, Stated
from .jsontext import MAX_DEPTH, is_deeper
from .open_files import open_stream
from .redact import holds_secret, is_secret

NOT_KEPT = "(not kept)"
"""What a trace holds in place of a value that may be a secret."""
AS_SERVED = "(as served)"
"""What a trace calls the model of a server when nobody named it."""

OWN_PROGRAM = "own"
"""The engine of a trace that a program of the user's own wrote (`rip.tap`): rip cannot run it."""

_SECRET = re.compile(r"(key|token|secret|passw\w*|credential|auth)s?(?![a-z])", re.IGNORECASE)
"""`HF_TOKEN`, `APIKEY`; `TOKENIZERS_PARALLELISM` and `AUTHOR` are none."""
MAX_LANE_BYTES = 1 << 20
"""Of a lane file; a long one has some kilobytes."""
MAX_INTEGER = 1 << 63
_SHOWN_IN = "docs/engines.md shows a lane file"


def may_be_secret(setting: str, value: object = None) -> bool:
    """Whether a setting may hold a secret.

    Its value has the form of one, or of an address with a login; or it is a variable (`env.NAME`) whose name
    suggests one.
    """
    if isinstance(value, str) and holds_secret(value):
        return True
    return setting.startswith("env.") and (_SECRET.search(setting) is not None or is_secret(setting[4:]))


class LaneFile(Record):
    """The fields of a lane file; whatever is left out comes from the command line or is the default."""

    engine: str | None = None
    """Registered name, or `module:Class`."""
    model: str | None = None
    """As `--model`; a path is relative to the file."""
    url: str | None = None
    """A running server."""
    api_key_env: str | None = None
    """The environment variable that holds the key for it."""
    python: str | None = None
    """Interpreter of the engine's own environment; for an engine in rip's own process, the one that runs rip.
    A path is relative to the file."""
    tap: str | None = None
    """The folder that the taps in a running vLLM server write to; relative to the file."""
    neighbours: int | str | None = None
    """As `--neighbours`: a number, or a request set, whose path is relative to the file."""
    set: dict[str, Any] = Field(default={})
    """Settings, as `--set KEY=VALUE`."""
    env: dict[str, str] = Field(default={})
    """Environment variables of a server that is started, or of rip's own process for an engine in it."""

    def settings(self) -> list[str]:
        """Its settings and variables as `--set` takes them."""
        settings = [f"{key}={_text(value)}" for key, value in self.set.items()]
        return settings + [f"env.{name}={value}" for name, value in self.env.items()]


def load_lane(path: Path) -> LaneFile:
    """Read a lane file.

    Raises:
        BadInput: Missing, no TOML, or a field that a lane does not have.
    """
    try:
        with BufferedReader(open_stream(path)) as file:
            content = file.read(MAX_LANE_BYTES + 1)
        if len(content) > MAX_LANE_BYTES:
            raise BadInput(f"{path} is longer than any lane ({MAX_LANE_BYTES >> 10} KiB)", "check the file")
        raw = tomllib.loads(content.decode("utf-8"))
        _check_values(raw, path)
    except OSError as error:
        about = Stated("lane", str(path), "--lane")
        raise BadInput(f"cannot be read: {error.strerror}", "check the path of {option}", about) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {_cut(str(error))}", _SHOWN_IN) from None
    except (ValueError, RecursionError):  # an integer of thousands of digits; brackets by the thousand
        raise BadInput(
            f"{path}: a number of too many digits, or values nested too deeply",
            _SHOWN_IN,
        ) from None
    if unknown := raw.keys() - LaneFile.model_fields.keys():
        raise BadInput(
            f"{path}: a lane has no field {_cut(min(unknown))!r}",
            f"it has: {', '.join(LaneFile.model_fields)}; settings of the engine go under [set]",
        )
    try:
        lane = LaneFile.model_validate(raw)
    except ValidationError as error:
        raise BadInput(f"{path}: {describe_validation_error(error)}", "see docs/engines.md") from None
    folder = path.parent
    near = {
        name: str(folder / value)
        for name in ("model", "python", "tap", "neighbours")
        if isinstance(value := getattr(lane, name), str) and os.path.exists(folder / value)
    }
    if "python" in near and os.sep not in near["python"]:
        near["python"] = f"./{near['python']}"  # without a folder it would be searched in PATH
    return lane.model_copy(update=near)


def _check_values(raw: object, path: Path) -> None:
    """Refuse what no setting can be.

    Raises:
        BadInput: Values are nested too deeply, or an integer has no 64 bits.
    """
    if is_deeper(raw, MAX_DEPTH):
        raise BadInput(f"{path}: nested more than {MAX_DEPTH} deep", _SHOWN_IN)
    waiting = [raw]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
            raise BadInput(f"{path}: an integer does not fit 64 bits", "correct it, or write it as a string")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SHOWN = 200
"""Characters of a foreign text that an error shows."""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


OF_OPTION = "option"
"""Source of a sampling field that the replay stated (`--sampling`), whatever the envelope says."""


class Setting(Record):
    """One setting in its three readings. A difference between them is itself a finding."""

    requested: Any = None
    resolved: Any = None
    """What rip passed on."""
    observed: Any = None
    """What the engine or process reports."""
    source: str
    """Where the resolved value came from: `envelope`, `option` (a sampling field of `--sampling`), `lane`,
    `generation_config`, `told by the server`, `server default`, `engine default` and the like."""

    @property
    def is_stated(self) -> bool:
        """Of a sampling field: the request states it, or the replay did in its place; no default."""
        return self.source in ("envelope", OF_OPTION)


class Lane(Record):
    """One way to run an engine."""

    name: str
    engine: str
    model: str | None = None
    settings: dict[str, Setting] = {}
    url: str | None = None
    """The server that was called; absent: the engine ran in this process, or was started."""
    api_key_env: str | None = None
    """The environment variable that held the key for it; never the key."""
    python: str | None = None
    """Interpreter that an engine's server was started with."""
    tap: str | None = None
    """The folder that a running server's taps wrote to."""
