"""Where a difference began within one forward pass, for the two that pass from later to earlier positions.

A causal mask does not hold back a NaN (zero times NaN is NaN), and experts compute the tokens of a pass
together, so that the routing of one token moves the rounding of others. In causal order the rows of earlier
positions come first; where it began is the module that ran first.
"""

from __future__ import annotations

import math
import re

import numpy as np

from ...comparison.align import IndexedSequence, row_of
from ...comparison.site_rows import PairRowReader
from ...comparison.tally import LOGITS, PairState, Tally
from ...reading.columns import read_values
from ...reading.load import Trace
from .routing import is_choice

_LONGEST_PASS = 4096
"""Positions behind the first difference that are looked at."""
_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")


_MOST = 1000
"""Pairs that are looked at."""


def begin_where_they_ran_first(tally: Tally, a: Trace, b: Trace) -> None:
    """Move the first difference of pairs to the earliest differing module of its forward pass.

    Only of those whose first differing row is not finite, or is of experts while routers chose otherwise at a
    later position.

    Args:
        tally: What was compared.
        a: The trace A.
        b: The trace B.
    """
    moved = 0
    for state in tally.pairs:
        if state.first_position is None or state.first_site == LOGITS or moved == _MOST:
            continue
        infinite = not all(math.isfinite(norm) for norm in state.first_norms or ())
        if infinite or _EXPERTS.search(tally.plan.sites[state.first_site].name):
            moved += 1
            _begin_where_it_ran_first(state, state.first_position, tally, a, b, infinite)


def _begin_where_it_ran_first(
    state: PairState, at: int, tally: Tally, a: Trace, b: Trace, infinite: bool
) -> None:
    pair = state.pair
    stop = min(pair.comparable, at + _LONGEST_PASS)
    in_pass = _in_pass(a, pair.a, at, stop) & _in_pass(b, pair.b, at, stop)
    with PairRowReader(a, b, tally.plan) as rows:
        (left, there_a), (right, there_b) = rows.hashes(pair, at, stop)
        unlike = (left != right).any(axis=2) & there_a & there_b & ~tally.plan.by_sketch
        unlike &= in_pass[:, None]
        site = int(unlike.any(axis=0).argmax())
        chosen = [index for index, one in enumerate(tally.plan.sites) if is_choice(one)]
        if site >= state.first_site or not (infinite or unlike[:, chosen].any()):
            return
        position = at + int(unlike[:, site].argmax())
        (a_sketch, a_norm), (b_sketch, b_norm) = rows.sketches(pair, position, np.array([site]))
    norms = float(a_norm[0]), float(b_norm[0])
    finite = all(math.isfinite(norm) for norm in norms)
    if infinite and finite:
        return
    gap = float(np.linalg.norm(a_sketch[0] - b_sketch[0])) / max(norms) if finite and max(norms) else math.nan
    state.begin_at(position, site, gap if tally.plan.sketches else None, norms)


def _in_pass(trace: Trace, sequence: IndexedSequence, start: int, stop: int) -> np.ndarray:
    """bool[stop − start]: which positions ran in the same forward pass as the first of them."""
    rows = [row_of(trace, sequence, position) for position in range(start, stop)]
    cached = read_values(trace, "cached_tokens", rows)
    return np.array([value == cached[0] for value in cached])
