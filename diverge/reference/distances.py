"""How far the rows of several traces lie from those of a reference: read, aligned, as matrices.

N: rows (positions of sequences) at which all traces have the same tokens up to there, S: sites that all have,
and the logits as one more. It judges nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...schemas.reference import NotJudged
from ...schemas.trace import SKETCH_SIZE
from ..comparison.align import IndexedSequence, Pair, SequenceKey, first_divergence, index_sequences
from ..comparison.site_plan import SitePlan, plan_sites
from ..comparison.topk import differences
from ..reading.columns import read_candidates
from ..reading.load import Trace, site_key
from ..reading.site_columns import SiteReader

MOST_ROWS = 1 << 14
"""Rows that are read; of more, every second, third, … one of each sequence."""
_SKETCHES = 1 << 16  # of one trace that are held at a time


@dataclass(frozen=True)
class Distances:
    """Distances to the reference, ‖S(x) − S(r)‖ / ‖r‖; of the logits the largest absolute difference."""

    labels: list[str]
    """S: sites in A's execution order, then `logits` or `logprobs` where all traces have them."""
    dtypes: list[tuple[str, str, str]]
    """S: of A's, B's and the reference's rows; empty texts for the logits."""
    pair: np.ndarray
    """int32[N], ascending."""
    position: np.ndarray
    """int32[N], ascending in a pair."""
    a: np.ndarray
    """float32[N, S]; NaN where a row is not there, infinite where it is not finite."""
    b: np.ndarray
    noise: list[np.ndarray]
    """Likewise, one for every repeat of A's lane."""
    is_clearly_farther: list[np.ndarray]
    """float32[N, S]: how far each repeat is from A, in the same unit."""
    covered: int
    """Rows that could have been read."""
    keys: dict[int, SequenceKey]
    """Of the pairs."""


def read_distances(
    pairs: list[Pair], a: Trace, b: Trace, reference: Trace, noise: list[Trace]
) -> Distances | NotJudged:
    """Read what can be compared.

    Returns:
        The distances, or why there are none.

    Raises:
        BadInput: A trace is damaged.
    """
    traces = [reference, a, b, *noise]
    indexed = [index_sequences(trace)[0] for trace in (reference, *noise)]
    aligned = _align(pairs, indexed)
    if aligned is None:
        return _nothing_shared(pairs, indexed[0])
    sites = _shared([plan_sites(a, other) for other in (reference, b, *noise)])
    labels = [a.header.sites[index].label() for index in sites]
    in_header = [[trace.header.sites[i] for i in _header_indices(trace, a, sites)] for trace in traces[:3]]
    dtypes = [(one.dtype, other.dtype, r.dtype) for r, one, other in zip(*in_header, strict=True)]
    columns = [_columns(trace, a, sites) for trace in traces]
    distances = _site_distances(traces, columns, aligned.rows) if len(sites) else []
    kind, logits = _logit_distances(traces, aligned.rows)
    if not labels and not kind:
        return NotJudged(kind="nothing shared")
    if kind:
        labels, dtypes = [*labels, kind], [*dtypes, ("", "", "")]
        last = [column[:, None] for column in logits]
        distances = [np.hstack(both) for both in zip(distances, last, strict=True)] if distances else last
    n = len(noise)
    return Distances(
        labels=labels,
        dtypes=dtypes,
        pair=aligned.pair,
        position=aligned.position,
        a=distances[0],
        b=distances[1],
        noise=distances[2 : 2 + n],
        is_clearly_farther=distances[2 + n :],
        covered=aligned.covered,
        keys={pair.index: pair.a.key for pair in pairs},
    )


@dataclass(frozen=True)
class _Aligned:
    """The rows that are read: N positions at which the reference, A and B have the same tokens."""

    rows: list[np.ndarray]
    """int64[N] for the reference, A, B and each repeat: rows of the trace; −1 where a repeat has none."""
    pair: np.ndarray
    """int32[N]"""
    position: np.ndarray
    """int32[N]"""
    covered: int


def _align(pairs: list[Pair], indexed: list[dict[SequenceKey, IndexedSequence]]) -> _Aligned | None:
    """Choose the rows, evenly spaced; None where there are none.

    Args:
        pairs: The compared sequences.
        indexed: Of the reference and of the repeats.
    """
    rows: list[list[np.ndarray]] = []
    position: list[np.ndarray] = []
    pair_of: list[np.ndarray] = []
    shared = [_aligned(pair, [_same_sequence(sequences, pair.a) for sequences in indexed]) for pair in pairs]
    covered = sum(length for length, _ in shared)
    stride = max(1, math.ceil(covered / MOST_ROWS))
    for pair, (length, others) in zip(pairs, shared, strict=True):
        wanted = np.arange(0, length, stride)
        if not len(wanted) or others[0] is None:
            continue
        sequences = [others[0], pair.a, pair.b, *others[1:]]
        rows.append([_rows_of(sequence, wanted) for sequence in sequences])
        position.append(wanted.astype(np.int32))
        pair_of.append(np.full(len(wanted), pair.index, np.int32))
    if not rows:
        return None
    joined = [np.concatenate(side) for side in zip(*rows, strict=True)]
    return _Aligned(joined, np.concatenate(pair_of), np.concatenate(position), covered)


def _nothing_shared(pairs: list[Pair], reference: dict[SequenceKey, IndexedSequence]) -> NotJudged:
    """Why no token of the reference could be compared."""
    if not pairs:
        return NotJudged(kind="no token ids")
    in_a, in_reference = ({key[0] for key in keys} for keys in ([pair.a.key for pair in pairs], reference))
    if in_a & in_reference:
        return NotJudged(kind="different tokens")
    return NotJudged(
        kind="different requests", requests_a=sorted(in_a), requests_reference=sorted(in_reference)
    )


def _shared(plans: list[SitePlan]) -> np.ndarray:
    """int64[S]: sites in A's header that have sketches of one kind everywhere, in their order."""
    if not all(plan.sketches for plan in plans):
        return np.empty(0, np.int64)
    shared = set(plans[0].of_a.tolist())
    for plan in plans[1:]:
        shared &= set(plan.of_a.tolist())
    return np.array(sorted(shared), np.int64)


def _header_indices(trace: Trace, a: Trace, sites: np.ndarray) -> list[int]:
    index_of = {site_key(site): index for index, site in enumerate(trace.header.sites)}
    return [index_of[site_key(a.header.sites[index])] for index in sites]


def _columns(trace: Trace, a: Trace, sites: np.ndarray) -> dict[int, np.ndarray]:
    """For each file of a trace, the index of the sites in its columns; −1: not there."""
    header = _header_indices(trace, a, sites)
    return {id(part): part.columns_of[header] for part in trace.files}


def _same_sequence(
    sequences: dict[tuple[str, int, str], IndexedSequence], wanted: IndexedSequence
) -> IndexedSequence | None:
    """The same sequence in a different trace; else any of the same request that begins as it does."""
    if wanted.key in sequences:
        return sequences[wanted.key]
    same = [sequence for key, sequence in sequences.items() if key[0] == wanted.key[0]]
    return max(same, key=lambda other: _common(wanted, other), default=None)


def _common(a: IndexedSequence, b: IndexedSequence) -> int:
    """Positions whose tokens, and all before them, are equal."""
    parted = first_divergence(a.tokens, b.tokens)
    return a.length if parted is None else parted


def _aligned(pair: Pair, others: list[IndexedSequence | None]) -> tuple[int, list[IndexedSequence | None]]:
    """How many positions the reference shares with both sides, and the sequences."""
    if others[0] is None:
        return 0, others
    return min(pair.comparable, _common(pair.a, others[0])), [
        other if index == 0 or (other is not None and _common(pair.a, other)) else None
        for index, other in enumerate(others)
    ]


def _rows_of(sequence: IndexedSequence | None, wanted: np.ndarray) -> np.ndarray:
    """int64[n]: rows of positions in their trace; −1 where the sequence ends before."""
    rows = np.full(len(wanted), -1, np.int64)
    for piece in sequence.pieces if sequence is not None else []:
        here = (wanted >= piece.position) & (wanted < piece.position + piece.count)
        rows[here] = piece.row + wanted[here] - piece.position
    return rows


def _site_distances(
    traces: list[Trace], columns: list[dict[int, np.ndarray]], rows: list[np.ndarray]
) -> list[np.ndarray]:
    """float32[N, S] for A, B and the repeats; then for the repeats against A."""
    n, s = len(rows[0]), len(next(iter(columns[0].values())))
    found = [np.full((n, s), np.nan, np.float32) for _ in range(2 * len(traces) - 4)]
    readers = [SiteReader(trace) for trace in traces]
    step = max(1, _SKETCHES // s)
    try:
        for first in range(0, n, step):
            at = slice(first, min(first + step, n))
            sides = [
                _read(reader, of_part, side[at], s)
                for reader, of_part, side in zip(readers, columns, rows, strict=True)
            ]
            for index, side in enumerate(sides[1:]):
                found[index][at] = _distance(side, sides[0], sides[0])
            for index, side in enumerate(sides[3:], start=len(sides) - 1):
                found[index][at] = _distance(side, sides[1], sides[0])
    finally:
        for reader in readers:
            reader.close()
    return found


def _read(
    reader: SiteReader, of_part: dict[int, np.ndarray], rows: np.ndarray, s: int
) -> tuple[np.ndarray, np.ndarray]:
    """Norms, float32[n, S], and sketches, float32[n, S, 16], of some rows; 0 where they are not there."""
    trace = reader.trace
    l2, sketch = np.zeros((len(rows), s), np.float32), np.zeros((len(rows), s, SKETCH_SIZE), np.float32)
    groups = np.array([trace.group_of(row) if row >= 0 else -1 for row in rows.tolist()])
    for number in np.unique(groups[groups >= 0]).tolist():
        group = trace.groups[number]
        columns = of_part[id(group.part)]
        here = np.flatnonzero(groups == number)
        here = here[np.argsort(rows[here], kind="stable")]
        sites = np.flatnonzero(columns >= 0)
        if not len(sites):
            continue
        inside = np.repeat(rows[here] - group.first_row, len(sites))
        slots = np.tile(columns[sites], len(here))
        opened = reader.group(number)
        shape = (len(here), len(sites))
        l2[np.ix_(here, sites)] = opened.take("site_l2", inside, slots).reshape(shape)
        sketch[np.ix_(here, sites)] = opened.take("site_sketch", inside, slots).reshape(*shape, SKETCH_SIZE)
    return l2, sketch


def _distance(
    one: tuple[np.ndarray, np.ndarray],
    other: tuple[np.ndarray, np.ndarray],
    scale: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """float32[n, S], in units of the norms of `scale`. A norm of 0 says that the row is not there."""
    there = (one[0] != 0) & (other[0] != 0) & (scale[0] != 0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = one[1] - other[1]
        far = np.sqrt(np.einsum("ijk,ijk->ij", gap, gap)) / scale[0]
    broken = ~np.isfinite(far) & np.isfinite(scale[0])
    return np.where(there, np.where(broken, np.float32(np.inf), far), np.float32(np.nan))


def _logit_distances(traces: list[Trace], rows: list[np.ndarray]) -> tuple[str, list[np.ndarray]]:
    """What the distributions are compared by (empty: nothing); float32[N] each, as `_site_distances`."""
    sides = []
    for trace, side in zip(traces, rows, strict=True):
        edges = [0, *(np.flatnonzero((side[1:] != side[:-1] + 1) | (side[1:] <= 0)) + 1).tolist(), len(side)]
        sides.append(read_candidates(trace, [(int(side[i]), j - i) for i, j in pairwise(edges)]))
    compared = [differences(side, sides[0]) for side in sides[1:]]
    compared += [differences(side, sides[1]) for side in sides[3:]]
    for kind, name in (("logits", "max_abs_logit"), ("logprobs", "max_abs_logprob")):
        found = [np.asarray(getattr(gap, name), np.float32) for gap in compared]
        if all((~np.isnan(gap)).any() for gap in found):
            return kind, found
    return "", []
