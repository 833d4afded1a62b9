"""The lines of an investigation: what each step found, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...diverge.present.findings.experiments import decision
from ...diverge.present.findings.labels import label
from ...diverge.present.findings.sentences import sentence
from ...diverge.present.format import listed, plural
from ...diverge.present.verdict_sentences import headline

if TYPE_CHECKING:
    from ...schemas.change import Change
    from ...schemas.findings.experiments import Confirmation
    from ...schemas.narrow import Narrow
    from ...schemas.trace import TraceHeader
    from ...schemas.verdict import Cause, Verdict

_NAMED = 4
"""Changes that a line names."""
NO_EXPERIMENT = "confirm      no cause has an experiment here: see the evidence in the postmortem"


def environment(changes: Sequence[Change]) -> str:
    """What differs between the two environments."""
    if not changes:
        return "environment  no field of the fingerprints differs"
    names = listed([change.name for change in changes], _NAMED)
    return f"environment  {plural(len(changes), 'field')} changed: {names}"


def replayed(side: str, lane: Path, header: TraceHeader, kept: bool) -> str:
    """One side ran."""
    seconds = sum(header.seconds.values())
    took = ", done before" if kept else f", {seconds:.0f} s"
    return f"replay {side}     {plural(len(header.requests), 'request')} on {lane.name}{took}"


def compared(verdict: Verdict, kept: bool) -> str:
    """The comparison."""
    causes = "" if not verdict.causes else f" First cause: {label(verdict.causes[0])}."
    return f"compare      {headline(verdict)}.{causes}{' (done before)' if kept else ''}"


def decided(number: int, cause: Cause | None, found: Confirmation, kept: bool) -> str:
    """One cause, or all of them."""
    name = "all causes together" if cause is None else f"{number}. {label(cause)}"
    last = f": {sentence(found.evidence[-1])}" if found.evidence else ""
    return f"confirm      {name}: {decision(found)}{' (done before)' if kept else last}"


def narrowed(result: Narrow) -> str:
    """The search over settings."""
    return f"narrow       {result.sentence}"


def not_narrowed(message: str) -> str:
    """Why there was no search."""
    return f"narrow       not done: {message}"


def not_reported(message: str) -> str:
    """Why there is no postmortem."""
    return f"report       not written: {message}"
