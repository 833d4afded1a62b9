"""Reading again, for the table of causes, what a tally does not keep: prompts, how tokens were drawn, how
sequences ended, the rows around the first difference.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np

from ....schemas.trace import SequenceResult
from ...comparison.align import IndexedSequence, row_of
from ...comparison.tabulate import PairRowReader
from ...comparison.tally import LOGITS, PairState, Tally
from ...reading.columns import RowReader, read_values
from ...reading.load import Trace
from .changed_logits import coarser
from .draws import MOST_STEPS, Choices, choices, first_offset
from .routing import is_choice
from .row_pattern import RowPattern, row_pattern
from .twins import OneTrace

_STARTS = 64
"""Sequences whose first draw is looked at."""


@dataclass(frozen=True)
class Observation:
    """What was read again; everything may be missing."""

    pattern: RowPattern | None = None
    """Around the first differing row."""
    prompts: tuple[list[int], list[int]] | None = None
    """Token ids of both prompts of the sequence whose tokens part first."""
    choices: tuple[Choices, Choices] | None = None
    """How its tokens were drawn; in each side's own run, so beyond the first divergent token too."""
    deciding: int | None = None
    """Which of the steps of `choices` chose the first divergent token."""
    starts: list[tuple[int | None, int | None]] = field(default_factory=list)
    """Draws that A and B had taken from the stream before each sequence's first one."""
    ends: tuple[SequenceResult | None, SequenceResult | None] = (None, None)
    """How both sides of that sequence ended."""
    last: tuple[int | None, int | None] = (None, None)
    """Their last tokens."""


def observe(
    tally: Tally,
    traces: tuple[Trace, Trace],
    diverging: PairState | None,
    differing: PairState | None,
    sides: tuple[OneTrace, OneTrace],
) -> Observation:
    """Read it.

    Args:
        tally: What was compared.
        traces: A and B.
        diverging: The pair whose tokens part first.
        differing: The pair that the first differing row is of.
        sides: The sequences of each trace.
    """
    a, b = traces
    pattern = None
    if differing is not None:
        length = prompt_length(a, differing.pair.a)
        pattern = row_pattern(differing, tally, traces, length, coarser(_dtype(a), _dtype(b)), sides)
    if diverging is None:
        return Observation(pattern)
    pair = diverging.pair
    lengths = prompt_length(a, pair.a), prompt_length(b, pair.b)
    prompts = pair.a.tokens[: lengths[0]].tolist(), pair.b.tokens[: lengths[1]].tolist()
    ends = _end(a, pair.a), _end(b, pair.b)
    last = _last(pair.a), _last(pair.b)
    at = pair.divergence
    assert at is not None
    if prompts[0] != prompts[1] or at >= min(pair.a.length, pair.b.length):
        return Observation(pattern, prompts, ends=ends, last=last)
    first = max(lengths[0], at - MOST_STEPS // 2)
    chosen = [
        choices(trace, sequence, lengths[0], range(first, min(sequence.length, first + MOST_STEPS)))
        for trace, sequence in ((a, pair.a), (b, pair.b))
    ]
    known = all(len(side.steps) > at - first for side in chosen)
    starts = [
        (
            first_offset(a, state.pair.a, prompt_length(a, state.pair.a)),
            first_offset(b, state.pair.b, prompt_length(b, state.pair.b)),
        )
        for state in tally.pairs[:_STARTS]
    ]
    return Observation(
        pattern,
        prompts,
        (chosen[0], chosen[1]) if known else None,
        at - first if known else None,
        starts,
        ends,
        last,
    )


def prompt_length(trace: Trace, sequence: IndexedSequence) -> int:
    """Positions of a sequence that are its prompt."""
    reader = RowReader(trace, ["step"])
    low, high = 0, sequence.length
    while low < high:  # prompt rows come first and have no step
        middle = (low + high) // 2
        if reader.read([(row_of(trace, sequence, middle), 1)]).column(0)[0].as_py() is None:
            low = middle + 1
        else:
            high = middle
    return low


def _end(trace: Trace, sequence: IndexedSequence) -> SequenceResult | None:
    return next((one for one in trace.header.results if one.sequence == sequence.number), None)


def _last(sequence: IndexedSequence) -> int | None:
    return int(sequence.tokens[-1]) if sequence.length else None


def _dtype(trace: Trace) -> str:
    """That of the model's numbers, as the lane says."""
    setting = trace.header.lane.settings.get("dtype")
    return str(setting.resolved) if setting is not None else ""


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
