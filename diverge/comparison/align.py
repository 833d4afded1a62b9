"""Which rows of two traces belong together, by position: step, batch row and order in the file are no keys.

Sequences are paired in pairing.py, sites in site_plan.py. Four bytes a position (the token ids) are kept;
everything else is read later, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from ...schemas.errors import BadInput
from ...schemas.findings.statement import SequenceName
from ...schemas.findings.unseen import RowsIgnored
from ...schemas.trace import arrow_schema
from ..reading.load import DAMAGE, Trace, damaged

_INDEX_ROWS = 1 << 16

SequenceKey = tuple[str, int, str]
"""request_id, sample, cell."""


@dataclass
class Piece:
    """Contiguous positions of one sequence that are contiguous rows of the trace."""

    position: int
    row: int
    count: int


@dataclass
class IndexedSequence:
    """Where one sequence's rows are, and its tokens."""

    key: SequenceKey
    number: int
    """Its `sequence` in the trace."""
    pieces: list[Piece]
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """int32[length]"""

    @property
    def length(self) -> int:
        """Positions from 0 up to the first gap."""
        return len(self.tokens)


@dataclass(frozen=True)
class Pair:
    """Two sequences that are compared with each other."""

    index: int
    a: IndexedSequence
    b: IndexedSequence
    divergence: int | None
    """First position where the tokens differ or one side has ended; None where the sequences are equal."""
    cut: bool = False
    """The shorter side is of an unfinished run and equal as far as it goes: it was cut short, not ended."""

    @cached_property
    def length(self) -> int:
        """Positions of the longer side; of the shorter one where that was cut short."""
        return (min if self.cut else max)(self.a.length, self.b.length)

    @property
    def comparable(self) -> int:
        """How many positions have an equal token prefix up to and including themselves."""
        return self.length if self.divergence is None else self.divergence


@dataclass(frozen=True)
class Run:
    """Contiguous positions of one pair that lie in one row group of each trace."""

    pair: Pair
    position: int
    count: int
    row_a: int
    """First row in A; −1 where A has ended."""
    row_b: int

    @cached_property
    def comparable(self) -> int:
        """How many of its rows are comparable."""
        return min(max(self.pair.comparable - self.position, 0), self.count)


def index_sequences(trace: Trace) -> tuple[dict[SequenceKey, IndexedSequence], list[RowsIgnored]]:
    """Find the sequences of a trace, in the order in which they begin.

    Returns:
        The sequences, and which of their rows cannot be used.

    Raises:
        BadInput: Damaged data, or two sequences with one key.
    """
    found: dict[SequenceKey, IndexedSequence] = {}
    tokens: dict[SequenceKey, list[np.ndarray]] = {}
    first_row = 0
    for batch in _index_batches(trace):
        sequence, position = batch["sequence"].to_numpy(), batch["position"].to_numpy()
        token_ids, samples = batch["token_id"].to_numpy(), batch["sample"].to_numpy()
        broken = (sequence[1:] != sequence[:-1]) | (position[1:] != position[:-1] + 1)
        starts = np.concatenate([[0], np.flatnonzero(broken) + 1])
        names, cells = batch["request_id"].take(pa.array(starts)), batch["cell"].take(pa.array(starts))
        starting = zip(starts.tolist(), names.to_pylist(), cells.to_pylist(), strict=True)
        stops = [*starts[1:].tolist(), len(sequence)]
        for (start, name, cell), stop in zip(starting, stops, strict=True):
            key = (name, int(samples[start]), cell or "")
            known = found.setdefault(key, IndexedSequence(key, int(sequence[start]), []))
            if known.number != sequence[start]:
                raise duplicate_sequence_error(trace, key)
            known.pieces.append(Piece(int(position[start]), first_row + start, stop - start))
            tokens.setdefault(key, []).append(token_ids[start:stop])
        first_row += len(sequence)
    ignored = [_join(trace, known, tokens[key]) for key, known in found.items()]
    return found, [rows for rows in ignored if rows is not None]


_TEXTS = ("request_id", "cell")


def _index_batches(trace: Trace) -> Iterator[pa.RecordBatch]:
    columns = ["sequence", "request_id", "sample", "cell", "position", "token_id"]
    written = arrow_schema(0, keeps_tensors=False)
    types = {name: written.field(name).type for name in columns} | dict.fromkeys(_TEXTS, pa.string())
    for part in trace.files:
        rows = 0
        try:
            for batch in part.file.iter_batches(_INDEX_ROWS, columns=columns):
                for name in columns:
                    if batch[name].null_count and name != "cell":
                        raise ValueError(f"empty cells in its column {name}")
                rows += batch.num_rows
                yield pa.record_batch({name: batch[name].cast(types[name]) for name in columns})
            if rows != part.file.metadata.num_rows:
                raise ValueError("rows are missing")
        except DAMAGE as error:
            raise damaged(part.path, error) from None


def _join(trace: Trace, known: IndexedSequence, tokens: list[np.ndarray]) -> RowsIgnored | None:
    """Put the pieces in order of position, up to the first gap; what is behind one is returned."""
    order = sorted(range(len(known.pieces)), key=lambda index: known.pieces[index].position)
    kept: list[int] = []
    length = 0
    ignored = None
    for index in order:
        piece = known.pieces[index]
        if piece.position < length:
            raise duplicate_sequence_error(trace, known.key)
        if piece.position > length:
            name = sequence_name(known.key, length)
            ignored = RowsIgnored(trace=trace.path.name, sequence=name, last_missing=piece.position - 1)
            break
        kept.append(index)
        length += piece.count
    known.pieces = [known.pieces[index] for index in kept]
    known.tokens = np.concatenate([tokens[index] for index in kept]) if kept else known.tokens
    return ignored


def duplicate_sequence_error(trace: Trace, key: SequenceKey) -> BadInput:
    """The error for two sequences with one key."""
    return BadInput(
        f"{trace.path}: {describe(key)} is recorded twice, so its rows are ambiguous",
        "give every repeat its own sample, or every envelope its own request_id",
    )


def sequence_name(key: SequenceKey, position: int | None = None) -> SequenceName:
    """A sequence, or a position of it, as findings name it."""
    request_id, sample, cell = key
    return SequenceName(request_id=request_id, sample=sample, cell=cell or None, position=position)


def describe(key: SequenceKey) -> str:
    """A sequence for errors."""
    request_id, sample, cell = key
    return f"request {request_id!r} sample {sample}" + (f" cell {cell!r}" if cell else "")


def first_divergence(a: np.ndarray, b: np.ndarray) -> int | None:
    """First index where two token sequences differ; a strict prefix diverges at its end; None: equal."""
    shared = min(len(a), len(b))
    differing = a[:shared] != b[:shared]
    if differing.any():
        return int(differing.argmax())
    return None if len(a) == len(b) else shared


def plan(pairs: list[Pair], a: Trace, b: Trace, batch_rows: int) -> Iterator[list[Run]]:
    """Cut all pairs into runs, gathered into batches of at most `batch_rows` rows."""
    batch: list[Run] = []
    room = batch_rows
    for pair in pairs:
        position = 0
        while position < pair.length:
            row_a, left_a = _locate(a, pair.a, position)
            row_b, left_b = _locate(b, pair.b, position)
            # A run does not cross the end of the shorter side, nor the end of a row group.
            count = min(left_a, left_b, room, pair.length - position)
            batch.append(Run(pair, position, count, row_a, row_b))
            position += count
            room -= count
            # A batch that ends with a row group of A is read without copying.
            if not room or (count == left_a and row_a >= 0 and room < batch_rows // 2):
                yield batch
                batch, room = [], batch_rows
    if batch:
        yield batch


def row_of(trace: Trace, sequence: IndexedSequence, position: int) -> int:
    """The row of a position in its trace; −1 where the sequence does not have it."""
    return _locate(trace, sequence, position)[0] if position >= 0 else -1


def _locate(trace: Trace, sequence: IndexedSequence, position: int) -> tuple[int, int]:
    """Row of a position and how many rows follow it in its piece and row group; −1 beyond the end."""
    if position >= sequence.length:
        return -1, 1 << 30
    for piece in sequence.pieces:
        if position < piece.position + piece.count:
            row = piece.row + position - piece.position
            group = trace.groups[trace.group_of(row)]
            return row, min(piece.row + piece.count, group.first_row + group.rows) - row
    raise AssertionError("a position below the length lies in a piece")
