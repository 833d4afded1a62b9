"""Running what a foreign program decides (a chat template) in a child with limits on time and memory.

The child is a fork: it has the tokenizer and its packages already, which take a fresh interpreter seconds.
It only computes a text and hands it back.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable

CPU_S = 10
"""Processor seconds; a long conversation takes some milliseconds."""
WALL_S = 60.0
MEMORY_BYTES = 1 << 30
"""What the child may take beside what the process has already."""
MOST_BYTES = 64 << 20
"""Of the text."""


class OutOfBounds(Exception):
    """A limit was reached, in words."""


def call_bounded(make_text: Callable[[], str], cpu_s: int = CPU_S, memory_bytes: int = MEMORY_BYTES) -> str:
    """The text that a function makes in a child process.

    Raises:
        OutOfBounds: It takes too long, too much memory, or makes too much.
        ValueError: What the function raised, in words.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(make_text, writing, cpu_s, memory_bytes)
    os.close(writing)
    try:
        answer = _read_all(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # it is a zombie at least until it is waited for
        os.waitpid(child, 0)
    kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
    if kind == b"t":
        return text
    if kind == b"e":
        raise ValueError(text)
    raise OutOfBounds(text or f"more than {cpu_s} s of computing")


def _answer(make_text: Callable[[], str], writing: int, cpu_s: int, memory_bytes: int) -> None:
    """Write the kind of the answer and its text, and end the process without cleaning up."""
    try:
        spent = time.process_time()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + cpu_s, int(spent) + cpu_s))
        if (size := _own_size()) is not None:
            resource.setrlimit(resource.RLIMIT_AS, (size + memory_bytes, size + memory_bytes))
        answer = b"t" + make_text().encode("utf-8", "surrogatepass")
    except MemoryError:
        answer = f"m{memory_bytes >> 20} MiB of memory are not enough".encode()
    except BaseException as error:
        answer = b"e" + (str(error).strip() or type(error).__name__).encode("utf-8", "replace")[:10_000]
    try:
        while answer:
            answer = answer[os.write(writing, answer[: 1 << 20]) :]
    finally:
        os._exit(0)


def _own_size() -> int | None:
    """Bytes of address space that this process has; None: not known here (not Linux)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _read_all(reading: int) -> bytes:
    """What the child writes until it ends; nothing where it ends without a word."""
    parts: list[bytes] = []
    size, until = 0, time.monotonic() + WALL_S
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(reading, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            return f"mmore than {MOST_BYTES >> 20} MiB of text".encode()
    return f"mmore than {WALL_S:g} s".encode()
