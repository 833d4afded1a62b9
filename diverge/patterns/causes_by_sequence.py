"""The causes of every diverging sequence, each looked at as if it were the only one."""

from __future__ import annotations

import copy
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
"""Diverging sequences that are looked at."""


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
        reference: How both sides lie to a reference trace, where one was given.
    """
    parted = [state for state in tally.pairs if state.pair.divergence is not None][:MOST_DIAGNOSED]
    known = diverging(tally)
    asked = _by_request(a), _by_request(b)
    found: dict[int, list[str]] = {}
    for state in parted:
        if state is known and state.first_position is not None:
            found[state.pair.index] = [cause.id for cause in first]
            continue
        alone = _alone(tally, state)
        one, other = (_only(trace, state, said) for trace, said in zip((a, b), asked, strict=True))
        token, site = first_token(alone, one, other), first_site(alone, one, other)
        ranked = causes(alone, one, other, names, changes, token, site, None, reference)
        found[state.pair.index] = [cause.id for cause in ranked]
    return found


def _by_request(trace: Trace) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in trace.header.requests:
        found.setdefault(request.request_id, []).append(request)
    return found


def _only(trace: Trace, state: PairState, asked: dict[str, list[Request]]) -> Trace:
    """The trace as if this request were its only one: causes go through all that the header lists."""
    requests = asked.get(state.pair.a.key[0], [])
    return replace(trace, header=trace.header.model_copy(update={"requests": requests}))


def _alone(tally: Tally, state: PairState) -> Tally:
    """The tally as if this were the only pair, as far as causes look at it."""
    alone = copy.copy(tally)
    alone.pairs = [state]
    if state.logits_position is None and state.logprob_position is None:
        alone.largest = 0.0
    return alone
