"""Finds the two traces of a result folder, and the one folder in which a report's commands run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .....schemas.command_line import path_argument
from .....schemas.errors import BadInput
from ....reading.load import Trace, open_trace
from ...findings.sentences import in_shell

if TYPE_CHECKING:
    from .....schemas.findings.statement import Command
    from .....schemas.trace import TraceHeader
    from .....schemas.verdict import TraceRef, Verdict

_MOVED_UP = 4
"""Folders above the result in which a comparison that was moved as a whole is looked for."""


@dataclass(frozen=True)
class Source:
    """One side's trace, where it still exists."""

    side: str
    """`A` or `B`."""
    path: str
    """As a command in the report's folder names it."""
    header: TraceHeader | None
    missing: str | None = None
    """Why there is no header, in a sentence."""
    trace: Trace | None = None
    """Opened; there where the header is."""

    @property
    def token_text(self) -> dict[str, str]:
        """Token id (as a string) → text; empty where the trace is not there."""
        return {} if self.header is None else self.header.token_text


@dataclass(frozen=True)
class ReportPaths:
    """Where every command of a report is run, and what it calls the files there."""

    folder: Path
    """Absolute."""
    result: str
    """The result folder, from there."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Traces that were moved: as the comparison named them → as they are named from here."""

    def command(self, command: Command) -> str:
        """A command of the comparison, for this folder and where things are now, as it is typed."""
        return in_shell(self.here(command))

    def here(self, command: Command) -> Command:
        """A command of the comparison, for this folder and where things are now."""
        argv = list(command.argv)
        if command.purpose == "show":
            argv[2] = path_argument(self.result)
        moved = {path_argument(before): path_argument(now) for before, now in self.renamed.items()}
        lines = {"argv": argv, "then": command.then}
        now = {name: [moved.get(word, word) for word in line] for name, line in lines.items()}
        return command.model_copy(update=now)


def find_sources(
    verdict: Verdict, folder: Path, a: Path | None = None, b: Path | None = None
) -> tuple[ReportPaths, tuple[Source, Source]]:
    """The traces that a verdict speaks of, and the folder from which they are named.

    They are looked for where they were compared, from here, and beside the result folder. A trace is taken
    only if its header is the one that was compared: a different run may have its name now.

    Args:
        verdict: Of the comparison.
        folder: The result folder.
        a: Trace A, where the caller knows it.
        b: Trace B, likewise.

    Raises:
        BadInput: A trace that the caller names cannot be read.
    """
    beside = list(folder.absolute().parents[:_MOVED_UP])
    ran_in = [] if verdict.run_in is None else [Path(verdict.run_in)]
    bases = [*ran_in, Path.cwd(), *beside]
    known = _Known()
    refs = (verdict.a, verdict.b)
    base = next(
        (one for one in bases if all(known.holds(one / ref.path, ref) for ref in refs)),
        next((one for one in ran_in if one.is_dir()), beside[0]),
    )
    near = (beside[0], folder.absolute())
    candidates = [
        [
            base / ref.path,
            *(one / ref.path for one in bases),
            *(one / Path(ref.path).name for one in near),
        ]
        for ref in refs
    ]
    sources = tuple(
        _find(side, ref, paths, base, known) if path_of is None else _from_caller(side, ref, path_of, base)
        for side, ref, paths, path_of in zip("AB", refs, candidates, (a, b), strict=True)
    )
    renamed = {
        ref.path: source.path for ref, source in zip(refs, sources, strict=True) if ref.path != source.path
    }
    return ReportPaths(base, name_from(base, folder), renamed), (sources[0], sources[1])


def name_from(base: Path, path: Path) -> str:
    """A path as a command that runs in `base` names it: short where it lies below, else whole."""
    whole = os.path.abspath(path)
    short = os.path.relpath(whole, base)
    return whole if short.split(os.sep)[0] == os.pardir else short


class _Known:
    """Traces that were opened already, by path."""

    def __init__(self) -> None:
        self._opened: dict[Path, Trace | str | None] = {}

    def open(self, path: Path) -> Trace | str | None:
        """The trace, or why it is none; None where nothing is."""
        if path not in self._opened:
            found: Trace | str | None = None
            if path.is_file() or path.is_dir():
                try:
                    found = open_trace(path)
                except BadInput as error:
                    found = error.message
            self._opened[path] = found
        return self._opened[path]

    def holds(self, path: Path, ref: TraceRef) -> bool:
        """The trace that was compared lies there."""
        found = self.open(path)
        return isinstance(found, Trace) and found.header_sha256 == ref.sha256_of_header


def _from_caller(side: str, ref: TraceRef, path: Path, base: Path) -> Source:
    same = os.path.abspath(path) == os.path.abspath(base / ref.path)
    trace = open_trace(path)
    return Source(side, ref.path if same else name_from(base, path), trace.header, trace=trace)


def _find(side: str, ref: TraceRef, paths: list[Path], base: Path, known: _Known) -> Source:
    why = f"{ref.path} does not exist"
    for path in dict.fromkeys(paths):
        found = known.open(path)
        if isinstance(found, str):
            why = found
        elif found is not None and not known.holds(path, ref):
            why = f"{name_from(base, path)} is not the trace that was compared"
        elif found is not None:
            name = ref.path if path == base / ref.path else name_from(base, path)
            return Source(side, name, found.header, trace=found)
    return Source(side, ref.path, None, _without(side, why))


def _without(side: str, why: str) -> str:
    return (
        f"Trace {side} was not read ({why}). Its settings, times and token text are missing here;"
        " everything else is from the result folder."
    )
