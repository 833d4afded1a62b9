"""What every probe is given: the model, the environment variables, progress and a stop signal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model_ref import ModelRef

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while files are hashed; may be called from several threads."""


class Stopped(Exception):
    """Raised inside a probe whose result nobody waits for any more."""


@dataclass(frozen=True)
class Context:
    """The inputs of a probe. Probes read the world through it where a test needs to stand in."""

    model: ModelRef | None
    environ: Mapping[str, str]
    """Of the observed process; of a process that was named, as it was launched."""
    progress: Progress | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the command ends early, so that long readings give up within one block."""
    pid: int | None = None
    """The process that is observed; None: this one."""
    root: Path = Path("/")
    """Its view of the file system: `/proc/PID/root` for a process that was named."""
