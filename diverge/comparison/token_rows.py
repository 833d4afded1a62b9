"""The rows of `tokens.parquet` for a batch of positions: tokens, predicted distributions, execution shapes.

A row of a trace holds the distribution for the NEXT token, a row of the result the distribution that chose
the token AT its position; this file makes that shift. N: rows of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..reading.columns import CandidateReader, Extent, ListLengths, RowReader
from ..reading.load import NO_TOKEN, Candidates, Trace
from ..result_folder import arrow_schema
from .align import Run
from .sites import SiteRows
from .topk import Differences, differences

SHAPES = ("batch_size", "num_tokens", "padded_tokens", "cached_tokens")
TRACE_COLUMNS = ["step", "forced", "logits_hash", "next_logprob", *SHAPES]
"""The small columns of a trace that every batch reads, besides the candidates."""
_PHASES = pa.array(["prompt", "decode"], pa.string())

Side = tuple[pa.Table, Candidates]
"""Rows of one trace: their small columns and their candidates."""


@dataclass(frozen=True)
class TokenRows:
    """A batch of result rows, and what the tally needs from them. All about the row AT each position."""

    runs: list[Run]
    pair: np.ndarray  # int32[N]
    position: np.ndarray  # int32[N]
    comparable: np.ndarray  # bool[N]
    forced: np.ndarray  # bool[N]: the token here was forced on either side
    step: np.ndarray  # int32[N]; −1 inside the prompt
    logits_known: np.ndarray  # bool[N]: both sides have a logits hash, and the row is comparable
    logits_equal: np.ndarray  # bool[N]
    gap: Differences
    choice_known: np.ndarray  # bool[N]: both sides' candidates for the token AT this position are recorded
    choice_equal: np.ndarray  # bool[N]: and rank the same token first
    columns: dict[str, pa.Array]


class SideReader:
    """Reads what one side of a batch needs besides its sites."""

    def __init__(self, trace: Trace, lengths: ListLengths) -> None:
        self.trace = trace
        self._rows = RowReader(trace, TRACE_COLUMNS)
        self._candidates = CandidateReader(trace, lengths)

    def read(self, extents: list[Extent]) -> Side:
        """The small columns and the candidates of some rows."""
        return self._rows.read(extents), self._candidates.read(extents)

    def close(self) -> None:
        """Give the files back."""
        self._candidates.close()


def read_rows(runs: list[Run], reader_a: SideReader, reader_b: SideReader) -> tuple[Side, Side]:
    """The small columns and the candidates of a batch on both sides."""
    return (
        reader_a.read(_extents([run.row_a for run in runs], runs)),
        reader_b.read(_extents([run.row_b for run in runs], runs)),
    )


class TokenComparer:
    """Compares the small columns of batches, which must come in order: what chose a batch's first token is
    the last row of the batch before."""

    def __init__(self) -> None:
        self._last: dict[str, np.ndarray] = {}

    def compare(self, runs: list[Run], side_a: Side, side_b: Side) -> TokenRows:
        """Compare one batch by its rows from `read_rows`."""
        counts = [run.count for run in runs]
        pair = np.repeat(np.array([run.pair.index for run in runs], np.int32), counts)
        position = np.concatenate(
            [np.arange(run.position, run.position + run.count, dtype=np.int32) for run in runs]
        )
        limit = np.repeat(np.array([run.pair.comparable for run in runs]), counts)
        comparable = position < limit
        tokens_a = _tokens([run.pair.a.tokens for run in runs], runs)
        tokens_b = _tokens([run.pair.b.tokens for run in runs], runs)
        last = runs[-1].pair
        following = _next(tokens_a, runs[-1], last.a.tokens), _next(tokens_b, runs[-1], last.b.tokens)
        gap, at_rows = _distributions(side_a, side_b, following)
        a, b = side_a[0], side_b[0]
        before = self._shifted(at_rows)
        step_a, generated_a = _ints(a, "step")
        step_b, generated_b = _ints(b, "step")
        step = np.where(generated_a, step_a, np.where(generated_b, step_b, -1))
        columns = _columns(runs, pair, position, step, comparable, (tokens_a, tokens_b))
        columns |= _predicted((position > 0) & (position <= limit), before)
        for name in SHAPES:
            for side, table in (("a", a), ("b", b)):
                columns[f"{name}_{side}"] = _one(table, name)
        return TokenRows(
            runs=runs,
            pair=pair,
            position=position,
            comparable=comparable,
            forced=_bools(a, "forced") | _bools(b, "forced"),
            step=step,
            logits_known=at_rows["logits_known"] & comparable,
            logits_equal=at_rows["logits_equal"],
            gap=gap,
            choice_known=before["topk_known"] & (position > 0),
            choice_equal=before["top1_equal"],
            columns=columns,
        )

    def _shifted(self, at_rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same arrays one row later: at each position, what the row before it holds."""
        last = self._last or {name: values[:1] for name, values in at_rows.items()}
        shifted = {name: np.concatenate([last[name], values[:-1]]) for name, values in at_rows.items()}
        self._last = {name: values[-1:] for name, values in at_rows.items()}
        return shifted


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
    tokens: tuple[np.ndarray, np.ndarray],
) -> dict[str, pa.Array]:
    """The columns that say which token it is."""
    counts = [run.count for run in runs]
    token_a, token_b = tokens
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
        "phase": pa.DictionaryArray.from_arrays(pa.array((step >= 0).astype(np.int32)), _PHASES),
        "token_a": pa.array(token_a, mask=token_a == NO_TOKEN),
        "token_b": pa.array(token_b, mask=token_b == NO_TOKEN),
        "token_equal": pa.array(token_a == token_b),
        "comparable": pa.array(comparable),
    }


def _distributions(
    side_a: Side, side_b: Side, following: tuple[np.ndarray, np.ndarray]
) -> tuple[Differences, dict[str, np.ndarray]]:
    """The distributions of N rows: their differences, and the columns that the next row of the result gets.

    `following`: int32[N] each: the tokens behind the rows in A and B.
    """
    (a, dist_a), (b, dist_b) = side_a, side_b
    chosen_a, chosen_b = _floats(a, "next_logprob"), _floats(b, "next_logprob")
    gap = _with_chosen(differences(dist_a, dist_b), following[0] == following[1], chosen_a, chosen_b)
    known, equal = _hashes_equal(a, b)
    return gap, {
        "logits_known": known,
        "logits_equal": equal,
        "logprob_a": np.where(np.isnan(chosen_a), dist_a.logprob_of(following[0]), chosen_a),
        "logprob_b": np.where(np.isnan(chosen_b), dist_b.logprob_of(following[1]), chosen_b),
        "margin_a": dist_a.margins(),
        "margin_b": dist_b.margins(),
        "max_abs_logit_diff": gap.max_abs_logit,
        "max_rel_logit_diff": gap.max_rel_logit,
        "max_abs_logprob_diff": gap.max_abs_logprob,
        "kl": gap.kl,
        "topk_overlap": gap.overlap,
        "top1_equal": gap.top1_equal,
        "topk_known": gap.both,
    }


def _predicted(valid: np.ndarray, before: dict[str, np.ndarray]) -> dict[str, pa.Array]:
    """The columns about the distribution that chose each token."""
    exact = ("logits_known", "logits_equal", "topk_known", "top1_equal")
    real = [name for name in before if name not in exact]
    columns = {
        name: pa.array(before[name].astype(np.float32, copy=False), mask=~valid | np.isnan(before[name]))
        for name in real
    }
    columns["logits_equal"] = pa.array(before["logits_equal"], mask=~(valid & before["logits_known"]))
    columns["top1_equal"] = pa.array(before["top1_equal"], mask=~(valid & before["topk_known"]))
    return columns


def _with_chosen(gap: Differences, same: np.ndarray, a: np.ndarray, b: np.ndarray) -> Differences:
    """With the log-probabilities of the next token, which may not be among the candidates.

    `same`: bool[N]: the next token is the same. `a`, `b`: float32[N]; NaN where not recorded.
    """
    known = same & ~np.isnan(a) & ~np.isnan(b)
    if not known.any():
        return gap
    with np.errstate(invalid="ignore"):
        chosen = np.where(a == b, np.float32(0), np.abs(a - b))
    chosen = np.where(known, np.where(np.isnan(chosen), np.float32(np.inf), chosen), np.float32(np.nan))
    unlike = known & (a.view(np.uint32) != b.view(np.uint32))
    return replace(
        gap,
        max_abs_logprob=np.fmax(gap.max_abs_logprob, chosen),
        identical=gap.identical & ~unlike,
    )


def _next(tokens: np.ndarray, last: Run, sequence: np.ndarray) -> np.ndarray:
    """The token behind each row of a batch; meaningless at the end of a pair, where nothing follows."""
    following = last.position + last.count
    return np.append(tokens[1:], sequence[following] if following < len(sequence) else NO_TOKEN)


def _tokens(sequences: list[np.ndarray], runs: list[Run]) -> np.ndarray:
    pieces: list[np.ndarray] = []
    for tokens, run in zip(sequences, runs, strict=True):
        piece = tokens[run.position : run.position + run.count]
        pieces.append(piece if len(piece) else np.full(run.count, NO_TOKEN, np.int32))
    return np.concatenate(pieces)


def _extents(rows: list[int], runs: list[Run]) -> list[Extent]:
    """The rows of the runs, neighbours joined."""
    extents: list[Extent] = []
    for row, run in zip(rows, runs, strict=True):
        first, count = extents[-1] if extents else (-2, 0)
        if extents and (row == first + count if first >= 0 else row < 0):
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
        halves_of = np.frombuffer(buffer, np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
        sides.append((valid, halves_of.reshape(-1, 2)))
    known = sides[0][0] & sides[1][0]
    # Both halves of a hash at once: two booleans side by side, read as one 16-bit number.
    halves = (sides[0][1] == sides[1][1]).reshape(-1).view(np.uint16)
    return known, (halves == 0x0101) | ~known


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


def _floats(table: pa.Table, name: str) -> np.ndarray:
    """float32[N]; NaN where absent."""
    array = _one(table, name)
    return np.asarray(array.fill_null(np.float32(np.nan)) if array.null_count else array)


def _bools(table: pa.Table, name: str) -> np.ndarray:
    array = _one(table, name)
    return np.asarray(array.fill_null(False) if array.null_count else array)
