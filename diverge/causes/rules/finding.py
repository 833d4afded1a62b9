"""What one rule found, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ....schemas.findings.evidence import Evidence
from ....schemas.findings.execution import SeveralDiffer
from ....schemas.findings.statement import SIDES, Command
from ....schemas.findings.unseen import Missing
from ....schemas.verdict import Interpretation, Place, Subject
from ..evidence import Basis
from .describe_module import beyond_rounding, drift_size, goes_on, has_other_values, is_rounding

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Finding:
    """What one rule found."""

    evidence: list[Evidence]
    confidence: Confidence
    missing: list[Missing] = field(default_factory=list)
    confirm: Command | None = None
    direct: bool = False
    """The trace itself proves it; no inference from circumstances."""
    of_choice: bool = False
    """It says why a token flipped, not where the numbers began to differ: it is ranked after what does."""
    place: Place | None = None
    """Where it acts; None: at the first differing row, if it is about rows."""
    subject: Subject | None = None
    """The module that it is about; None: no single one."""
    interpretation: Interpretation | None = None
    """In place of the table's, where a different command confirms it."""


def circumstance(
    basis: Basis, evidence: list[Evidence], confirm: Command | None, cached: bool = False
) -> Finding:
    """A difference in how the row was computed: the fewer others there are, the surer it is the cause.

    Args:
        basis: What the rules read.
        evidence: What was found.
        confirm: The command that confirms it.
        cached: Rows that were read from a cache, and could not be seen, are part of it.
    """
    site = basis.first_site
    seen = site is not None and (site.is_origin or (cached and basis.only_cached_is_unseen))
    missing: list[Missing] = [] if seen else [basis.not_an_origin]
    evidence = [*evidence, *drift_size(basis.observed.pattern), *goes_on(basis.observed.pattern)]
    several = len(basis.circumstances) > 1
    confidence: Confidence = (
        "high" if not several and not missing else "medium" if not several or not missing else "low"
    )
    pattern = basis.observed.pattern
    if beyond_rounding(pattern):  # another shape or kernel leaves rounding, never other values
        most: Confidence = "low" if pattern is not None and has_other_values(pattern) else "medium"
        confidence = "low" if "low" in (confidence, most) else "medium"
    if basis.noisy == {*SIDES}:
        confidence = "low"  # each side differs from itself: what differs between them need not play a part
    if several:
        evidence.append(SeveralDiffer(names=basis.circumstances))
    found = Finding(evidence, confidence, missing, confirm)
    if pattern is None or not pattern.jumps or not is_rounding(pattern):
        return found
    # It explains where the difference begins, and not where it grows beyond rounding.
    lowered: Confidence = "medium" if confidence == "high" else confidence
    return replace(found, confidence=lowered, interpretation="module computes it otherwise")
