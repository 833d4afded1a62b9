"""Finding the two traces of a result folder again, and what they say of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import BadInput
from ..reading.load import open_trace

if TYPE_CHECKING:
    from ...schemas.trace import TraceHeader
    from ...schemas.verdict import TraceRef


@dataclass(frozen=True)
class Source:
    """One side's trace as far as it is there."""

    side: str
    """`A` or `B`."""
    path: str
    """As the comparison was given it, or where it lies now."""
    header: TraceHeader | None
    missing: str | None = None
    """Why there is no header, in a sentence."""

    @property
    def token_text(self) -> dict[str, str]:
        """Token id (as a string) → text; empty where the trace is not there."""
        return {} if self.header is None else self.header.token_text


def given_source(side: str, path: Path) -> Source:
    """A trace that the caller names.

    Raises:
        BadInput: It cannot be read.
    """
    return Source(side, str(path), open_trace(path).header)


def find_source(side: str, reference: TraceRef, folder: Path) -> Source:
    """The trace that a verdict speaks of, where it was or beside the result folder.

    It is taken only if its header is the one that was compared: another run may lie at its place now.
    """
    said = Path(reference.path)
    why = f"nothing is at {reference.path}"
    for path in dict.fromkeys((said, folder.absolute().parent / said.name, folder / said.name)):
        if not (path.is_file() or path.is_dir()):
            continue
        try:
            trace = open_trace(path)
        except BadInput as error:
            why = error.message
            continue
        if trace.header_sha256 == reference.sha256_of_header:
            return Source(side, str(path), trace.header)
        why = f"{path} holds another trace than the one that was compared"
    return Source(side, reference.path, None, _without(side, why))


def _without(side: str, why: str) -> str:
    return (
        f"Trace {side} was not read ({why}): its settings, times and token text are not shown here;"
        " everything else is from the result folder."
    )
