"""How a model's files are to be read: how much of them, with which progress, until when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ...schemas.choices import Strength

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while files are hashed; may be called from several threads."""


class Stopped(Exception):
    """Raised inside a reading whose result nobody waits for any more."""


@dataclass(frozen=True)
class ReadOptions:
    """How weights are to be read."""

    strength: Strength = "verified"
    fast: bool = False
    """Leave out the SHA-256 of weights files; their tensors are read all the same."""
    progress: Progress | None = None
    stop: threading.Event | None = None
    """When set, reading ends within one block."""
