"""The protocol of a child process that reads a driver: a line of JSON for every reading.

A driver is read in a process of its own, because cuInit fixes a process to the devices it sees then and
forbids CUDA in its forks, and because a call that hangs or crashes ends only with its process. Such a process
imports little, so that it starts at once, and changes nothing.

Lines: `["reading", name, key]`, then `["value", name, key, value]` or
`["error", name, key, code, type, message]`.
`name` is the field; `key` the number of the GPU ("" for the machine, "0/3" for slice 3 of GPU 0, "0-1" for a
pair). `code` is the driver's, 0 where Python failed; `type` the exception's or empty.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any


class Failed(Exception):
    """A call that answered with an error code."""

    def __init__(self, value: int, message: str) -> None:
        super().__init__(message)
        self.value = value


def send(*line: Any) -> None:
    """Print one line at once, so that it is kept whatever the next call does."""
    os.write(1, (json.dumps(line, default=str) + "\n").encode())


def report(name: str, key: str, read: Callable[[], Any]) -> Any:
    """Make one reading and send it. Returns None where it failed."""
    send("reading", name, key)
    try:
        value = read()
    except Exception as error:  # every failure of a reading is a result
        code = getattr(error, "value", 0)
        send("error", name, key, code if isinstance(code, int) else 0, type(error).__name__, str(error))
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    send("value", name, key, value)
    return value


def as_text(value: bytes | str) -> str:
    """Text of what may be bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def loaded_libraries(name: str) -> dict[str, str]:
    """File names of the driver's libraries in this process: the version stands in that of the real file."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if f"/{name}" in line}
    return {f"{name}.1": os.path.basename(os.path.realpath(path)) for path in sorted(paths)}


def run_child(main: Callable[[], None], limit_s: int) -> None:
    """Make all readings; end this process after `limit_s` even inside a call that hangs."""
    signal.alarm(limit_s)
    try:
        main()
    except Exception as error:
        send("error", "program", "", 0, type(error).__name__, str(error))
