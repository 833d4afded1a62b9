"""How far the rows of several traces lie from those of a reference: read, aligned, as matrices.

N: rows (positions of sequences) at which all traces have the same tokens up to there, S: sites that all have,
and the logits as one more. It judges nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...schemas.trace import SKETCH_SIZE
from ..comparison.align import IndexedSequence, Pair, SequenceKey, first_divergence, index_sequences
from ..comparison.site_plan import SitePlan, plan_sites
from ..comparison.topk import differences
from ..reading.columns import CandidateReader
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
    apart: list[np.ndarray]
    """float32[N, S]: how far each repeat is from A, in the same unit."""
    covered: int
    """Rows that could have been read."""
    keys: dict[int, SequenceKey]
    """Of the pairs."""


def read_distances(
    pairs: list[Pair], a: Trace, b: Trace, reference: Trace, noise: list[Trace]
) -> Distances | str:
    """Read what can be compared.

    Returns:
        The distances, or why there are none.

    Raises:
        BadInput: A trace is damaged.
    """
    traces = [reference, a, b, *noise]
    plans = [plan_sites(a, other) for other in (reference, b, *noise)]
    sites = _shared(plans)
    places = [_places(trace, a, sites) for trace in traces]
    found = [index_sequences(trace)[0] for trace in (reference, *noise)]
    rows: list[list[np.ndarray]] = []
    position: list[np.ndarray] = []
    pair_of: list[np.ndarray] = []
    known = [_aligned(pair, [_named(sequences, pair.a) for sequences in found]) for pair in pairs]
    covered = sum(length for length, _ in known)
    stride = max(1, math.ceil(covered / MOST_ROWS))
    for pair, (length, others) in zip(pairs, known, strict=True):
        wanted = np.arange(0, length, stride)
        if not len(wanted) or others[0] is None:
            continue
        sequences = [others[0], pair.a, pair.b, *others[1:]]
        rows.append([_rows_of(sequence, wanted) for sequence in sequences])
        position.append(wanted.astype(np.int32))
        pair_of.append(np.full(len(wanted), pair.index, np.int32))
    if not rows:
        return _nothing_shared(pairs, found[0])
    joined = [np.concatenate(side) for side in zip(*rows, strict=True)]
    gaps = _site_distances(traces, places, joined) if len(sites) else []
    names = [a.header.sites[index].label() for index in sites]
    dtypes = [
        (a.header.sites[i].dtype, b.header.sites[j].dtype, reference.header.sites[r].dtype)
        for i, j, r in zip(
            sites, _header_places(b, a, sites), _header_places(reference, a, sites), strict=True
        )
    ]
    kind, logits = _logit_distances(traces, joined)
    if not names and not kind:
        return "the reference shares neither sites (with sketches of one kind) nor distributions with A and B"
    if kind:
        names, dtypes = [*names, kind], [*dtypes, ("", "", "")]
        columns = [extra[:, None] for extra in logits]
        gaps = [np.hstack(pair) for pair in zip(gaps, columns, strict=True)] if gaps else columns
    n = len(noise)
    return Distances(
        labels=names,
        dtypes=dtypes,
        pair=np.concatenate(pair_of),
        position=np.concatenate(position),
        a=gaps[0],
        b=gaps[1],
        noise=gaps[2 : 2 + n],
        apart=gaps[2 + n :],
        covered=covered,
        keys={pair.index: pair.a.key for pair in pairs},
    )


def _nothing_shared(pairs: list[Pair], reference: dict[SequenceKey, IndexedSequence]) -> str:
    """Why no token of the reference could be compared, and how to mend it."""
    if not pairs:
        return "A or B tells no token ids, only text, so no tokens can be forced on a reference"
    asked, held = ({key[0] for key in keys} for keys in ([pair.a.key for pair in pairs], reference))
    if not asked & held:
        return (
            f"it is of other requests: A has {_some(asked)}, the reference {_some(held)}; replay A's "
            "requests on the reference's lane, with --golden A.parquet"
        )
    return "it holds none of the compared tokens: make it of A's (--golden A.parquet)"


def _some(names: set[str]) -> str:
    """The first names, sorted."""
    shown = ", ".join(sorted(names)[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"


def _shared(plans: list[SitePlan]) -> np.ndarray:
    """int64[S]: sites in A's header that have sketches of one kind everywhere, in their order."""
    if not all(plan.sketches for plan in plans):
        return np.empty(0, np.int64)
    shared = set(plans[0].of_a.tolist())
    for plan in plans[1:]:
        shared &= set(plan.of_a.tolist())
    return np.array(sorted(shared), np.int64)


def _header_places(trace: Trace, a: Trace, sites: np.ndarray) -> list[int]:
    place = {site_key(site): index for index, site in enumerate(trace.header.sites)}
    return [place[site_key(a.header.sites[index])] for index in sites]


def _places(trace: Trace, a: Trace, sites: np.ndarray) -> dict[int, np.ndarray]:
    """For each file of a trace, where the sites stand in its columns; −1: nowhere."""
    header = _header_places(trace, a, sites)
    return {id(part): part.columns_of[header] for part in trace.files}


def _named(
    sequences: dict[tuple[str, int, str], IndexedSequence], wanted: IndexedSequence
) -> IndexedSequence | None:
    """The same sequence elsewhere; else any of the same request that begins as it does."""
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
    traces: list[Trace], places: list[dict[int, np.ndarray]], rows: list[np.ndarray]
) -> list[np.ndarray]:
    """float32[N, S] for A, B and the repeats; then for the repeats against A."""
    n, s = len(rows[0]), len(next(iter(places[0].values())))
    found = [np.full((n, s), np.nan, np.float32) for _ in range(2 * len(traces) - 4)]
    readers = [SiteReader(trace) for trace in traces]
    step = max(1, _SKETCHES // s)
    try:
        for first in range(0, n, step):
            at = slice(first, min(first + step, n))
            sides = [
                _read(reader, place, side[at], s)
                for reader, place, side in zip(readers, places, rows, strict=True)
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
    reader: SiteReader, places: dict[int, np.ndarray], rows: np.ndarray, s: int
) -> tuple[np.ndarray, np.ndarray]:
    """Norms, float32[n, S], and sketches, float32[n, S, 16], of some rows; 0 where they are not there."""
    trace = reader.trace
    l2, sketch = np.zeros((len(rows), s), np.float32), np.zeros((len(rows), s, SKETCH_SIZE), np.float32)
    groups = np.array([trace.group_of(row) if row >= 0 else -1 for row in rows.tolist()])
    for number in np.unique(groups[groups >= 0]).tolist():
        group = trace.groups[number]
        columns = places[id(group.part)]
        here = np.flatnonzero(groups == number)
        here = here[np.argsort(rows[here], kind="stable")]
        sites = np.flatnonzero(columns >= 0)
        if not len(sites):
            continue
        inside = np.repeat(rows[here] - group.first_row, len(sites))
        place = np.tile(columns[sites], len(here))
        opened = reader.group(number)
        shape = (len(here), len(sites))
        l2[np.ix_(here, sites)] = opened.take("site_l2", inside, place).reshape(shape)
        sketch[np.ix_(here, sites)] = opened.take("site_sketch", inside, place).reshape(*shape, SKETCH_SIZE)
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
        reader = CandidateReader(trace)
        edges = [0, *(np.flatnonzero((side[1:] != side[:-1] + 1) | (side[1:] <= 0)) + 1).tolist(), len(side)]
        sides.append(reader.read([(int(side[i]), j - i) for i, j in pairwise(edges)]))
        reader.close()
    compared = [differences(side, sides[0]) for side in sides[1:]]
    compared += [differences(side, sides[1]) for side in sides[3:]]
    for kind, name in (("logits", "max_abs_logit"), ("logprobs", "max_abs_logprob")):
        found = [np.asarray(getattr(gap, name), np.float32) for gap in compared]
        if all((~np.isnan(gap)).any() for gap in found):
            return kind, found
    return "", []
