"""Starting a vLLM server: its command line, its environment, and whether rip's taps can be in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ....schemas.errors import BadInput, stated_setting
from ....schemas.lane import Setting
from ....schemas.trace import Finding
from ...request.findings import finding
from ..base import Opening, SettingSpec
from .server_process import Launch, StartedServer, has_module
from .settings import CACHE, SERVED_MODEL, server_arguments, server_environment

SERVER = "vllm.entrypoints.openai.api_server"
_PARSED_S = 180.0
"""Seconds that importing vLLM and reading its arguments may take."""
_WRONG_USAGE = 2
"""With which argument parsers end."""
_NOWHERE = "/nowhere/no-such-model"

REQUEST_SETTINGS: Mapping[str, SettingSpec] = {"cache": CACHE, "served_model": SERVED_MODEL}
"""Settings that are of the requests, not of the server."""

RECORDED = {"dtype": "dtype", "tensor-parallel-size": "tensor_parallel_size"}
"""Argument of the server → field of a recorded runtime that it repeats."""

EXECUTION = ("enforce-eager", "compilation-config", "O")
"""Arguments with which the user has chosen how the model is executed."""

MOST_LOGPROBS = 20
"""What vLLM's `--max-logprobs` is by default."""


@dataclass(frozen=True)
class StartedVllm:
    """A server on its way up.

    Attributes:
        tap: The folder that its taps write to; None where it has none.
        findings: What a reader of the trace should know.
    """

    server: StartedServer
    tap: Path | None
    findings: list[Finding]


def start_vllm(opening: Opening, settings: dict[str, Setting]) -> StartedVllm:
    """Start vLLM in `opening.python`, with taps where sites are to be observed and rip is installed there.

    Args:
        opening: Model, interpreter, settings, log.
        settings: Completed with the arguments that rip adds, and those that the envelope recorded.

    Raises:
        BadInput: No model, or an interpreter without vLLM.
        EngineFailed: It cannot be started.
    """
    model, python = opening.model or opening.model_name, opening.python or sys.executable
    check_vllm(model, python)
    recorded = _recorded(opening)
    stated = {**recorded, **opening.settings}
    for name in recorded.keys() - opening.settings.keys():
        settings[name] = Setting(requested=recorded[name], resolved=recorded[name], source="envelope")
    _allow_topk(opening.topk, stated, settings)
    environment = server_environment(stated)
    findings: list[Finding] = []
    tap = None
    if opening.sites is not None and not has_module(python, "rip.replay.vllm_tap"):
        findings.append(finding("rip-not-installed", python=python))
    elif opening.sites is not None:
        tap = _tap_folder(opening)
        environment |= _tap_environment(tap, opening)
        if not any(name in stated for name in EXECUTION):
            stated["enforce-eager"] = "true"
            settings["enforce-eager"] = Setting(resolved="true", source="rip")
            findings.append(finding("started-eager"))
    address = ["--host", "127.0.0.1", "--port", "{port}"]
    arguments = server_arguments(stated, REQUEST_SETTINGS)
    command = [python, "-m", SERVER, "--model", str(model), *address, *arguments]
    try:
        server = StartedServer(Launch.of(command, opening, settings, environment))
    except BaseException:
        if tap is not None:
            shutil.rmtree(tap, ignore_errors=True)  # nothing will ever be written there
        raise
    return StartedVllm(server, tap, findings)


def _tap_folder(opening: Opening) -> Path:
    """A new folder beside the trace: there is room for what is written, and its owner finds it."""
    log = opening.log or Path("server.log")
    return Path(tempfile.mkdtemp(prefix=f".{log.name}.", suffix=".tap", dir=log.parent))


def check_vllm(model: Path | str | None, python: str) -> None:
    """Refuse to start vLLM without a model, or with an interpreter that has none.

    Raises:
        BadInput: No model, or no vLLM.
        EngineFailed: The interpreter cannot be run.
    """
    if model is None:
        raise BadInput(
            "a server needs a model to serve", "name one with --model, or a running server with --url"
        )
    if not has_module(python, "vllm"):
        raise BadInput(
            f"{python} has no vLLM",
            "name the interpreter of its environment with --python, or a server with --url",
        )


def check_arguments(python: str, settings: Mapping[str, Any]) -> None:
    """Have vLLM's own parser read the arguments of a server; nothing is loaded.

    The server is started for a model that does not exist: it ends when it opens it, which is after its
    arguments were read. What is still wrong with them then is reported when it starts with the real model.

    Raises:
        BadInput: It refuses them.
    """
    arguments = tuple(server_arguments(settings, REQUEST_SETTINGS))
    refusal = _refusal(python, arguments) if arguments else None
    if refusal is None:
        return
    named = (name for name in settings if re.search(rf"--(no-)?{re.escape(name)}(?![\w-])", refusal))
    name = next(named, None)
    fix = f"{python} -m {SERVER} --help lists what it supports"
    if name is None:
        raise BadInput(f"vLLM refuses the arguments: {refusal}", fix)
    raise BadInput(f"vLLM refuses it: {refusal}", fix, stated_setting(f"{name}={settings[name]}"))


@cache
def _refusal(python: str, arguments: tuple[str, ...]) -> str | None:
    """Why vLLM's parser refuses arguments; None: it does not, or it could not be run."""
    try:
        done = subprocess.run(
            [python, "-m", SERVER, *arguments, "--model", _NOWHERE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PARSED_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    errors: list[str] = re.findall(r"^.*?\berror: (.+)$", done.stderr, re.MULTILINE)
    return errors[-1] if errors and done.returncode == _WRONG_USAGE else None


def _recorded(opening: Opening) -> dict[str, str]:
    """Arguments that repeat what the envelope recorded, where it was recorded on vLLM."""
    if opening.runtime.engine != "vllm":
        return {}
    stated = {argument: getattr(opening.runtime, field) for argument, field in RECORDED.items()}
    return {argument: str(value) for argument, value in stated.items() if value is not None}


def _allow_topk(topk: int, arguments: dict[str, str], settings: dict[str, Setting]) -> None:
    """Have the server return as many likely tokens as are recorded.

    Raises:
        BadInput: The user's own `max-logprobs` is lower.
    """
    stated = arguments.get("max-logprobs")
    if stated is None and topk > MOST_LOGPROBS:
        arguments["max-logprobs"] = str(topk)
        settings["max-logprobs"] = Setting(resolved=str(topk), source="rip")
    elif stated is not None and stated.isdecimal() and topk > int(stated):
        raise BadInput(
            f"--topk {topk}, but the server is started to return at most {stated} likely tokens",
            f"use --topk {stated}, or --set max-logprobs={topk}",
        )


def _tap_environment(tap: Path, opening: Opening) -> Mapping[str, str]:
    pattern = opening.sites.pattern if opening.sites is not None else ""
    return {
        "RIP_TAP": str(tap),
        "RIP_TAP_ONLY_ASKED": "1",
        "RIP_TAP_TOPK": str(opening.topk),
        **({"RIP_TAP_SITES": pattern} if pattern else {}),
    }
