"""The causes of every diverging sequence, each diagnosed as if it were the only one."""

from __future__ import annotations

from dataclasses import replace

from ...schemas.trace import Request
from ...schemas.verdict import Cause
from ..causes.diagnose import Compared, diagnose
from ..causes.first_difference import first_differences
from ..comparison.tally import PairState
from ..reading.load import Trace

MOST_DIAGNOSED = 1000
"""Diverging sequences that are diagnosed."""


def causes_by_sequence(compared: Compared, first: list[Cause]) -> dict[int, list[str]]:
    """Ids of the causes, by rank, of each of the first `MOST_DIAGNOSED` diverging pairs.

    Args:
        compared: Two traces, compared.
        first: The causes of the whole comparison, which are those of its first diverging pair.
    """
    tally, a, b = compared.tally, compared.a, compared.b
    diverged = [state for state in tally.pairs if state.pair.divergence is not None][:MOST_DIAGNOSED]
    requests = _by_request(a), _by_request(b)
    found: dict[int, list[str]] = {}
    for state in diverged:
        if state is diverged[0] and state.first_position is not None:
            found[state.pair.index] = [cause.id for cause in first]
            continue
        one, other = (_only(trace, state, known) for trace, known in zip((a, b), requests, strict=True))
        alone = replace(compared, tally=tally.only(state), a=one, b=other)
        ranked = diagnose(alone, first_differences(alone.tally, one, other))
        found[state.pair.index] = [cause.id for cause in ranked]
    return found


def _by_request(trace: Trace) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in trace.header.requests:
        found.setdefault(request.request_id, []).append(request)
    return found


def _only(trace: Trace, state: PairState, known: dict[str, list[Request]]) -> Trace:
    """The trace as if this request were its only one: causes go through all that the header lists."""
    requests = known.get(state.pair.a.key[0], [])
    return replace(trace, header=trace.header.model_copy(update={"requests": requests}))
