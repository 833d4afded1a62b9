"""What one site shows along a sequence, and where the other sequences begin to differ.

Only rows count whose inputs are equal: everything before the site is equal at their position.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ....schemas.findings.rows import OtherSequences
from ....schemas.findings.statement import SequenceName
from ...comparison.site_rows import PairRowReader
from ...comparison.tally import PairState, Tally
from .rounding import EPSILON, ROUNDING

_ALIKE = 1e-2
"""Relative: differences of sketches that lie closer than this are one vector, but for rounding."""
_FEW = 3
"""Rows below which nothing is called constant."""


@dataclass(frozen=True)
class AcrossPositions:
    """The differing rows of the first differing site, in the same sequence."""

    far: list[int] = field(default_factory=list)
    """Positions at which the drift is beyond rounding."""
    near: int = 0
    """How many further rows differ, by no more than rounding."""
    constant: bool = False
    """B's rows less A's are one vector: something constant is added, or missing."""


def across_positions(
    rows: PairRowReader, state: PairState, positions: np.ndarray, dtype: str
) -> AcrossPositions:
    """Read the site's rows.

    Args:
        rows: Of both sides.
        state: The pair, whose first differing site is looked at.
        positions: Those at which the site differs though its inputs are equal, ascending.
        dtype: Of the site.
    """
    epsilon = EPSILON.get(dtype)
    if epsilon is None or not len(positions):
        return AcrossPositions()
    (a, norms_a), (b, norms_b) = rows.column(state.pair, positions, state.first_site)
    gaps, size = b.astype(np.float64) - a, np.maximum(np.maximum(norms_a, norms_b), 1e-30)
    with np.errstate(all="ignore"):  # rows may hold NaN or infinity: those are far, and nothing constant
        drifts = np.linalg.norm(gaps, axis=1) / size
        large = ~(drifts <= ROUNDING * epsilon)
        mean = gaps.mean(axis=0)
        scatter = np.linalg.norm(gaps - mean, axis=1)
        # Rows are rounded after the constant was added.
        allowed = _ALIKE * np.linalg.norm(mean) + ROUNDING * epsilon * size
        constant = len(positions) >= _FEW and bool(large.all()) and bool((scatter <= allowed).all())
        constant = constant and bool(np.linalg.norm(mean) > 10 * (ROUNDING * epsilon * size).max())
    return AcrossPositions(positions[large].tolist(), int(np.count_nonzero(~large)), constant)


def other_sequences(state: PairState, tally: Tally) -> OtherSequences | None:
    """Where the other sequences begin to differ; None: there is no other."""
    same_position: list[SequenceName] = []
    same_site: list[SequenceName] = []
    other_site: list[SequenceName] = []
    equal: list[SequenceName] = []
    for other in tally.pairs:
        if other is state:
            continue
        at = other.first_position
        request_id, sample = other.pair.a.key[:2]
        name = SequenceName(request_id=request_id, sample=sample, position=at)
        if at is None:
            if other.pair.divergence is None:
                equal.append(name)
        elif other.first_site != state.first_site:
            other_site.append(name)
        elif at == state.first_position:
            same_position.append(name)
        else:
            same_site.append(name)
    if not (same_position or same_site or other_site or equal):
        return None
    return OtherSequences(
        same_position=same_position, same_site=same_site, other_site=other_site, equal=equal
    )
