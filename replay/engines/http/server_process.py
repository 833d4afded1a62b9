"""A server that rip starts: its interpreter, its process, its port, its log, and its clean end."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from ....schemas.errors import BadInput, EngineFailed
from ....schemas.lane import Setting
from ..base import Opening

_QUESTION = "import importlib.util as u, sys; sys.exit(0 if u.find_spec(sys.argv[1]) else 3)"
_ANSWER_S = 60.0


def has_module(python: str, module: str, *flags: str) -> bool:
    """Whether an interpreter finds a module.

    Raises:
        EngineFailed: It cannot be run.
    """
    try:
        done = subprocess.run(
            [python, *flags, "-c", _QUESTION, module], capture_output=True, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise EngineFailed(f"{python} cannot be run: {reason}", "name an interpreter with --python") from None
    return done.returncode == 0


READY_PATH = "/health"
"""Answers 200 when requests are accepted."""
POLL_S = 0.2
STOP_S = 6.0
"""Seconds that a server has to end by itself before it is killed."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_LOG_END = 1 << 16
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
_HARMLESS, _ERROR_LEVELS = ("DEBUG", "INFO", "WARN", "WARNING"), ("ERROR", "CRITICAL", "FATAL")
_NAMES_ERROR = re.compile(r"\b\w*(Error|Exception)\b:")
"""`ValueError: …`, and the exceptions of modules: `torch.OutOfMemoryError: …`."""
_BEGINS_ERROR = re.compile(r"\b(error|fatal)\b:", re.IGNORECASE)
"""`error: …`, as argument parsers and programs in C write it."""
_PYDANTIC = re.compile(r"\bvalidation errors? for \w+$")
_LEVEL_WITHIN = 60
"""Characters at the beginning of a log line among which its level stands."""


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Attributes:
        command: Program and arguments; `{port}` in them is replaced.
        environment: Variables beside those of this process.
        log: Where its output goes; an earlier one is overwritten.
        port: The port; 0: a free one.
        ready_timeout_s: Seconds until a server that is not ready is given up.
        say: Called with what is being waited for.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    port: int = 0
    ready_timeout_s: float = 900.0
    say: Callable[[str], None] | None = None

    @classmethod
    def of(
        cls,
        command: Sequence[str],
        opening: Opening,
        settings: Mapping[str, Setting],
        environment: Mapping[str, str],
    ) -> Launch:
        """The launch of a command with the resolved settings of the engine that is opened."""
        return cls(
            command,
            environment,
            opening.log or Path("server.log"),
            int(settings["port"].resolved),
            float(settings["ready_timeout"].resolved),
            opening.say,
        )


class StartedServer:
    """One server process with all its children, on a port of 127.0.0.1.

    Raises:
        EngineFailed: It cannot be started, or the port is in use.
    """

    def __init__(self, launch: Launch) -> None:
        self.log, self._launch = launch.log, launch
        port = _unused_port(launch.port)
        self.url = f"http://127.0.0.1:{port}"
        command = [part.replace("{port}", str(port)) for part in launch.command]
        try:
            with open(launch.log, "wb", opener=_private) as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **launch.environment},
                    start_new_session=True,  # so that its children can be ended with it
                    preexec_fn=end_with_parent(),
                )
        except FileNotFoundError:
            raise EngineFailed(
                f"{command[0]} does not exist", "name the engine's own interpreter with --python"
            ) from None
        except OSError as error:
            raise EngineFailed(
                f"{command[0]} could not be started: {error.strerror or error}",
                "check the file and its permissions",
            ) from None

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until requests are accepted.

        Raises:
            EngineFailed: It ended, or was not ready in time.
        """
        started, launch = time.monotonic(), self._launch
        with httpx.Client(trust_env=False, timeout=5.0) as http:
            while True:
                if exit_reason := self.exit_reason():
                    raise EngineFailed(f"the server could not be started: {exit_reason}", f"see {self.log}")
                try:
                    if http.get(f"{self.url}{READY_PATH}").status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    pass  # not listening yet
                waited = time.monotonic() - started
                if launch.say is not None:
                    launch.say(f"starting the server · {waited:.0f} s")
                if waited > launch.ready_timeout_s:
                    raise EngineFailed(
                        f"the server was not ready within {launch.ready_timeout_s:g} s",
                        f"see {self.log}, or allow more with --set ready_timeout=SECONDS",
                    )
                time.sleep(POLL_S)

    def exit_reason(self, within_s: float = 0.0) -> str | None:
        """How it ended, with the last error in its log; None if it runs, and still does after `within_s`."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        how = f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"
        error = _last_error(self.log)
        return f"{how}: {error}" if error else how

    def stop(self) -> None:
        """End it and its children. May be called twice."""
        if self._launch.say is not None and self.exit_reason() is None:
            self._launch.say("stopping the server")
        for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            if not self._signal(number):
                break
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
        self._signal(signal.SIGKILL)  # children that outlived it
        self._process.wait()

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal to the whole group; False where no process is left in it."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return self._process.poll() is None


def _unused_port(wanted: int) -> int:
    """A port of 127.0.0.1 that nobody uses: the one that is wanted, or any where that is 0."""
    with socket.socket() as probe:
        if wanted:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise BadInput(
                f"port {wanted} cannot be used: {error.strerror}",
                "choose another one with --set port=N, or leave it out for a free one",
            ) from None
        number: int = probe.getsockname()[1]
        return number


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def end_with_parent() -> Callable[[], None] | None:
    """What a child does before its program runs, so that the kernel ends it if rip is killed (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which little is safe
    return lambda: prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _last_error(log: Path) -> str:
    """The last line of a log that names an error; empty where none does."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    except OSError:
        return ""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines if line]
    # A line's own level counts, whatever it quotes: a warning may name an error that could come.
    harmful = [at for at, line in enumerate(plain) if _level(line) not in _HARMLESS]
    for is_error in (_NAMES_ERROR.search, lambda line: _level(line) in _ERROR_LEVELS, _BEGINS_ERROR.search):
        if errors := [at for at in harmful if is_error(plain[at])]:
            last = plain[errors[-1]]
            if _PYDANTIC.search(last):  # what was wrong stands on its next line
                last = " ".join(plain[errors[-1] : errors[-1] + 2])
            return last[:300]
    return ""


def _level(line: str) -> str:
    """The level that a log line begins with, behind a process and a time; empty where it has none."""
    found = _LEVEL.search(line[:_LEVEL_WITHIN])
    return found[0] if found else ""
