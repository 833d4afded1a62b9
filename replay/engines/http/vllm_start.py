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

from ....schemas.errors import BadInput, EngineFailed, stated_setting
from ....schemas.trace import Setting
from ..base import Opening
from .settings import server_arguments, server_environment
from .started import StartedServer

HAS_RIP = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('rip.replay.vllm_tap') else 3)"
HAS_VLLM = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('vllm') else 3)"
SERVER = "vllm.entrypoints.openai.api_server"
_ANSWER_S = 60.0
_PARSED_S = 180.0
"""Seconds that importing vLLM and reading its arguments may take."""
_WRONG_USAGE = 2
"""With which argument parsers end."""
_NOWHERE = "/nowhere/no-such-model"

OWN = ("cache", "served_model")
"""Settings that are of the requests, not of the server."""

RECORDED = {"dtype": "dtype", "tensor-parallel-size": "tensor_parallel_size"}
"""Argument of the server → field of a recorded runtime that it repeats."""

UNCOMPILED = ("enforce-eager", "compilation-config", "O")
"""Arguments with which the user has chosen how the model is executed."""

MOST_LOGPROBS = 20
"""What vLLM's `--max-logprobs` is where nothing is said."""


@dataclass(frozen=True)
class StartedVllm:
    """A server on its way up.

    Attributes:
        tap: The folder that its taps write to; None where it has none.
        findings: What a reader of the trace should know.
    """

    server: StartedServer
    tap: Path | None
    findings: list[str]


def start_vllm(opening: Opening, settings: dict[str, Setting]) -> StartedVllm:
    """Start vLLM in `opening.python`, with taps where sites are to be observed and rip is installed there.

    Args:
        opening: Model, interpreter, settings, log.
        settings: Completed with the arguments that rip adds, and those that the envelope recorded.

    Raises:
        BadInput: No model, or an interpreter without vLLM.
        EngineFailed: It cannot be started.
    """
    model = opening.model or opening.model_name
    python = opening.python or sys.executable
    check_vllm(model, python)
    log = opening.log or Path("server.log")
    findings: list[str] = []
    given = {**_recorded(opening), **opening.given}
    for name in given.keys() - opening.given.keys():
        value = given[name]
        settings[name] = Setting(requested=value, resolved=value, source="envelope")
    _allow_topk(opening.topk, given, settings)
    environment = server_environment(given)
    tap = None
    if opening.sites is not None:
        if _holds(python, HAS_RIP):
            # Beside the trace: there is room for what comes, and its owner looks there.
            tap = Path(tempfile.mkdtemp(prefix=f".{log.name}.", suffix=".tap", dir=log.parent))
            environment |= _tap_environment(tap, opening)
            if not any(name in given for name in UNCOMPILED):
                given["enforce-eager"] = "true"
                settings["enforce-eager"] = Setting(resolved="true", source="rip")
                findings.append(
                    "the server was started with --enforce-eager, so that its modules can be observed: what "
                    "only compiled code or CUDA graphs do is not in this trace"
                )
        else:
            findings.append(
                f"rip is not installed in the environment of {python}, so no site of vLLM was observed: "
                f"{python} -m pip install rip-forensics"
            )
    command = [
        python,
        "-m",
        SERVER,
        "--model",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        *server_arguments(given, dict.fromkeys(OWN, "")),
    ]
    try:
        server = StartedServer(
            command,
            environment,
            log,
            int(settings["port"].resolved),
            "/health",
            float(settings["ready_timeout"].resolved),
            opening.say,
        )
    except BaseException:
        if tap is not None:
            shutil.rmtree(tap, ignore_errors=True)  # nobody will ever write there
        raise
    return StartedVllm(server, tap, findings)


def check_vllm(model: Path | str | None, python: str) -> None:
    """Refuse to start vLLM without a model, or with an interpreter that has none.

    Raises:
        BadInput: So it is.
        EngineFailed: The interpreter cannot be run.
    """
    if model is None:
        raise BadInput(
            "a server needs a model to serve", "name one with --model, or a running server with --url"
        )
    if not _holds(python, HAS_VLLM):
        raise BadInput(
            f"{python} has no vLLM",
            "name the interpreter of its environment with --python, or a server with --url",
        )


def check_arguments(python: str, given: Mapping[str, Any]) -> None:
    """Have vLLM's own parser read the arguments of a server; nothing is loaded.

    The server is started for a model that is nowhere: it ends when it looks for it, which is after its
    arguments were read. What is still wrong with them then is told when it starts with the real model.

    Args:
        given: Parsed settings.

    Raises:
        BadInput: It does not take them.
    """
    arguments = tuple(server_arguments(given, dict.fromkeys(OWN, "")))
    said = _refusal(python, arguments) if arguments else None
    if said is None:
        return
    named = (name for name in given if re.search(rf"--(no-)?{re.escape(name)}(?![\w-])", said))
    name = next(named, None)
    fix = f"{python} -m {SERVER} --help lists its arguments"
    if name is None:
        raise BadInput(f"vLLM does not accept the arguments: {said}", fix)
    raise BadInput(f"vLLM does not accept it: {said}", fix, stated_setting(f"{name}={given[name]}"))


@cache
def _refusal(python: str, arguments: tuple[str, ...]) -> str | None:
    """What vLLM's parser says against arguments; None: nothing, or it could not be asked."""
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
    said: list[str] = re.findall(r"^.*?\berror: (.+)$", done.stderr, re.MULTILINE)
    return said[-1] if said and done.returncode == _WRONG_USAGE else None


def _recorded(opening: Opening) -> dict[str, str]:
    """Arguments that repeat what the envelope recorded, where it was recorded on vLLM."""
    if opening.runtime.engine != "vllm":
        return {}
    stated = {argument: getattr(opening.runtime, field) for argument, field in RECORDED.items()}
    return {argument: str(value) for argument, value in stated.items() if value is not None}


def _allow_topk(topk: int, given: dict[str, str], settings: dict[str, Setting]) -> None:
    """Have the server tell as many likely tokens as are wanted.

    Raises:
        BadInput: The user's own `max-logprobs` is lower.
    """
    stated = given.get("max-logprobs")
    if stated is None and topk > MOST_LOGPROBS:
        given["max-logprobs"] = str(topk)
        settings["max-logprobs"] = Setting(resolved=str(topk), source="rip")
    elif stated is not None and stated.isdecimal() and topk > int(stated):
        raise BadInput(
            f"{topk} likely tokens are wanted (--topk), and the server is to tell at most {stated}",
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


def _holds(python: str, question: str) -> bool:
    """Whether an interpreter answers such a question with yes.

    Raises:
        EngineFailed: It cannot be run.
    """
    try:
        return (
            subprocess.run([python, "-c", question], capture_output=True, timeout=_ANSWER_S).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise EngineFailed(f"{python} cannot be run: {reason}", "name an interpreter with --python") from None
