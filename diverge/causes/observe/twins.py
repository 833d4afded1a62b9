"""Sequences of one trace that computed the same thing: repeats, identical prompts, a common beginning.

Two rows with the same tokens testify to noise only where both ran in passes of equal shape; two rows of one
pass testify to a difference between the rows of a batch. Rows of passes of unequal shape testify to neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from ....schemas.findings.rows import EqualSequences, RepeatsDiffer
from ....schemas.findings.statement import Side
from ....schemas.sequences import Agreement
from ....schemas.trace import Request, TraceHeader
from ...comparison.align import IndexedSequence, row_of, sequence_name
from ...comparison.site_plan import SitePlan
from ...comparison.tabulate import SiteRowReader
from ...reading.columns import RowReader
from ...reading.load import Trace

MOST_TWINS = 16
"""Other sequences that are looked at for equal tokens."""
_MOST_MATES = 64
"""Requests whose passes are compared before two batches count as alike."""
_MOST_GROUPS, _LONGEST = 16, 512
"""Of a look through one trace: groups of equal prompts, and positions of each sequence."""
_BEGINNING = 4
"""Tokens that sequences of a group have in common at least; how far that goes is looked at later."""
_SHAPE = ("batch_size", "num_tokens", "padded_tokens", "cached_tokens")
_UNKNOWN = -1

Conditions = Literal["equal", "one pass", "unequal", "not known"]
"""Under which two sequences of a trace computed the same tokens."""
_TESTIFY: tuple[Conditions, ...] = "equal", "one pass"


@dataclass
class OneTrace:
    """The sequences of one side."""

    side: Side
    trace: Trace
    sequences: Sequence[IndexedSequence]
    _shapes: dict[int, np.ndarray] = field(default_factory=dict)

    def conditions(self, one: IndexedSequence, other: IndexedSequence, stop: int) -> Conditions:
        """Whether two sequences ran under equal conditions up to a position (exclusive)."""
        (a, rows_a), (b, rows_b) = (self._of(sequence, stop) for sequence in (one, other))
        if (a[0] == _UNKNOWN).all() or (b[0] == _UNKNOWN).all():
            return "not known"
        if not np.array_equal(a, b):
            return "unequal"
        if (a[0] <= 1).all():
            return "equal"
        if np.array_equal(rows_a, rows_b):
            # In a batch the neighbours belong to the shape, and are known only where all of them ran again.
            return "equal" if self._batches_alike(one, other) else "unequal"
        last = stop - 1
        offsets = {sequence.number - int(rows[last]) for sequence, rows in ((one, rows_a), (other, rows_b))}
        alone = self._rows_of_batches(last, int(a[0, last]))
        in_one = len(offsets) == 1 or all(alone.get(int(rows[last])) == 1 for rows in (rows_a, rows_b))
        return "one pass" if in_one and rows_a[last] != rows_b[last] else "unequal"

    def _of(self, sequence: IndexedSequence, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """int64[4, stop]: the shape of each position's pass; int64[stop]: its row in the batch."""
        known = self._shapes.get(sequence.number)
        if known is None or known.shape[1] < stop:
            extents = [
                (piece.row, min(piece.count, stop - piece.position))
                for piece in sequence.pieces
                if piece.position < stop
            ]
            table = self._reader.read(extents)
            columns = [table.column(name).fill_null(_UNKNOWN).to_numpy() for name in (*_SHAPE, "batch_row")]
            known = self._shapes[sequence.number] = np.array(columns, np.int64)
        return known[:4, :stop], known[4, :stop]

    @cached_property
    def _reader(self) -> RowReader:
        return RowReader(self.trace, [*_SHAPE, "batch_row"])

    def _batches_alike(self, one: IndexedSequence, other: IndexedSequence) -> bool:
        """Two samples of one request, and every other request ran likewise in both samples."""
        if one.key[0] != other.key[0] or one.key[2] != other.key[2]:
            return False
        numbers = one.key[1], other.key[1]
        found: dict[str, list[IndexedSequence]] = {}
        for sequence in self.sequences:
            if sequence.key[1] in numbers and sequence.key[2] == one.key[2]:
                found.setdefault(sequence.key[0], []).append(sequence)
        for mates in list(found.values())[:_MOST_MATES]:
            if len(mates) != 2:
                return False
            stop = min(mate.length for mate in mates)
            (a, rows_a), (b, rows_b) = (self._of(mate, stop) for mate in mates)
            if not (np.array_equal(a, b) and np.array_equal(rows_a, rows_b)):
                return False
        return len(found) <= _MOST_MATES

    def _rows_of_batches(self, position: int, size: int) -> dict[int, int]:
        """How many sequences have each row of batches of a size at a position."""
        rows = [row_of(self.trace, sequence, position) for sequence in self.sequences]
        table = self._reader.read([(row, 1) for row in rows if row >= 0])
        found: dict[int, int] = {}
        sizes, places = (table.column(name).to_pylist() for name in ("batch_size", "batch_row"))
        for batch, place in zip(sizes, places, strict=True):
            if batch == size and place is not None:
                found[place] = found.get(place, 0) + 1
        return found


def twins_at(
    side: OneTrace, own: IndexedSequence, position: int, site: int, rows: SiteRowReader, label: str
) -> list[EqualSequences]:
    """What other sequences with the same tokens up to a row show of that row.

    Args:
        side: The trace.
        own: The sequence.
        position: Of the row.
        site: Index into the plan.
        rows: Of this trace.
        label: What the site is called.

    Returns:
        At most one finding of repeats under equal conditions, and one of rows of one batch.
    """
    stop, wanted = position + 1, own.tokens[: position + 1]
    hashes, there = rows.hashes(own, position, stop)
    if not there[0, site]:
        return []
    found: dict[bool, list[tuple[IndexedSequence, bool]]] = {}
    looked = 0
    for other in side.sequences:
        if other is own or other.length < stop or not np.array_equal(other.tokens[:stop], wanted):
            continue
        looked += 1
        if looked > MOST_TWINS:
            break
        conditions = side.conditions(own, other, stop)
        if conditions not in _TESTIFY:
            continue
        theirs, known = rows.hashes(other, position, stop)
        if known[0, site]:
            equal = bool((theirs[0, site] == hashes[0, site]).all())
            found.setdefault(conditions == "one pass", []).append((other, equal))
    return [
        EqualSequences(
            side=side.side,
            in_one_batch=in_one_batch,
            sequence=sequence_name(own.key),
            site=label,
            position=position,
            compared=len(seen),
            differing=[sequence_name(other.key) for other, equal in seen if not equal],
        )
        for in_one_batch, seen in found.items()
    ]


def rows_inside(side: OneTrace, plan: SitePlan) -> list[EqualSequences]:
    """Where sequences of one trace with equal prompts have rows that differ, though their passes do not.

    Args:
        side: The trace.
        plan: The compared sites; those of this trace that are not compared are not looked at.

    Returns:
        The first such row of each group of equal prompts; empty: none was found.
    """
    if not plan.sites or len(side.sequences) < 2:
        return []
    columns = plan.of_a if side.side == "A" else plan.of_b
    rows = SiteRowReader(side.trace, columns)
    found: list[EqualSequences] = []
    try:
        for own, others in _same_beginnings(side.sequences):
            first: tuple[int, int] | None = None
            for other in others[:MOST_TWINS]:
                stop = min(own.length, other.length, _LONGEST)
                parts = own.tokens[:stop] != other.tokens[:stop]
                stop = int(parts.argmax()) if parts.any() else stop
                (a, there_a), (b, there_b) = rows.hashes(own, 0, stop), rows.hashes(other, 0, stop)
                unlike = (a != b).any(axis=2) & there_a & there_b
                position = int(unlike.any(axis=1).argmax()) if unlike.any() else None
                if position is None or side.conditions(own, other, position + 1) not in _TESTIFY:
                    continue
                here = position, int(unlike[position].argmax())
                first = here if first is None else min(first, here)
            if first is not None:
                seen = twins_at(side, own, *first, rows, plan.sites[first[1]].label())
                found += [one for one in seen if one.differing]
    finally:
        rows.close()
    return found


def _same_beginnings(
    sequences: Sequence[IndexedSequence],
) -> Iterator[tuple[IndexedSequence, list[IndexedSequence]]]:
    """Sequences that begin with the same tokens, each group as its first one and the others."""
    groups: dict[bytes, list[IndexedSequence]] = {}
    for sequence in sequences:
        if sequence.length > 1:
            groups.setdefault(sequence.tokens[:_BEGINNING].tobytes(), []).append(sequence)
    several = [group for group in groups.values() if len(group) > 1]
    for group in several[:_MOST_GROUPS]:
        yield group[0], group[1:]


def repeats_differ(side: OneTrace, agreement: Agreement | None) -> list[RepeatsDiffer]:
    """Requests that ran several times under equal conditions, and gave different outputs.

    Args:
        side: The trace.
        agreement: How often outputs agree; None: nothing ran several times.

    Returns:
        At most one finding for each sort of conditions; empty: the repeats agree, their draws or their passes
        differ, or there are none.
    """
    if agreement is None:
        return []
    requests = {request.request_id: request for request in side.trace.header.requests}
    by_request: dict[str, list[IndexedSequence]] = {}
    for sequence in side.sequences:
        by_request.setdefault(sequence.key[0], []).append(sequence)
    repeated = 0
    differing: dict[Literal["equal", "one pass", "not known"], list[tuple[str, int, int]]] = {}
    for one in agreement.requests:
        samples, unique = (one.samples_a, one.unique_a) if side.side == "A" else (one.samples_b, one.unique_b)
        if samples < 2 or not _fixes_its_tokens(side.trace.header, requests.get(one.request_id)):
            continue
        repeated += 1
        if unique > 1:
            conditions = _of_repeats(side, by_request.get(one.request_id, []))
            if conditions != "unequal":
                differing.setdefault(conditions, []).append((one.request_id, samples, unique))
    return [
        RepeatsDiffer(
            side=side.side,
            passes=conditions,
            request_id=found[0][0],
            samples=found[0][1],
            unique=found[0][2],
            requests=len(found),
            repeated=repeated,
        )
        for conditions, found in differing.items()
    ]


def _of_repeats(side: OneTrace, samples: list[IndexedSequence]) -> Conditions:
    """Conditions of repeats up to where their tokens part: of the first two that part under telling ones."""
    seen: set[Conditions] = set()
    for other in samples[1 : MOST_TWINS + 1]:
        own = samples[0]
        stop = min(own.length, other.length)
        parts = own.tokens[:stop] != other.tokens[:stop]
        if parts.any() or own.length != other.length:
            seen.add(side.conditions(own, other, int(parts.argmax()) if parts.any() else stop))
    order: tuple[Conditions, ...] = "equal", "one pass", "unequal"
    return next((one for one in order if one in seen), "not known")


def _fixes_its_tokens(header: TraceHeader, request: Request | None) -> bool:
    """Every run of the request should give the same tokens: greedy, or with a seed of its own."""
    if request is None:
        return False
    sampling = {name: setting.resolved for name, setting in request.sampling.items()}
    if sampling.get("temperature") == 0:
        return True
    seeded = sampling.get("seed") is not None and sampling.get("seed_scope") in (None, "request")
    return seeded and (header.abilities is None or header.abilities.seed)
