"""The cause that a reference trace shows: one side farther from it than the dtype explains."""

from __future__ import annotations

import shlex

from .evidence import Evidence
from .finding import Confidence, Finding
from .size import ANOTHER

_ASKING = ("kernel", "module")
"""Causes that could be rounding or a fault: only a reference tells which."""


def beyond_rounding(e: Evidence) -> Finding | None:
    """B or A lies farther from the reference than the other side of the same dtype does."""
    found = e.reference
    if found is None or found.first is None:
        return None
    evidence = [found.sentence]
    if found.separated:
        evidence.append(
            f"at `{found.first.site}` half of its rows are farther than any row of the other side"
        )
    if found.output is not None:
        evidence.append(
            f"at the end, `{found.output.site}`, B's distance is {found.output.ratio:.3g} times A's"
        )
    missing = [] if found.repeats else ["no repeats of A's lane (--noise), so its own scatter is not known"]
    confidence: Confidence = "high" if found.separated else "medium"
    # B on A's tokens: then every position can be compared, not only those before the tokens part.
    command, comment, hidden = e.replay("golden-decode").partition("  # ")
    confirm = f"{command} --reference {shlex.quote(found.path)}{comment}{hidden}"
    return Finding(evidence, confidence, missing, confirm)


def without_reference(cause: str, e: Evidence) -> list[str]:
    """What a cause would need a reference for, where none could judge."""
    if cause not in _ASKING or (e.reference is not None and e.reference.verdict != "not judged"):
        return []
    seen = e.seen.pattern
    if seen is not None and (seen.relation or seen.along.constant or (seen.drift or 0) >= ANOTHER):
        return []  # no rounding, whatever a reference says
    return ["no reference trace (--reference) tells whether this is rounding or a fault"]
