"""Versions of libraries that are not loaded, from a child process: one that hangs or crashes is a fact."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...schemas.fingerprint import NO_ANSWER
from ..untrusted.patience import patience
from ..untrusted.program import Failure, run
from . import version_child

if TYPE_CHECKING:
    import threading

LIMIT_S = 5
"""For one library, in whole seconds: half a gigabyte is loaded from a cold disk in less than one."""
ALL_LIMIT_S = 8.0
"""For all libraries together; under the time limit of the probe."""


def query_versions(libraries: Sequence[tuple[str, str]], stop: threading.Event) -> dict[str, dict[str, str]]:
    """Ask each library of `(name in version_child.VERSION_FUNCTIONS, path)` for its version, in that order.

    Returns:
        Name → `{"version": …}` or `{"reason": …}`, for every library.
    """
    versions: dict[str, dict[str, str]] = {}
    limit_s = round(patience(LIMIT_S))
    deadline = time.monotonic() + patience(ALL_LIMIT_S)
    left = list(libraries)
    while left:
        if not sys.executable:
            return {family: {"reason": "there is no Python interpreter to ask it with"} for family, _ in left}
        output = run(
            # Isolated and without site-packages: nothing of the user's is imported; no variable reaches it.
            [
                sys.executable,
                "-I",
                "-S",
                os.path.abspath(version_child.__file__),
                json.dumps(left),
                str(limit_s),
            ],
            max(0.1, deadline - time.monotonic()),
            stop,
            environ={},
        )
        answered = {name: found for name, found in _parse(output.text).items() if name in dict(left)}
        versions |= answered
        left = [library for library in left if library[0] not in answered]
        if left:
            # The one that was being asked ended the process that asked; those behind it get another.
            family = left.pop(0)[0]
            versions[family] = {"reason": _why_unanswered(family, output.failure)}
            if time.monotonic() >= deadline:
                versions |= {
                    family: {"reason": f"{NO_ANSWER}: another library took it all"} for family, _ in left
                }
                break
    return versions


def _parse(text: str) -> dict[str, dict[str, str]]:
    found = {}
    for line in text.splitlines():
        try:
            answer = json.loads(line)
            found[answer.pop("family")] = {name: str(value) for name, value in answer.items()}
        except (ValueError, KeyError, AttributeError):
            continue  # a line that a crash cut off
    return found


def _why_unanswered(family: str, failure: Failure | None) -> str:
    function = version_child.VERSION_FUNCTIONS[family][0]
    if failure is None:
        return f"{function} ended the process that asked it"
    if failure.timed_out or failure.signal == signal.SIGALRM:
        return f"{NO_ANSWER} from {function}"
    return f"{function} could not be asked: {failure}"
