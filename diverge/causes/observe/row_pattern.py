"""What the rows around a first difference look like, read again from both traces: which parts of the row
differ, what the row of B is of A, what rows of other positions and of equal sequences show.

Shapes: P positions of one sequence, S compared sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....schemas.findings.rows import EqualSequences, OtherSequences, RowRelation, RowRelationKind
from ....schemas.findings.statement import SequenceName
from ....schemas.trace import SKETCH_SIZE, Site
from ...comparison.align import Pair
from ...comparison.site_plan import SitePlan
from ...comparison.tabulate import PairRowReader
from ...comparison.tally import LOGITS, PairState, Tally
from ...reading.load import Trace
from .changed_logits import EPSILON, ROUNDING, ChangedLogits, agreed, changed_logits, coarser, in_ulps
from .course import Absorbed, Jump, absorbed, jumps
from .routing import Routing, experts_at_fault, first_routing, has_experts
from .twins import OneTrace, twins_at

_ALIKE = 1e-2
"""Relative: differences of sketches that lie closer than this are one vector, but for rounding."""
_LATER = 16
"""Later positions whose logits are looked at too, where they are all that differs."""
_FEW = 3
"""Rows below which nothing is called constant."""


@dataclass(frozen=True)
class AcrossPositions:
    """The differing rows of the first differing site, in the same sequence."""

    far: list[int] = field(default_factory=list)
    """Positions at which the drift is beyond rounding."""
    near: int = 0
    """How many further rows differ, by no more than rounding."""
    constant: bool = False
    """B's rows less A's are one vector: something constant is added, or missing."""
    lanes: list[int] | None = None
    """Lanes of the sketch that differ in any of these rows; None: too few rows, or too narrow a site."""
    relation: RowRelation | None = None
    """What each of these rows of B is of A's; None: they are not all the same."""


def across_positions(
    rows: PairRowReader, state: PairState, positions: np.ndarray, site: Site
) -> AcrossPositions:
    """Read the site's rows.

    Args:
        rows: Of both sides.
        state: The pair, whose first differing site is looked at.
        positions: Those at which the site differs though its inputs are equal, ascending.
        site: The site.
    """
    epsilon = EPSILON.get(site.dtype)
    if epsilon is None or not len(positions):
        return AcrossPositions()
    (a, norms_a), (b, norms_b) = rows.column(state.pair, positions, state.first_site)
    gaps, size = b.astype(np.float64) - a, np.maximum(np.maximum(norms_a, norms_b), 1e-30)
    with np.errstate(all="ignore"):  # rows may hold NaN or infinity: those are far, and nothing constant
        drifts = np.linalg.norm(gaps, axis=1) / size
        large = ~(drifts <= ROUNDING * epsilon)
        mean = gaps.mean(axis=0)
        scatter = np.linalg.norm(gaps - mean, axis=1)
        # Rows are rounded after the constant was added.
        allowed = _ALIKE * np.linalg.norm(mean) + ROUNDING * epsilon * size
        constant = len(positions) >= _FEW and bool(large.all()) and bool((scatter <= allowed).all())
        constant = constant and bool(np.linalg.norm(mean) > 10 * (ROUNDING * epsilon * size).max())
    # A lane is hardly more than an element of a narrow site, and one row shows no channel.
    agree = site.width >= 2 * SKETCH_SIZE and len(positions) > 1
    return AcrossPositions(
        positions[large].tolist(),
        int(np.count_nonzero(~large)),
        constant,
        np.flatnonzero((a != b).any(axis=0)).tolist() if agree else None,
        _relation_of_all(a, norms_a, b, norms_b),
    )


def _relation_of_all(
    a: np.ndarray, norms_a: np.ndarray, b: np.ndarray, norms_b: np.ndarray
) -> RowRelation | None:
    """What every row of B is of A's. a, b: float32[n, 16]; norms: float32[n]."""
    found = [
        _relation((one, float(size)), (other, float(length)))
        for one, size, other, length in zip(a, norms_a, b, norms_b, strict=True)
    ]
    kinds = {None if one is None else one.relation for one in found}
    if None in kinds:
        return None
    flips: set[RowRelationKind | None] = {"signs flipped", "signs flipped or reordered"}
    if len(kinds) > 1 and not kinds <= flips:
        return None
    factors = [one.factor for one in found if one is not None and one.factor is not None]
    alike = not factors or max(factors) - min(factors) <= 10 * _SAME_SCALE * abs(factors[0])
    least = next((one for one in found if one is not None and one.relation != "signs flipped"), found[0])
    return least if alike else None


def other_sequences(state: PairState, tally: Tally) -> OtherSequences | None:
    """Where the other sequences begin to differ; None: there is no other."""
    same_position: list[SequenceName] = []
    same_site: list[SequenceName] = []
    other_site: list[SequenceName] = []
    equal: list[SequenceName] = []
    for other in tally.pairs:
        if other is state:
            continue
        at = other.first_position
        request_id, sample = other.pair.a.key[:2]
        name = SequenceName(request_id=request_id, sample=sample, position=at)
        if at is None:
            if other.pair.divergence is None:
                equal.append(name)
        elif other.first_site != state.first_site:
            other_site.append(name)
        elif at == state.first_position:
            same_position.append(name)
        else:
            same_site.append(name)
    if not (same_position or same_site or other_site or equal):
        return None
    return OtherSequences(
        same_position=same_position, same_site=same_site, other_site=other_site, equal=equal
    )


WINDOW = 128
"""Positions before and behind the first difference that are read again."""
_SAME_NORM = 1e-6
"""Relative: a norm is a float32 whose sum depends on the order of its terms."""
_SAME_SCALE = 1e-3
"""Relative: sketches of a scaled bfloat16 row are scaled up to its rounding."""


@dataclass(frozen=True)
class RowPattern:
    """What was seen around the first differing row of a sequence."""

    site: Site
    """Of the first difference; named `lm_head` where only the logits show it."""
    position: int
    prompt_length: int
    token: int
    """The token at that position."""
    drift: float | None
    """Relative, from the sketches."""
    lanes_differing: list[int] | None = None
    """Which lanes of the sketch differ in any row that differs with equal inputs: element i adds to lane
    i modulo 16 alone. None: not known, as where a single row differs."""
    likeness: tuple[float, float] | None = None
    """B's norm over A's, and the cosine between the rows estimated by their sketches; None: not known."""
    relation: RowRelation | None = None
    """What each of these rows of B is of A's; None: nothing simple, or not the same of all."""
    shift: int | None = None
    """B's rows here are those that A has so many positions later, from the difference on."""
    equal_before: int = 0
    """Earlier positions of the sequence at which this site's rows are equal."""
    equal_after: int = 0
    """Later ones, of those where everything before this site is equal."""
    differing_after: int = 0
    """Likewise."""
    later_positions: list[int] = field(default_factory=list)
    """Later positions with the token of the first difference: for tables that a token looks up."""
    twins: list[EqualSequences] = field(default_factory=list)
    """What other sequences of one trace with the same tokens show of this row."""
    with_experts: bool = False
    """Experts, or what a router chose, were observed in the block of the site."""
    repeats: int | None = None
    """An earlier position whose row B gives again here, though what it is given differs; None: none."""
    experts: list[int] = field(default_factory=list)
    """Those whose rows alone differ, where the site is the output of experts."""
    routing: Routing | None = None
    """None: no router is known to choose differently."""
    jumps: list[Jump] = field(default_factory=list)
    """Of the first row that has any; empty: the drift grows from site to site, or is not known."""
    absorbed: Absorbed | None = None
    """None: the difference goes on from its first row."""
    logits: ChangedLogits = field(default_factory=ChangedLogits)
    """Which candidates' logits differ, where only logits do."""
    across: AcrossPositions = field(default_factory=AcrossPositions)
    """The rows of this site at the positions where its inputs are equal."""
    others: OtherSequences | None = None
    """Where other sequences begin to differ; None: there are none."""

    @property
    def lanes(self) -> int | None:
        """How many lanes of the sketch differ; None: not known."""
        return None if self.lanes_differing is None else len(self.lanes_differing)

    @property
    def ulps(self) -> float | None:
        """The drift in ULP of the site's dtype."""
        return in_ulps(self.site.dtype, self.drift)


def row_pattern(
    state: PairState,
    tally: Tally,
    traces: tuple[Trace, Trace],
    prompt_length: int,
    dtype: str,
    sides: tuple[OneTrace, OneTrace],
) -> RowPattern | None:
    """Read the rows around the first difference of a pair.

    Args:
        state: A pair with a difference.
        tally: What was compared.
        traces: A and B.
        prompt_length: Of the pair's sequence in A.
        dtype: That of the logits, where they are all that differs.
        sides: The sequences of each trace.
    """
    a, b = traces
    at = state.first_position
    if at is None:
        return None
    plan = _in_coarser_dtype(tally.plan)
    known: dict[str, Any] = {
        "position": at,
        "prompt_length": prompt_length,
        "token": int(state.pair.a.tokens[at]),
        "drift": state.first_drift,
        "others": other_sequences(state, tally),
    }
    if state.first_site == LOGITS:
        before = 0 if at < prompt_length else 1  # the last prompt row has logits, and comes before decoding
        head = Site(name="lm_head", dtype=dtype)
        found = changed_logits(a, b, state, at)
        behind = range(at + 1, min(state.pair.comparable, at + 1 + _LATER))
        later = (changed_logits(a, b, state, position) for position in behind)
        found = replace(found, agreed=agreed(found, later))
        return RowPattern(site=head, equal_before=before, logits=found, **{**known, "drift": found.drift})
    with PairRowReader(a, b, plan) as rows:
        return _pattern(state, plan, rows, known, sides)


def _in_coarser_dtype(plan: SitePlan) -> SitePlan:
    """The sites with the coarser of both sides' dtypes, in which differences are counted."""
    sites = [
        site if site.dtype == other else site.model_copy(update={"dtype": coarser(site.dtype, other)})
        for site, other in zip(plan.sites, plan.dtypes_b, strict=True)
    ]
    return replace(plan, sites=sites)


def _pattern(
    state: PairState,
    plan: SitePlan,
    rows: PairRowReader,
    known: dict[str, Any],
    sides: tuple[OneTrace, OneTrace],
) -> RowPattern:
    pair, site = state.pair, state.first_site
    at = state.first_position
    assert at is not None
    start, stop = max(0, at - WINDOW), min(pair.comparable, at + WINDOW)
    (a, there_a), (b, there_b) = rows.hashes(pair, start, stop)
    both = there_a & there_b & ~plan.by_sketch
    unlike = (a != b).any(axis=2) & both
    fresh = ~unlike[:, :site].any(axis=1) & both[:, site]  # everything before this site is equal there
    later = fresh & (np.arange(start, stop) > at)
    differing = np.flatnonzero(fresh & unlike[:, site]) + start
    tokens = pair.a.tokens
    routing = first_routing(plan, unlike, both, start, rows, state)
    chosen_from = None if routing is None else routing.position
    if plan.sketches:
        across = across_positions(rows, state, differing, plan.sites[site])
        known |= {
            "lanes_differing": across.lanes,
            "likeness": _likeness(rows, state),
            "relation": across.relation,
            "experts": experts_at_fault(
                plan, state, rows.a, np.flatnonzero(fresh) + start, unlike[fresh, site]
            ),
            "across": across,
            "jumps": jumps(rows, state, plan, known["prompt_length"], chosen_from),
        }
    return RowPattern(
        site=plan.sites[site],
        shift=_shift(rows, pair, site, start, at),
        equal_before=int(np.count_nonzero(both[: at - start, site])),
        equal_after=int(np.count_nonzero(later & ~unlike[:, site])),
        differing_after=int(np.count_nonzero(later & unlike[:, site])),
        later_positions=[int(q) for q in np.flatnonzero(tokens[start:stop] == tokens[at]) + start if q > at],
        twins=[
            found
            for side, sequence, reader in zip(sides, (pair.a, pair.b), (rows.a, rows.b), strict=True)
            for found in twins_at(side, sequence, at, site, reader, plan.sites[site].label())
        ],
        repeats=_repeats(a, b, both, tokens[start:stop], site, at - start, start),
        routing=routing,
        with_experts=has_experts(plan, site),
        absorbed=absorbed(plan, unlike, at - start, start),
        **known,
    )


def _sketches(rows: PairRowReader, state: PairState) -> list[tuple[np.ndarray, float]]:
    """Sketch and norm of the first differing row on each side."""
    assert state.first_position is not None
    sides = rows.sketches(state.pair, state.first_position, np.array([state.first_site]))
    return [(sketches[0], float(norms[0])) for sketches, norms in sides]


def _likeness(rows: PairRowReader, state: PairState) -> tuple[float, float] | None:
    (a, norm_a), (b, norm_b) = _sketches(rows, state)
    lengths = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if not (math.isfinite(lengths) and lengths and norm_a):
        return None
    return norm_b / norm_a, float(a.astype(np.float64) @ b.astype(np.float64)) / lengths


def _relation(left: tuple[np.ndarray, float], right: tuple[np.ndarray, float]) -> RowRelation | None:
    """What a row of B is of A's, where that is simple: sketch and norm of each."""
    (a, norm_a), (b, norm_b) = left, right
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or norm_a == 0:
        return None
    if norm_b == 0:
        return RowRelation(relation="zeros")
    if np.array_equal(b, -a):
        return RowRelation(relation="negative")
    scale = float(a @ b) / float(a @ a)
    if abs(scale - 1) > 10 * _SAME_SCALE and np.linalg.norm(b - scale * a) <= _SAME_SCALE * np.linalg.norm(b):
        return RowRelation(relation="scaled", factor=scale)
    if abs(norm_a - norm_b) <= _SAME_NORM * norm_a and np.linalg.norm(a - b) > 0.01 * np.linalg.norm(a):
        one_lane = int(np.count_nonzero(a != b)) == 1
        return RowRelation(relation="signs flipped" if one_lane else "signs flipped or reordered")
    return None


def _repeats(
    a: np.ndarray, b: np.ndarray, both: np.ndarray, tokens: np.ndarray, site: int, at: int, start: int
) -> int | None:
    """The last earlier position whose row B gives again, where A's rows and the inputs differ.

    a, b: uint64[P, S, 2]; both: bool[P, S]; tokens: int32[P]; at: which of the P rows.
    """
    for earlier in range(at - 1, -1, -1):
        same = both[earlier, site] and (b[earlier, site] == b[at, site]).all()
        if not same or (a[earlier, site] == a[at, site]).all():
            continue
        inputs = (b[earlier, :site] != b[at, :site]).any() if site else tokens[earlier] != tokens[at]
        if inputs:
            return start + earlier
    return None


def _shift(rows: PairRowReader, pair: Pair, site: int, start: int, at: int) -> int | None:
    """By how many positions B's rows of one site are ahead of A's, from position `at` on; None: by no number.

    A's rows behind the first divergent token are read too: a table of positions asks for no tokens.
    """
    stop = min(pair.comparable, at + WINDOW)
    a, there_a = rows.a.hashes(pair.a, start, min(pair.a.length, at + WINDOW))
    b, there_b = rows.b.hashes(pair.b, at, stop)
    a, there_a, b, there_b = a[:, site], there_a[:, site], b[:, site], there_b[:, site]
    match = (a == b[0]).all(axis=1) & there_a
    for found in np.flatnonzero(match).tolist():
        count = min(len(b), len(a) - found)
        both = there_a[found : found + count] & there_b[:count]
        same = (a[found : found + count] == b[:count]).all(axis=1)
        ahead = found + start - at
        if ahead and both.any() and same[both].all():
            return int(ahead)
    return None
