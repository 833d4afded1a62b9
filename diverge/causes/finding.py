"""What one look at the evidence found, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .describe_module import size_of
from .evidence import Evidence

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Finding:
    """What one look at the evidence found."""

    evidence: list[str]
    confidence: Confidence
    missing: list[str] = field(default_factory=list)
    confirm: str | None = None
    direct: bool = False
    """The trace itself proves it; no inference from circumstances."""
    of_choice: bool = False
    """It tells why a token flipped, not where the numbers began to differ: named behind what does."""
    label: str | None = None
    """In place of the table's, where the evidence names the thing."""
    tells: str | None = None
    """In place of the table's, where another command confirms it."""


def circumstance(e: Evidence, evidence: list[str], confirm: str | None, cached: bool = False) -> Finding:
    """A difference in how the row was computed: the fewer others there are, the surer it is the cause.

    Args:
        e: The evidence.
        evidence: What was found.
        confirm: The command that confirms it.
        cached: Rows that came from a cache, and could not be seen, are part of it.
    """
    seen = e.first_site is not None and (e.first_site.is_origin or (cached and e.only_cached_is_unseen))
    missing = [] if seen else [e.not_an_origin]
    if e.seen.pattern is not None:
        evidence = [*evidence, *size_of(e.seen.pattern)]
    others = len(e.circumstances) > 1
    confidence: Confidence = (
        "high" if not others and not missing else "medium" if not others or not missing else "low"
    )
    if others:
        evidence = [*evidence, f"several things differ at once: {', '.join(e.circumstances)}"]
    return Finding(evidence, confidence, missing, confirm)
