"""Rows as an engine would hand them over, made from sequence and position alone, and a writer for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fakes.traces import header
from rip.replay.row_summaries.rows import ExecutionShape, Rows, RowSummaries, SamplerRecord, TopK
from rip.replay.trace_writer import SequenceInfo, TraceWriter
from rip.schemas.trace import SKETCH_SIZE, Site

SITES = [Site(name=f"layers.{index}", width=8) for index in range(3)]
PROMPT_TOKENS = 4


def summaries_of(first: int, count: int, seed: int = 0) -> RowSummaries:
    """Summaries that follow from position and seed alone."""
    out = RowSummaries.empty(count, len(SITES))
    for row in range(count):
        rng = np.random.default_rng([seed, first + row])
        out.row_hash[row] = rng.integers(1, 2**63, (len(SITES), 2), dtype=np.uint64)
        out.l2[row], out.absmax[row] = rng.random(len(SITES)), rng.random(len(SITES))
        out.sketch[row] = rng.standard_normal((len(SITES), SKETCH_SIZE))
    return out


def rows(
    sequence: int, first: int, count: int, summaries: bool = True, topk: bool = True, forced: bool = False
) -> Rows:
    """`count` rows from position `first` on."""
    ids = np.arange(3, dtype=np.int32)
    one = TopK(ids, ids.astype(np.float32), -ids.astype(np.float32), 2.5, bytes(range(16)))
    return Rows(
        sequence=sequence,
        first_position=first,
        token_ids=np.arange(first, first + count, dtype=np.int32) + 100 * sequence,
        forced=forced,
        topk=[one if topk else None] * count,
        samplers=[SamplerRecord(1, 0.5, 0.25, 7) if topk else None] * count,
        shapes=[ExecutionShape(2, sequence, 1, 0, position) for position in range(first, first + count)],
        summaries=summaries_of(first, count, sequence) if summaries else None,
    )


def info(sequence: int) -> SequenceInfo:
    """What all rows of a sequence share."""
    return SequenceInfo(f"request-{sequence}", sequence, PROMPT_TOKENS)


def interleave(writer: TraceWriter, sequences: int = 2, blocks: int = 5, length: int = 3) -> None:
    """Hand over blocks of several sequences in turns, as a batch does."""
    for block in range(blocks):
        for sequence in reversed(range(sequences)):
            writer.append(info(sequence), rows(sequence, block * length, length))


def start(path: Path, sites: list[Site] = SITES, **options: Any) -> TraceWriter:
    """A writer for two requests."""
    return TraceWriter(path, header(sites, ["request-0", "request-1"]), **options)


def places(table: pa.Table) -> list[tuple[int, int]]:
    """(sequence, position) of every row."""
    return list(zip(table["sequence"].to_pylist(), table["position"].to_pylist(), strict=True))


def in_order(sequences: int = 2, count: int = 15) -> list[tuple[int, int]]:
    """The `places` of a whole trace."""
    return [(sequence, position) for sequence in range(sequences) for position in range(count)]


def parts_of(path: Path) -> list[Path]:
    """What a run that is not finished has flushed."""
    return sorted(path.with_name(path.name + ".parts").glob("part-*.parquet"))
