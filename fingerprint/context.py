"""What every probe is given: what is observed, its environment variables, progress and a stop signal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..schemas.choices import Strength

if TYPE_CHECKING:
    from .model.ref import ModelRef

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while files are hashed; may be called from several threads."""
Subject = Literal["self", "process", "server"]
"""What is observed: this process, another one on this machine, or a server that only answers questions."""


class Stopped(Exception):
    """Raised inside a probe whose result nobody waits for any more."""


@dataclass(frozen=True)
class Server:
    """A server to ask, and the key it wants."""

    url: str
    """As the user gave it; may end in `/v1`."""
    api_key: str | None = field(default=None, repr=False)
    """Sent to this server only, never written anywhere."""
    asking: Callable[[str], None] | None = field(default=None, repr=False)
    """Called with the path of each question, for progress."""


@dataclass(frozen=True)
class Context:
    """The inputs of a probe. Probes read the world through it where a test needs to stand in."""

    model: ModelRef | None
    environ: Mapping[str, str]
    """Of the observed process; of a process that was named, as it was launched. It holds secrets: a probe
    takes from it only variables that it knows by name."""
    progress: Progress | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the command ends early, so that long readings give up within one block."""
    pid: int | None = None
    """The process that is observed; None: this one."""
    root: Path = Path("/")
    """Its view of the file system: `/proc/PID/root` for a process that was named."""
    family: tuple[int, ...] = ()
    """The process that was named and all its descendants (worker ranks); empty for this process."""
    environ_unread: str | None = None
    """Why the variables of a process that was named could not be read; `environ` is empty then."""
    server: Server | None = None
    """The server that is observed; nothing of this machine is a fact about it."""
    strength: Strength = "verified"
    """How much of the model's weights is read."""
    fast: bool = False
    """Leave out the SHA-256 of the weights files; their tensors are read all the same."""
