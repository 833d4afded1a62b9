"""What of a report's head is no finding: which two runs it is about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..format import plain

if TYPE_CHECKING:
    from ....schemas.verdict import Verdict
    from .reading.traces import Source


def compared_runs(verdict: Verdict, sources: tuple[Source, Source]) -> str:
    """`A (alone, 2026-07-14) and B (batched, 2026-07-14)`."""
    return " and ".join(_run(source, verdict) for source in sources)


def _run(source: Source, verdict: Verdict) -> str:
    """A side by its lane and day; the file's name stands for lanes of one name."""
    reference = verdict.a if source.side == "A" else verdict.b
    alike = verdict.a.lane == verdict.b.lane
    name = Path(reference.path).name if alike else reference.lane
    date = "" if source.header is None else f", {source.header.created[:10]}"
    return f"{source.side} ({plain(name)}{plain(date)})"
