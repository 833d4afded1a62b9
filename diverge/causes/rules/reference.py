"""The cause that a reference trace shows: one side farther from it than the dtype explains."""

from __future__ import annotations

from ....schemas.findings.rows import ReferenceDistance
from ....schemas.findings.unseen import Missing, NoEvidence
from ..evidence import Basis
from ..observe.rounding import OTHER_VALUES
from .finding import Finding

_OPEN = ("kernel", "module")
"""Causes that could be rounding or a fault: only a reference shows which."""


def beyond_rounding(basis: Basis) -> Finding | None:
    """B or A is farther from the reference than the other side of the same dtype."""
    found = basis.reference
    distance = None if found is None else ReferenceDistance.of(found)
    if found is None or distance is None:
        return None
    missing: list[Missing] = [] if found.repeats else [NoEvidence(kind="repeats")]
    # B on A's tokens: then every position can be compared, not only those before the tokens part.
    command = basis.commands.replay("golden-decode")
    confirm = command.model_copy(update={"then": [*command.then, "--reference", found.path]})
    return Finding([distance], "high" if found.separated else "medium", missing, confirm)


def without_reference(cause: str, basis: Basis) -> list[Missing]:
    """What a cause would need a reference for, where none could judge."""
    if cause not in _OPEN or (basis.reference is not None and basis.reference.verdict != "not judged"):
        return []
    pattern = basis.observed.pattern
    if pattern is not None:
        exact = pattern.relation is not None or pattern.across.constant
        if exact or (pattern.drift or 0) >= OTHER_VALUES:
            return []  # no rounding, whatever a reference says
    return [NoEvidence(kind="reference")]
