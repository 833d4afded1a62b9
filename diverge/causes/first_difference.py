"""From a tally to first token, first site and ranked causes; it re-reads the few rows that decide."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...schemas.change import Change
from ...schemas.reference import Reference
from ...schemas.trace import Site
from ...schemas.verdict import Cause, FirstLogprob, FirstSite, FirstText, FirstToken
from ..comparison.align import IndexedSequence, row_of
from ..comparison.pairing import Pairing
from ..comparison.site_plan import SitePlan
from ..comparison.tally import LOGITS, LOGITS_SITE, PairState, Tally
from ..comparison.topk import differences
from ..present.format import plural
from ..reading.candidates import Candidates
from ..reading.columns import CandidateReader, RowReader
from ..reading.load import Trace
from .evidence import Evidence, RowFacts
from .gather import gather
from .rank import rank

_SHAPES = ["batch_size", "padded_tokens", "num_tokens", "cached_tokens"]
_CONTEXT = 40
"""Characters shown before and after the first differing one."""


def diverging(tally: Tally) -> PairState | None:
    """The first pair, in A's order, whose tokens part."""
    return next((state for state in tally.pairs if state.pair.divergence is not None), None)


def differing(tally: Tally) -> PairState | None:
    """The pair that `first_site` speaks of: the one whose tokens part first, if its rows differ; else the
    first pair in A's order with a differing row."""
    first = diverging(tally)
    if first is not None and first.first_position is not None:
        return first
    return next((state for state in tally.pairs if state.first_position is not None), None)


def first_token(tally: Tally, a: Trace, b: Trace) -> FirstToken | None:
    """The first divergent token of the first pair that diverges."""
    state = diverging(tally)
    if state is None or state.pair.divergence is None:
        return None
    pair, position = state.pair, state.pair.divergence
    margins: list[float | None] = [None, None]
    logits = logprobs = None
    rows = row_of(a, pair.a, position - 1), row_of(b, pair.b, position - 1)
    if rows[0] >= 0 and rows[1] >= 0:
        sides = [_candidates(trace, row) for trace, row in zip((a, b), rows, strict=True)]
        margins = [_number(side.margins()[0]) for side in sides]
        gap = differences(sides[0], sides[1])
        logits, logprobs = _number(gap.max_abs_logit[0]), _number(gap.max_abs_logprob[0])
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
    )


def first_logprob(tally: Tally, a: Trace, b: Trace) -> FirstLogprob | None:
    """The first place where log-probabilities differ: of the sequence whose tokens part first, if its differ,
    else of the first one in A's order."""
    moved = [state for state in tally.pairs if state.logprob_position is not None]
    if not moved:
        return None
    first = diverging(tally)
    state = first if first in moved else moved[0]
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


def first_text(pairing: Pairing) -> FirstText | None:
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


def first_row(tally: Tally, a: Trace, b: Trace) -> list[tuple[Trace, int]]:
    """The row in A and in B that `first_site` speaks of; none where only the logits differ, or nothing."""
    state = differing(tally)
    if state is None or state.first_position is None or state.first_site == LOGITS:
        return []
    return [
        (trace, row_of(trace, sequence, state.first_position))
        for trace, sequence in ((a, state.pair.a), (b, state.pair.b))
    ]


def first_site(tally: Tally, a: Trace, b: Trace) -> FirstSite | None:
    """The first differing row of the pair that `differing` names, and whether it is an origin."""
    state = differing(tally)
    if state is None or state.first_position is None:
        return None
    plan = tally.plan
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
        unseen="; ".join(unseen) or None,
    )


def _unseen(state: PairState, plan: SitePlan, a: Trace, b: Trace) -> list[str]:
    """Which earlier rows were not there to compare."""
    unseen: list[str] = []
    if not plan.sites:
        return ["no sites were compared, so the layers before the logits were not seen"]
    at_logits = state.first_site == LOGITS
    # At later positions every earlier row counts, up to the last compared site; later ones feed nothing.
    whole = state.first_position or at_logits
    before = int(plan.unproven_before[-1 if whole else state.first_site])
    by_sketch = int(np.count_nonzero(plan.by_sketch[: None if whole else state.first_site + 1]))
    if by_sketch:
        unseen.append(f"{plural(by_sketch, 'site')} at or before it could be compared by sketch only")
    if before > int(plan.by_sketch[:-1].sum() if whole else plan.by_sketch[: state.first_site].sum()):
        unseen.append("earlier sites that only one of the traces holds, or that could not be compared")
    if state.first_hole is not None:
        position, index = state.first_hole
        label = plan.sites[index].label()
        unseen.append(
            f"{state.holes:,} earlier rows were not computed in both runs (a cached prefix?), the first at "
            f"position {position} site {label}"
        )
    for trace in (a, b):
        wanted = trace.header.site_filter
        if wanted:
            unseen.append(f"{trace.path.name} observed only sites that match {wanted!r}")
    return unseen


def causes(
    tally: Tally,
    a: Trace,
    b: Trace,
    names: tuple[Path, Path, Path],
    changes: list[Change],
    token: FirstToken | None,
    site: FirstSite | None,
    text: FirstText | None,
    reference: Reference | None = None,
) -> list[Cause]:
    """The ranked causes.

    Args:
        tally: What was compared.
        a: The trace A.
        b: The trace B.
        names: The paths of A, B and the result, for commands.
        changes: Fingerprint drift from A to B.
        token: The first divergent token.
        site: The first differing site.
        text: The first difference of a text, where sequences are compared as text.
        reference: How both sides lie to a reference trace, where one was given.
    """
    differs = differing(tally) is not None or tally.largest > 0 or text is not None
    if token is None and site is None and not differs:
        return []
    deciding = diverging(tally)
    rows = None
    if deciding is not None and token is not None and token.position:
        rows = _facts(deciding, token.position - 1, a, b)
    state = differing(tally)
    evidence = Evidence(
        name_a=str(names[0]),
        name_b=str(names[1]),
        result=str(names[2]),
        header_a=a.header,
        header_b=b.header,
        changes=changes,
        sites=tally.plan.sites,
        dtypes_b=tally.plan.dtypes_b,
        first_token=token,
        first_site=site,
        first_text=text,
        differs=differs,
        ended="" if token is None else "A" if token.token_a is None else "B" if token.token_b is None else "",
        logits_equal=None
        if deciding is None or token is None
        else _logits_equal(deciding, token.position - 1, a, b),
        deciding=rows,
        differing=None if state is None or site is None else _facts(state, site.position, a, b),
        nonfinite=_nonfinite(state, token, site),
        seen=gather(tally, a, b, deciding, state if site is not None else None),
        reference=reference,
    )
    return rank(evidence)


def _nonfinite(state: PairState | None, token: FirstToken | None, site: FirstSite | None) -> list[str]:
    """Sentences about NaN and infinity at the first differing row and in the deciding logits."""
    found: list[str] = []
    if state is not None and site is not None:
        for name, norm in zip("AB", state.first_norms or (), strict=False):
            if not math.isfinite(norm):
                found.append(
                    f"{site.site} at position {site.position} is not finite in {name}: its norm is {norm}"
                )
    gap = None if token is None else token.max_abs_logit_diff
    if token is not None and gap is not None and not math.isfinite(gap):
        found.append(f"the logits that chose position {token.position} are not finite on one side")
    return found


def _logits_equal(state: PairState, position: int, a: Trace, b: Trace) -> bool | None:
    rows = row_of(a, state.pair.a, position), row_of(b, state.pair.b, position)
    if min(rows) < 0:
        return None
    hashes = [
        _read(trace, row, ["logits_hash"]).column(0)[0].as_py()
        for trace, row in zip((a, b), rows, strict=True)
    ]
    return None if None in hashes else hashes[0] == hashes[1]


def _facts(state: PairState, position: int, a: Trace, b: Trace) -> tuple[RowFacts, RowFacts]:
    found: list[RowFacts] = []
    for trace, sequence in ((a, state.pair.a), (b, state.pair.b)):
        reader = RowReader(trace, [*_SHAPES, "sampler"])
        row, start = (reader.read([(row_of(trace, sequence, at), 1)]).to_pylist()[0] for at in (position, 0))
        shape: dict[str, int | None] = {name: row[name] for name in _SHAPES}
        # Padding of the prompt stays in the KV cache, so a decode step still computes beside it.
        padded = [one["padded_tokens"] for one in (row, start) if one["padded_tokens"] is not None]
        shape["padded_tokens"] = max(padded, default=None)
        found.append(RowFacts(shape, row["sampler"]))
    return found[0], found[1]


def _read(trace: Trace, row: int, columns: list[str]) -> Any:
    return RowReader(trace, columns).read([(row, 1)])


def _candidates(trace: Trace, row: int) -> Candidates:
    reader = CandidateReader(trace)
    found = reader.read([(row, 1)])
    reader.close()
    return found


def _step(trace: Trace, sequence: IndexedSequence, position: int) -> int | None:
    step: int | None = _read(trace, row_of(trace, sequence, position), ["step"]).column(0)[0].as_py()
    return step


def _token(sequence: IndexedSequence, position: int) -> int | None:
    return int(sequence.tokens[position]) if position < sequence.length else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
