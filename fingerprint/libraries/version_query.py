"""Asking libraries that are not loaded, apart from this process: one that hangs or crashes is a fact."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..untrusted.program import run
from . import version_child as ask_library

if TYPE_CHECKING:
    import threading

LIMIT_S = 5
"""For one library, in whole seconds: half a gigabyte is loaded from a cold disk in less than one."""
ALL_LIMIT_S = 8.0
"""For all libraries together; under the time limit of the probe."""
_ALARM = "signal 14"


def ask_apart(questions: Sequence[tuple[str, str]], stop: threading.Event) -> dict[str, dict[str, str]]:
    """Ask each library of `(name in ask_library.QUESTIONS, path)` for its version, in that order.

    Returns:
        Name → `{"version": …}` or `{"reason": …}`, for every question.
    """
    told: dict[str, dict[str, str]] = {}
    deadline = time.monotonic() + ALL_LIMIT_S
    left = list(questions)
    while left:
        if not sys.executable:
            return {family: {"reason": "there is no Python interpreter to ask it with"} for family, _ in left}
        output = run(
            # Isolated and without site-packages: nothing of the user's is imported; no variable reaches it.
            [
                sys.executable,
                "-I",
                "-S",
                os.path.abspath(ask_library.__file__),
                json.dumps(left),
                str(LIMIT_S),
            ],
            max(0.1, deadline - time.monotonic()),
            stop,
            environ={},
        )
        answers = {name: found for name, found in _answers(output.text).items() if name in dict(left)}
        told |= answers
        left = [question for question in left if question[0] not in answers]
        if left:
            # The one that was being asked ended the process that asked; those behind it get another.
            family = left.pop(0)[0]
            told[family] = {"reason": _ending(family, output.trouble)}
            if time.monotonic() >= deadline:
                told |= {
                    family: {"reason": "not asked: another library took all the time"} for family, _ in left
                }
                break
    return told


def _answers(text: str) -> dict[str, dict[str, str]]:
    found = {}
    for line in text.splitlines():
        try:
            said = json.loads(line)
            found[said.pop("family")] = {name: str(value) for name, value in said.items()}
        except (ValueError, KeyError, AttributeError):
            continue  # a line that a crash cut off
    return found


def _ending(family: str, trouble: str | None) -> str:
    function = ask_library.QUESTIONS[family][0]
    if trouble is None:
        return f"{function} ended the process that asked it"
    if trouble.endswith(_ALARM) or "time" in trouble:
        return f"{function} gave no answer within {LIMIT_S} s"
    return f"{function} could not be asked: {trouble}"
