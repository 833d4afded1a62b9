"""Reader of Ollama's log, one `time=… level=… msg=…` line at a time."""

from __future__ import annotations

import re
import shlex

from ....schemas.fingerprint import NOT_SET, unavailable
from ...engine_arguments.command_line import split
from ...fields.known_names import ALL_VARIABLES
from ..paste import Paste
from .lines import between

_PAIR = re.compile(r'(\w{1,40})=("(?:[^"\\]|\\.){0,8000}"|\S{1,2000})')
_BLOB = re.compile(r"sha256-([0-9a-f]{64})$")


def read_line(line: str, paste: Paste) -> bool:
    """One `time=… level=… msg=…` line of Ollama."""
    fields = {name: value.strip('"').replace('\\"', '"') for name, value in _PAIR.findall(line)}
    paste.place["engine"] = "ollama"
    message = fields.get("msg", "")
    if message == "server config":
        paste.state("engine.name", "ollama")
        _read_ollama_variables(fields.get("env", ""), paste)
    elif message.startswith("Listening on "):
        paste.state("engine.name", "ollama")
        version = between(message, "(version ", ")")
        paste.state("engine.version", version)
    elif message == "inference compute":
        _read_ollama_device(fields, paste)
    elif "cmd" in fields and message.startswith("starting"):
        _read_ollama_command(fields["cmd"], paste)
    elif (blob := _BLOB.search(fields.get("model", ""))) is not None:
        paste.state("model.sha256", blob[1])
        if fields.get("parallel", "").isdigit():
            paste.state("engine.max_sequences", int(fields["parallel"]))
    else:
        return False
    return True


def _read_ollama_variables(text: str, paste: Paste) -> None:
    """`map[A:1 B: C:x y]`: Go prints a map so; an empty value is a variable that is not set."""
    found: dict[str, str] = {}
    name = ""
    for word in (between(text, "map[", "]") or "").split(" "):
        key, sign, value = word.partition(":")
        if sign and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{1,60}", key) and (key.isupper() or key.islower()):
            name = key
            found[name] = value
        elif name:
            found[name] += f" {word}"
    for name, value in found.items():
        if name in ALL_VARIABLES:
            reading = value or unavailable(NOT_SET, paste.source)
            paste.state(f"determinism.{name}", reading)
        elif name == "CUDA_VISIBLE_DEVICES":
            paste.state(f"gpus.{name}", value or unavailable(NOT_SET, paste.source))
        elif name.startswith("OLLAMA_") and value and name not in _NOT_NUMERIC:
            paste.enter("engine.environment", name, value)


_NOT_NUMERIC = frozenset(
    {"OLLAMA_DEBUG", "OLLAMA_HOST", "OLLAMA_MODELS", "OLLAMA_ORIGINS", "OLLAMA_REMOTES", "OLLAMA_KEEP_ALIVE"}
    | {"OLLAMA_LOAD_TIMEOUT", "OLLAMA_NOHISTORY", "OLLAMA_NOPRUNE", "OLLAMA_RUNNERS_DIR", "OLLAMA_TMPDIR"}
    | {"OLLAMA_MAX_QUEUE", "OLLAMA_EDITOR", "OLLAMA_NO_CLOUD"}
)
"""Ollama's variables that change no number."""


def _read_ollama_device(fields: dict[str, str], paste: Paste) -> None:
    number = str(len(paste.place.setdefault("gpus", set())))
    if fields.get("library") == "cpu":
        return
    paste.place["gpus"].add(number)
    paste.enter("gpus.name", number, fields.get("name") or fields.get("description") or "not named")
    if "compute" in fields:
        paste.enter("gpus.compute_capability", number, fields["compute"])
    if re.fullmatch(r"\d{1,3}\.\d{1,3}", fields.get("driver", "")):
        paste.state("driver.cuda_version", fields["driver"])


def _read_ollama_command(command: str, paste: Paste) -> None:
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    settings = split("llama.cpp", words[1:])
    blob = _BLOB.search(str(settings.pop("model", "")))
    paste.state("model.sha256", blob[1] if blob else None)
    settings.pop("port", None)
    paste.state("engine.name", "ollama")
    paste.state_settings("llama.cpp", settings)
