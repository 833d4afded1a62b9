"""Which candidates' logits differ, where the output head is all that differs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ...comparison.align import row_of
from ...comparison.tally import PairState
from ...reading.columns import read_candidates
from ...reading.load import NO_TOKEN, Trace

MOST = 4
"""Tokens that are kept: of more it is no single row of the head."""


@dataclass(frozen=True)
class ChangedLogits:
    """The candidates of one distribution that both traces list with their logits."""

    common: int = 0
    differing: int = 0
    """Those whose logits differ."""
    tokens: list[tuple[int, float, float]] = field(default_factory=list)
    """Token, its logit in A and in B: of the first few of them."""
    agreed: bool = False
    """Later positions at which only logits differ list the same tokens, and others that are equal."""
    drift: float | None = None
    """Norm of the differences over that of the logits, of the common candidates."""


def changed_logits(a: Trace, b: Trace, state: PairState, position: int) -> ChangedLogits:
    """Compare the candidates behind one position.

    Args:
        a: The trace A.
        b: The trace B.
        state: The pair.
        position: Where the logits differ, and no site does.
    """
    sides: list[dict[int, float]] = []
    for trace, sequence in ((a, state.pair.a), (b, state.pair.b)):
        found = read_candidates(trace, [(row_of(trace, sequence, position), 1)])
        if not found.has_logits[0]:
            return ChangedLogits()
        listed = found.ids[0] != NO_TOKEN
        sides.append(dict(zip(found.ids[0][listed].tolist(), found.logits[0][listed].tolist(), strict=True)))
    common = [token for token in sides[0] if token in sides[1]]
    differing = [token for token in common if not _same(sides[0][token], sides[1][token])]
    tokens = [(token, sides[0][token], sides[1][token]) for token in differing[:MOST]]
    left, right = (np.array([side[token] for token in common]) for side in sides)
    with np.errstate(all="ignore"):  # not finite: no size
        norms = float(np.linalg.norm(left)), float(np.linalg.norm(right))
        size = float(np.linalg.norm(right - left)) / max(*norms, 1e-30)
    return ChangedLogits(len(common), len(differing), tokens, drift=size if np.isfinite(size) else None)


def agreed(found: ChangedLogits, later: Iterable[ChangedLogits]) -> bool:
    """Whether single rows of the head explain the logits that differ, here and at later positions.

    Some candidate must be equal, and at a later position the same tokens differ, no other.
    """
    own = {token for token, _, _ in found.tokens}
    several = [one for one in later if one.differing]
    alone = [one for one in several if {token for token, _, _ in one.tokens} <= own]
    return found.common > found.differing and bool(several) and len(alone) == len(several)


def _same(a: float, b: float) -> bool:
    return a == b or (np.isnan(a) and np.isnan(b))


ROUNDING = 4.0
"""Largest drift of one module with equal inputs, in ULP of its dtype, that a different kernel
or summation order explains. Measured on the fault corpus: up to 2.7 (docs/causes.md)."""
FEWER_BITS = 0.0005, 0.02
"""Relative: what weights or a computation rounded to fewer bits move a module by. Measured likewise: bfloat16
0.0016, eight bits 0.005."""
OTHER_VALUES = 0.3
"""Relative: from here on most of the row is something else."""
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number."""


def coarser(a: str, b: str) -> str:
    """The dtype whose rounding is larger: a difference between two is counted in it. One that is not known
    counts as the coarser."""
    return max((a, b), key=lambda dtype: EPSILON.get(dtype, math.inf))


def in_ulps(dtype: str, drift: float | None) -> float | None:
    """A relative drift in ULP of a dtype; None: not known."""
    epsilon = EPSILON.get(dtype)
    return None if epsilon is None or drift is None or math.isnan(drift) else drift / epsilon
