"""What a process that asks a driver tells the one that started it: a line of JSON for every answer.

A driver is asked in a process of its own, because cuInit fixes a process to the devices it sees then and
forbids CUDA in its forks, and because a call that hangs or crashes ends only with its process. Such a process
imports little, so that it starts at once, and changes nothing.

Lines: `["asking", name, key]`, then `["told", name, key, value]` or `["failed", name, key, code, words]`.
`name` is the field; `key` the number of the GPU ("" for the machine, "0/3" for slice 3 of GPU 0, "0-1" for a
pair). A code is the driver's, 0 where Python failed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any


class Failed(Exception):
    """A call that answered with an error code."""

    def __init__(self, value: int, words: str) -> None:
        super().__init__(words)
        self.value = value


def tell(*line: Any) -> None:
    """Print one line at once, so that it is kept whatever the next call does."""
    os.write(1, (json.dumps(line, default=str) + "\n").encode())


def ask(name: str, key: str, read: Callable[[], Any]) -> Any:
    """Make one reading and tell it. Returns None where it failed."""
    tell("asking", name, key)
    try:
        value = read()
    except Exception as error:  # every failure of a reading is an answer
        code = getattr(error, "value", 0)
        tell("failed", name, key, code if isinstance(code, int) else 0, f"{type(error).__name__}: {error}")
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    tell("told", name, key, value)
    return value


def plain(value: bytes | str) -> str:
    """Text of what may be bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def loaded(name: str) -> dict[str, str]:
    """File names of the driver's libraries in this process: the version stands in that of the real file."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if f"/{name}" in line}
    return {f"{name}.1": os.path.basename(os.path.realpath(path)) for path in sorted(paths)}


def answer(main: Callable[[], None], limit_s: int) -> None:
    """Run the questions; end this process after `limit_s` even inside a call that hangs."""
    signal.alarm(limit_s)
    try:
        main()
    except Exception as error:
        tell("failed", "program", "", 0, f"{type(error).__name__}: {error}")
