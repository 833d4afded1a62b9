"""What every probe is given: the observed process or server, its environment variables, and a stop signal."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ...schemas.choices import Strength
    from ..model.read_and_hash import Progress
    from ..model.ref import ModelRef
    from ..remote.address import Server

Subject = Literal["self", "process", "server"]
"""What is observed: this process, another one on this machine, or a server that only answers requests."""


@dataclass(frozen=True)
class Context:
    """The inputs of a probe. Probes read the world through it where a test needs to stand in."""

    model: ModelRef | None
    environ: Mapping[str, str]
    """Of the observed process; of a named process, as it was launched. It holds secrets: a probe takes from
    it only variables that it knows by name."""
    progress: Progress | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the command ends early, so that long readings give up within one block."""
    pid: int | None = None
    """The process that is observed; None: this one."""
    root: Path = Path("/")
    """Its view of the file system: `/proc/PID/root` for a named process."""
    family: tuple[int, ...] = ()
    """The named process and all its descendants (worker ranks); empty for this process."""
    environ_unread: str | None = None
    """Why the variables of a named process could not be read; `environ` is empty then."""
    server: Server | None = None
    """The server that is observed; nothing of this machine is a fact about it."""
    strength: Strength = "verified"
    """How much of the model's weights is read."""
    fast: bool = False
    """Leave out the SHA-256 of the weights files; their tensors are read all the same."""
