"""The rows of `tokens.parquet` for a batch of positions: tokens, predicted distributions, execution shapes.

A row of a trace holds the distribution for the NEXT token, a row of the result the distribution that chose
the token AT its position; this file makes that shift. N: rows of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .align import Run, row_of
from .columns import Extent, RowReader
from .sites import SiteRows
from .tables import arrow_schema
from .topk import NO_TOKEN, Candidates, Differences, candidates, differences

SHAPES = ("batch_size", "num_tokens", "padded_tokens", "cached_tokens")
TRACE_COLUMNS = ["step", "forced", "topk_ids", "topk_logits", "topk_logprobs", "logits_hash", *SHAPES]
"""The small columns of a trace that every batch reads."""


@dataclass(frozen=True)
class TokenRows:
    """A batch of result rows, and what the tally needs from them. All about the row AT each position."""

    runs: list[Run]
    pair: np.ndarray  # int32[N]
    position: np.ndarray  # int32[N]
    token_a: np.ndarray  # int32[N]; NO_TOKEN where A has ended
    token_b: np.ndarray
    comparable: np.ndarray  # bool[N]
    forced: np.ndarray  # bool[N]: the token here was forced on either side
    step: np.ndarray  # int32[N]; −1 inside the prompt
    logits_known: np.ndarray  # bool[N]: both sides have a logits hash, and the row is comparable
    logits_equal: np.ndarray  # bool[N]
    gap: Differences  # with one row more, in front: the row before the first position
    columns: dict[str, pa.Array]


def token_rows(runs: list[Run], reader_a: RowReader, reader_b: RowReader) -> TokenRows:
    """Read and compare the small columns of a batch."""
    n = sum(run.count for run in runs)
    pair = np.repeat(np.array([run.pair.index for run in runs], np.int32), [run.count for run in runs])
    position = np.concatenate(
        [np.arange(run.position, run.position + run.count, dtype=np.int32) for run in runs]
    )
    comparable = np.zeros(n, np.bool_)
    at = 0
    for run in runs:
        comparable[at : at + run.comparable] = True
        at += run.count
    token_a = _tokens([run.pair.a.tokens for run in runs], runs)
    token_b = _tokens([run.pair.b.tokens for run in runs], runs)

    # One row in front: the distribution that chose the token at the batch's first position.
    lead, before = runs[0].pair, runs[0].position - 1
    a = reader_a.read(_extents(row_of(reader_a.trace, lead.a, before), [run.row_a for run in runs], runs))
    b = reader_b.read(_extents(row_of(reader_b.trace, lead.b, before), [run.row_b for run in runs], runs))
    dist_a, dist_b = candidates(a), candidates(b)
    gap = differences(dist_a, dist_b)
    known, equal = _hashes_equal(a, b)

    # The row before a position is the previous row of the batch; it counts where it is comparable.
    limit = np.repeat(np.array([run.pair.comparable for run in runs]), [run.count for run in runs])
    predicted = (position > 0) & (position <= limit)
    forced_a, forced_b = _bools(a, "forced")[1:], _bools(b, "forced")[1:]
    step_a, generated_a = _ints(a, "step")
    step_b, generated_b = _ints(b, "step")
    step = np.where(generated_a, step_a, np.where(generated_b, step_b, -1))[1:]
    columns = _columns(runs, pair, position, step, comparable, token_a, token_b)
    columns |= _predicted(predicted, dist_a, dist_b, gap, known, equal, token_a, token_b)
    for name in SHAPES:
        for side, table in (("a", a), ("b", b)):
            values, valid = _ints(table, name)
            columns[f"{name}_{side}"] = pa.array(values[1:], mask=~valid[1:])
    return TokenRows(
        runs=runs,
        pair=pair,
        position=position,
        token_a=token_a,
        token_b=token_b,
        comparable=comparable,
        forced=forced_a | forced_b,
        step=step,
        logits_known=known[1:] & comparable,
        logits_equal=equal[1:],
        gap=gap,
        columns=columns,
    )


def with_sites(rows: TokenRows, sites: SiteRows) -> pa.RecordBatch:
    """The finished result rows: `sites` holds the comparable ones, in order."""
    n = len(rows.pair)
    compared, differing = np.zeros(n, np.int32), np.zeros(n, np.int32)
    first = np.full(n, -1, np.int16)
    if len(sites.compared):
        compared[rows.comparable], differing[rows.comparable] = sites.compared, sites.differing
        first[rows.comparable] = sites.first_site
    columns = rows.columns | {
        "sites_compared": pa.array(compared),
        "sites_differing": pa.array(differing),
        "first_site": pa.array(first, mask=first < 0),
    }
    schema = arrow_schema("tokens")
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _columns(
    runs: list[Run],
    pair: np.ndarray,
    position: np.ndarray,
    step: np.ndarray,
    comparable: np.ndarray,
    token_a: np.ndarray,
    token_b: np.ndarray,
) -> dict[str, pa.Array]:
    """The columns that say which token it is."""
    counts = [run.count for run in runs]
    names = list(dict.fromkeys(run.pair.a.key[0] for run in runs))
    number = {name: index for index, name in enumerate(names)}
    request = np.repeat(np.array([number[run.pair.a.key[0]] for run in runs], np.int32), counts)
    sample = np.repeat(np.array([run.pair.a.key[1] for run in runs], np.int16), counts)
    return {
        "pair": pa.array(pair),
        "request_id": pa.DictionaryArray.from_arrays(pa.array(request), pa.array(names, pa.string())),
        "sample": pa.array(sample),
        "position": pa.array(position),
        "step": pa.array(step, mask=step < 0),
        "phase": pa.DictionaryArray.from_arrays(pa.array((step >= 0).astype(np.int32)), ["prompt", "decode"]),
        "token_a": pa.array(token_a, mask=token_a == NO_TOKEN),
        "token_b": pa.array(token_b, mask=token_b == NO_TOKEN),
        "token_equal": pa.array(token_a == token_b),
        "comparable": pa.array(comparable),
    }


def _predicted(
    valid: np.ndarray,
    dist_a: Candidates,
    dist_b: Candidates,
    gap: Differences,
    known: np.ndarray,
    equal: np.ndarray,
    token_a: np.ndarray,
    token_b: np.ndarray,
) -> dict[str, pa.Array]:
    """The columns about the distribution that chose each token: row i here is row i of the shifted arrays."""
    last = len(valid)
    none = np.append(token_a, NO_TOKEN), np.append(token_b, NO_TOKEN)

    def real(values: np.ndarray) -> pa.Array:
        values = values[:last]
        return pa.array(values.astype(np.float32, copy=False), mask=~valid | np.isnan(values))

    return {
        "logits_equal": pa.array(equal[:last], mask=~(valid & known[:last])),
        "logprob_a": real(dist_a.logprob_of(none[0])),
        "logprob_b": real(dist_b.logprob_of(none[1])),
        "margin_a": real(dist_a.margins()),
        "margin_b": real(dist_b.margins()),
        "max_abs_logit_diff": real(gap.max_abs_logit),
        "max_rel_logit_diff": real(gap.max_rel_logit),
        "max_abs_logprob_diff": real(gap.max_abs_logprob),
        "kl": real(gap.kl),
        "topk_overlap": real(gap.overlap),
        "top1_equal": pa.array(gap.top1_equal[:last], mask=~(valid & gap.both[:last])),
    }


def _tokens(sequences: list[np.ndarray], runs: list[Run]) -> np.ndarray:
    pieces: list[np.ndarray] = []
    for tokens, run in zip(sequences, runs, strict=True):
        piece = tokens[run.position : run.position + run.count]
        pieces.append(piece if len(piece) else np.full(run.count, NO_TOKEN, np.int32))
    return np.concatenate(pieces)


def _extents(leading: int, rows: list[int], runs: list[Run]) -> list[Extent]:
    """One row in front, then the rows of the runs, neighbours joined."""
    extents: list[Extent] = [(leading, 1)]
    for row, run in zip(rows, runs, strict=True):
        first, count = extents[-1]
        joined = row == first + count if first >= 0 else row < 0
        if joined:
            extents[-1] = first, count + run.count
        else:
            extents.append((row, run.count))
    return extents


def _hashes_equal(a: pa.Table, b: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Whether both logits hashes are known, and whether they are equal: bool[N], bool[N]."""
    sides = []
    for table in (a, b):
        array = _one(table, "logits_hash")
        valid = _valid(array)
        buffer = array.buffers()[1]
        if buffer is None:
            return np.zeros(len(array), np.bool_), np.ones(len(array), np.bool_)
        words = np.frombuffer(buffer, np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
        sides.append((valid, words.reshape(-1, 2)))
    known = sides[0][0] & sides[1][0]
    return known, (sides[0][1] == sides[1][1]).all(axis=1) | ~known


def _one(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _valid(array: pa.Array) -> np.ndarray:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    return np.asarray(array.is_valid())


def _ints(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """int32[N] and which are there; the values of absent ones are undefined."""
    array = _one(table, name)
    valid = _valid(array)
    return np.asarray(array.fill_null(-1) if array.null_count else array), valid


def _bools(table: pa.Table, name: str) -> np.ndarray:
    array = _one(table, name)
    return np.asarray(array.fill_null(False) if array.null_count else array)
