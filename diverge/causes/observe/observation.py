"""Reading again, for the table of causes, what a tally does not keep: prompts, how tokens were drawn, how
sequences ended, the rows around the first difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....schemas.trace import SequenceResult
from ...comparison.align import IndexedSequence, row_of
from ...comparison.tally import PairState, Tally
from ...reading.columns import RowReader
from ...reading.load import Trace
from .draws import MOST_STEPS, Choices, choices, first_offset
from .row_pattern import RowPattern, row_pattern

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
    tally: Tally, a: Trace, b: Trace, diverging: PairState | None, differing: PairState | None
) -> Observation:
    """Read it.

    Args:
        tally: What was compared.
        a: The trace A.
        b: The trace B.
        diverging: The pair whose tokens part first.
        differing: The pair that the first differing row is of.
    """
    pattern = None
    if differing is not None:
        pattern = row_pattern(differing, tally, a, b, prompt_length(a, differing.pair.a), _dtype(a))
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
    sides = [
        choices(trace, sequence, lengths[0], range(first, min(sequence.length, first + MOST_STEPS)))
        for trace, sequence in ((a, pair.a), (b, pair.b))
    ]
    known = all(len(side.steps) > at - first for side in sides)
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
        (sides[0], sides[1]) if known else None,
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
