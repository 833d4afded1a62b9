"""Command lines of rip as data: what a user can type to run a replay or a comparison again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from .choices import CaptureLevel, Level, Mode


def path_argument(path: str) -> str:
    """A path as an argument: one that begins with a dash would be read as an option."""
    return f"./{path}" if path.startswith("-") else path


def shell_line(arguments: Sequence[str]) -> str:
    """What a person types for `rip` and these arguments."""
    return shlex.join(["rip", *arguments])


@dataclass(frozen=True)
class ReplayCommand:
    """One `rip replay`. Whatever is None, empty or its default is not written.

    Attributes:
        requests: Envelope, request set or trace to run.
        out: The trace that it writes.
        lane: Name of the lane.
        settings: Name and value of every `--set`.
        sampling: Name and value of every `--sampling`.
    """

    requests: str
    out: str | None = None
    lane: str | None = None
    model: str | None = None
    engine: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    python: str | None = None
    tap: str | None = None
    mode: Mode = "free"
    golden: str | None = None
    neighbours: str | None = None
    repeat: int = 1
    settings: Sequence[tuple[str, str]] = ()
    sampling: Sequence[tuple[str, str]] = ()
    capture: CaptureLevel | None = None
    sites: str | None = None
    allow_drift: bool = False
    force: bool = False

    def arguments(self) -> list[str]:
        """What follows `rip`."""
        found = ["replay", path_argument(self.requests)]
        for name in ("model", "engine", "url", "api_key_env", "python", "tap"):
            value = getattr(self, name)
            found += [f"--{name.replace('_', '-')}", value] if value else []
        if self.mode != "free":
            found += ["--mode", self.mode]
        if self.golden is not None:
            found += ["--golden", path_argument(self.golden)]
        if self.neighbours:
            found += ["--neighbours", self.neighbours]
        if self.repeat != 1:
            found += ["--repeat", str(self.repeat)]
        for name, value in self.settings:
            found += ["--set", f"{name}={value}"]
        for name, value in self.sampling:
            found += ["--sampling", f"{name}={value}"]
        for name in ("capture", "sites", "lane"):
            value = getattr(self, name)
            found += [f"--{name}", value] if value else []
        found += ["--allow-drift"] if self.allow_drift else []
        found += ["-o", self.out] if self.out is not None else []
        return [*found, *(["--force"] if self.force else [])]


@dataclass(frozen=True)
class DivergeCommand:
    """One `rip diverge` of two traces."""

    a: str
    b: str
    require: Level = "token"
    out: str | None = None
    force: bool = False
    reference: str | None = None
    zoom: bool = False

    def arguments(self) -> list[str]:
        """What follows `rip`."""
        found = ["diverge", path_argument(self.a), path_argument(self.b)]
        found += [] if self.require == "token" else ["--require", self.require]
        found += ["-o", path_argument(self.out)] if self.out is not None else []
        found += ["--force"] if self.force else []
        found += ["--reference", self.reference] if self.reference is not None else []
        return [*found, *(["--zoom"] if self.zoom else [])]


@dataclass(frozen=True)
class QueryCommand:
    """One `rip query` of a result folder or a trace."""

    source: str
    sql: str

    def arguments(self) -> list[str]:
        """What follows `rip`."""
        return ["query", path_argument(self.source), self.sql]
