"""How large a drift is beside the rounding of a dtype."""

from __future__ import annotations

import math

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


def in_ulps(dtype: str, drift: float | None) -> float | None:
    """A relative drift in ULP of a dtype; None: not known."""
    epsilon = EPSILON.get(dtype)
    return None if epsilon is None or drift is None or math.isnan(drift) else drift / epsilon
