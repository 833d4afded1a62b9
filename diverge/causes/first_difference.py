"""Where two runs differ first: token, site, log-probability, text. It reads the rows again that decide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...schemas.findings.statement import SIDES
from ...schemas.findings.unseen import EarlierRows, RowsUnseen
from ...schemas.trace import Site
from ...schemas.verdict import FirstLogprob, FirstSite, FirstText, FirstToken
from ..comparison.align import IndexedSequence, row_of
from ..comparison.pairing import Pairing
from ..comparison.site_plan import SitePlan
from ..comparison.tally import LOGITS, LOGITS_SITE, PairState, Tally
from ..comparison.topk import differences
from ..reading.columns import read_candidates, read_values
from ..reading.load import NO_TOKEN, Candidates, Trace

_CONTEXT = 40
"""Characters shown before and after the first differing one."""


@dataclass(frozen=True)
class FirstDifferences:
    """Where two runs differ first, in every way that they were compared."""

    diverging: PairState | None
    """The pair that says most: whose tokens part at the earliest step, and not because one side ended."""
    differing: PairState | None
    """The pair that `site` speaks of: the same, if its rows differ; else the first pair in A's order with a
    differing row."""
    token: FirstToken | None
    site: FirstSite | None
    logprob: FirstLogprob | None = None
    text: FirstText | None = None


def first_differences(tally: Tally, a: Trace, b: Trace, pairing: Pairing | None = None) -> FirstDifferences:
    """Find them.

    Args:
        tally: What was compared.
        a: The trace A.
        b: The trace B.
        pairing: Which sequences were compared as text; None: none.
    """
    parted = most_telling(tally, a, b)
    moved = _differing(tally, parted)
    return FirstDifferences(
        diverging=parted,
        differing=moved,
        token=None if parted is None else _first_token(parted, a, b),
        site=None if moved is None else _first_site(moved, tally.plan, a, b),
        logprob=_first_logprob(tally, parted, a),
        text=None if pairing is None else _first_text(pairing),
    )


def most_telling(tally: Tally, a: Trace, b: Trace) -> PairState | None:
    """The pair whose tokens part at the earliest step, first those of which no side has merely ended.

    A prompt comes before every step; of equals the first in A's order.
    """
    parted = [state for state in tally.pairs if state.pair.divergence is not None]
    if len(parted) < 2:
        return parted[0] if parted else None
    sides = [
        [(state.pair.a if index == 0 else state.pair.b, state.pair.divergence or 0) for state in parted]
        for index in (0, 1)
    ]
    steps = [_steps_at(side, trace) for side, trace in zip(sides, (a, b), strict=True)]

    def order(index: int) -> tuple[bool, int]:
        there = [side[index] for side, found in zip(steps, sides, strict=True) if _holds(*found[index])]
        return len(there) < len(sides), min(-1 if step is None else step for step in there)

    return parted[min(range(len(parted)), key=order)]


def _holds(sequence: IndexedSequence, position: int) -> bool:
    return position < sequence.length


def _steps_at(places: list[tuple[IndexedSequence, int]], trace: Trace) -> list[int | None]:
    """The step at each place; None inside the prompt and beyond the end."""
    rows = [row_of(trace, *place) for place in places]
    steps: list[int | None] = read_values(trace, "step", rows)
    return steps


def _differing(tally: Tally, parted: PairState | None) -> PairState | None:
    if parted is not None and parted.first_position is not None:
        return parted
    return next((state for state in tally.pairs if state.first_position is not None), None)


def _first_token(state: PairState, a: Trace, b: Trace) -> FirstToken:
    """The first divergent token of a pair that diverges."""
    assert state.pair.divergence is not None
    pair, position = state.pair, state.pair.divergence
    margins: list[float | None] = [None, None]
    logits = logprobs = moved = None
    draws: list[float | None] = [None, None]
    rows = row_of(a, pair.a, position - 1), row_of(b, pair.b, position - 1)
    if rows[0] >= 0 and rows[1] >= 0:
        sides = [read_candidates(trace, [(row, 1)]) for trace, row in zip((a, b), rows, strict=True)]
        margins = [_number(side.margins()[0]) for side in sides]
        gap = differences(sides[0], sides[1])
        logits, logprobs = _number(gap.max_abs_logit[0]), _number(gap.max_abs_logprob[0])
        moved = _probability_moved(sides[0], sides[1])
        draws = [_draw(trace, row) for trace, row in zip((a, b), rows, strict=True)]
    request = pair.a.key[0]
    sampled = [
        side
        for side, trace, draw in zip(SIDES, (a, b), draws, strict=True)
        if draw is not None or trace.header.is_sampled(request)
    ]
    return FirstToken(
        request_id=pair.a.key[0],
        sample=pair.a.key[1],
        step=_step(a, pair.a, position) if position < pair.a.length else _step(b, pair.b, position),
        position=position,
        token_a=_token(pair.a, position),
        token_b=_token(pair.b, position),
        margin_a=margins[0],
        margin_b=margins[1],
        max_abs_logit_diff=logits,
        max_abs_logprob_diff=logprobs,
        max_abs_prob_diff=moved,
        sampled=sampled or None,
        draw_a=draws[0],
        draw_b=draws[1],
    )


def _draw(trace: Trace, row: int) -> float | None:
    """The draw that chose the token behind a row; None: greedy, or not recorded."""
    sampler = read_values(trace, "sampler", [row])[0]
    return None if sampler is None else sampler.get("draw")


def _probability_moved(a: Candidates, b: Candidates) -> float | None:
    """The largest difference of a candidate's probability, of those that both sides list."""
    left, right = (
        {int(token): float(value) for token, value in zip(side.ids[0], side.logprobs[0], strict=True)}
        for side in (a, b)
    )
    gaps = [
        abs(math.exp(left[token]) - math.exp(right[token]))
        for token in left
        if token != NO_TOKEN and token in right and not math.isnan(left[token] + right[token])
    ]
    return max(gaps, default=None)


def _first_logprob(tally: Tally, parted: PairState | None, a: Trace) -> FirstLogprob | None:
    """The first place where log-probabilities differ: of the sequence that says most, if its differ, else of
    the first one in A's order."""
    moved = [state for state in tally.pairs if state.logprob_position is not None]
    if not moved:
        return None
    state = parted if parted in moved else moved[0]
    assert state is not None
    assert state.logprob_position is not None
    pair, position = state.pair, state.logprob_position + 1  # a row holds the distribution of the NEXT token
    if position < min(pair.a.length, pair.b.length):
        step = _step(a, pair.a, position)
    else:
        before = _step(a, pair.a, position - 1)
        step = 0 if before is None else before + 1
    return FirstLogprob(
        request_id=pair.a.key[0],
        sample=pair.a.key[1],
        step=step,
        position=position,
        max_abs_diff=state.logprob_gap,
    )


def _first_text(pairing: Pairing) -> FirstText | None:
    """The first differing character of the first sequence that is compared as text and differs."""
    for text in pairing.texts:
        at = text.difference
        if at is not None:
            return FirstText(
                request_id=text.key[0],
                sample=text.key[1],
                character=at,
                before=text.a[max(0, at - _CONTEXT) : at],
                a=text.a[at : at + _CONTEXT],
                b=text.b[at : at + _CONTEXT],
            )
    return None


def first_rows(tally: Tally, a: Trace, b: Trace) -> list[tuple[Trace, int]]:
    """The row in A and in B that `first_site` speaks of; none where only the logits differ, or nothing."""
    state = _differing(tally, most_telling(tally, a, b))
    if state is None or state.first_position is None or state.first_site == LOGITS:
        return []
    return [
        (trace, row_of(trace, sequence, state.first_position))
        for trace, sequence in ((a, state.pair.a), (b, state.pair.b))
    ]


def _first_site(state: PairState, plan: SitePlan, a: Trace, b: Trace) -> FirstSite:
    """The first differing row of a pair, and whether it is an origin."""
    assert state.first_position is not None
    site = Site(name=LOGITS_SITE) if state.first_site == LOGITS else plan.sites[state.first_site]
    unseen = _unseen(state, plan, a, b)
    return FirstSite(
        request_id=state.pair.a.key[0],
        sample=state.pair.a.key[1],
        position=state.first_position,
        site=site.name,
        occurrence=site.occurrence,
        part=site.part,
        rel_drift=state.first_drift,
        is_origin=not unseen,
        unseen=unseen,
    )


def _unseen(state: PairState, plan: SitePlan, a: Trace, b: Trace) -> list[EarlierRows]:
    """Which earlier rows were not there to compare."""
    if not plan.sites:
        return [RowsUnseen(kind="no sites")]
    unseen: list[EarlierRows] = []
    at_logits = state.first_site == LOGITS
    # At later positions every earlier row counts, up to the last compared site; later ones feed nothing.
    whole = state.first_position or at_logits
    before = int(plan.unproven_before[-1 if whole else state.first_site])
    by_sketch = int(np.count_nonzero(plan.by_sketch[: None if whole else state.first_site + 1]))
    if by_sketch:
        unseen.append(RowsUnseen(kind="by sketch", count=by_sketch))
    if before > int(plan.by_sketch[:-1].sum() if whole else plan.by_sketch[: state.first_site].sum()):
        unseen.append(RowsUnseen(kind="not in both"))
    if state.first_hole is not None:
        position, index = state.first_hole
        unseen.append(
            RowsUnseen(
                kind="not computed", count=state.holes, position=position, site=plan.sites[index].label()
            )
        )
    for trace in (a, b):
        wanted = trace.header.site_filter
        if wanted:
            unseen.append(RowsUnseen(kind="filtered", trace=trace.path.name, pattern=wanted))
    return unseen


def _step(trace: Trace, sequence: IndexedSequence, position: int) -> int | None:
    step: int | None = read_values(trace, "step", [row_of(trace, sequence, position)])[0]
    return step


def _token(sequence: IndexedSequence, position: int) -> int | None:
    return int(sequence.tokens[position]) if position < sequence.length else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
