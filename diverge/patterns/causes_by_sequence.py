"""The causes of every diverging sequence, each diagnosed as if it were the only one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...schemas.change import Change
from ...schemas.reference import Reference
from ...schemas.trace import Request
from ...schemas.verdict import Cause
from ..causes.first_difference import causes, diverging, first_site, first_token
from ..comparison.tally import PairState, Tally
from ..reading.load import Trace

MOST_DIAGNOSED = 1000
"""Diverging sequences that are diagnosed."""


def causes_by_sequence(
    tally: Tally,
    a: Trace,
    b: Trace,
    names: tuple[Path, Path, Path],
    changes: list[Change],
    first: list[Cause],
    reference: Reference | None = None,
) -> dict[int, list[str]]:
    """Ids of the causes, by rank, of each of the first `MOST_DIAGNOSED` diverging pairs.

    Args:
        tally: What was compared.
        a: The trace A.
        b: The trace B.
        names: The paths of A, B and the result.
        changes: Fingerprint drift from A to B.
        first: The causes of the whole comparison, which are those of its first diverging pair.
        reference: Both sides beside a reference trace; None without one.
    """
    diverged = [state for state in tally.pairs if state.pair.divergence is not None][:MOST_DIAGNOSED]
    first_diverging = diverging(tally)
    requests = _by_request(a), _by_request(b)
    found: dict[int, list[str]] = {}
    for state in diverged:
        if state is first_diverging and state.first_position is not None:
            found[state.pair.index] = [cause.id for cause in first]
            continue
        alone = tally.only(state)
        one, other = (_only(trace, state, known) for trace, known in zip((a, b), requests, strict=True))
        token, site = first_token(alone, one, other), first_site(alone, one, other)
        ranked = causes(alone, one, other, names, changes, token, site, None, reference)
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
