"""The rows of the result tables made from finished comparisons: sites, totals, candidates, changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from ...schemas.change import Change
from ...schemas.trace import SKETCH_SIZE
from ..reading.columns import Extent, RowReader, read_candidates
from ..reading.load import NO_TOKEN, Trace
from ..reading.site_columns import SiteReader
from ..result_folder import arrow_schema
from .align import IndexedSequence, Pair, row_of
from .site_plan import SitePlan
from .sites import SiteRows
from .tally import PairState, Tally
from .token_rows import TokenRows

_SHOWN_BEFORE = 2
"""Steps before a divergence whose candidates are listed."""
_SHOWN_PAIRS = 1000
"""Pairs for which they are listed."""


def site_rows(tokens: TokenRows, sites: SiteRows, site_plan: SitePlan) -> pa.RecordBatch:
    """The differing rows of a batch as rows of `sites.parquet`."""
    pair, position = tokens.pair, tokens.position
    if not tokens.comparable.all():
        pair, position = pair[tokens.comparable], position[tokens.comparable]
    unknown = None if site_plan.sketches else np.ones(len(sites.row), np.bool_)
    columns = [
        pa.array(pair[sites.row]),
        pa.array(position[sites.row]),
        pa.array(sites.site),
        pa.array(sites.rel_drift, mask=unknown, from_pandas=False),
        pa.array(sites.l2_a, from_pandas=False),
        pa.array(sites.l2_b, from_pandas=False),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema("sites"))


def site_totals(tally: Tally) -> pa.RecordBatch:
    plan_, first = tally.plan, tally.first_by_site
    s = range(len(plan_.sites))
    columns = {
        "site": list(s),
        "name": [site.name for site in plan_.sites],
        "occurrence": [site.occurrence for site in plan_.sites],
        "part": [site.part for site in plan_.sites],
        "module": [site.module for site in plan_.sites],
        "dtype_a": [site.dtype for site in plan_.sites],
        "dtype_b": plan_.dtypes_b,
        "compared": tally.compared_by_site.tolist(),
        "differing": tally.differing_by_site.tolist(),
        "by_sketch": plan_.by_sketch.tolist(),
        "first_pair": [int(first[i, 0]) if first[i, 0] >= 0 else None for i in s],
        "first_position": [int(first[i, 1]) if first[i, 0] >= 0 else None for i in s],
        "drift_p50": tally.quantiles(0.5),
        "drift_p95": tally.quantiles(0.95),
        "drift_max": [None if np.isnan(top) else float(top) for top in tally.max_by_site],
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema("site_totals"))


def change_rows(changes: Sequence[Change]) -> pa.RecordBatch:
    rows = [
        {
            "section": change.section,
            "field": change.field,
            "before": change.before_text,
            "after": change.after_text,
            "risk": change.risk,
            "rule": change.rule,
        }
        for change in changes
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema("changes"))


def candidate_rows(tally: Tally, a: Trace, b: Trace) -> pa.RecordBatch:
    """The candidates at the first divergence of each pair and a few steps before it.

    Where no tokens part, the first position whose distributions differ stands for it.
    """
    shown = [state for state in tally.pairs if state.pair.divergence is not None]
    if not shown:
        shown = [state for state in tally.pairs if state.logits_position is not None][:1]
    sides = [_side_candidates(shown[:_SHOWN_PAIRS], trace, side) for trace, side in ((a, "a"), (b, "b"))]
    rows = {name: np.concatenate([side[name] for side in sides]) for name in sides[0]}
    ordered = np.lexsort((rows["rank"], rows["side"], rows["position"], rows["pair"]))
    rows = {name: values[ordered] for name, values in rows.items()}
    names = [state.pair.a.key[0] for state in tally.pairs]
    columns = {
        "request_id": pa.DictionaryArray.from_arrays(pa.array(rows["pair"]), pa.array(names, pa.string())),
        "side": pa.DictionaryArray.from_arrays(pa.array(rows["side"]), pa.array(["a", "b"], pa.string())),
        "step": pa.array(rows["step"], mask=rows["step"] < 0),
        "logit": pa.array(rows["logit"], mask=~rows["has_logit"], from_pandas=False),
        "logprob": pa.array(rows["logprob"], mask=~rows["has_logprob"], from_pandas=False),
    }
    schema = arrow_schema("topk")
    return pa.RecordBatch.from_arrays(
        [columns[name] if name in columns else pa.array(rows[name]) for name in schema.names], schema=schema
    )


def _side_candidates(shown: list[PairState], trace: Trace, side: str) -> dict[str, np.ndarray]:
    """One side's rows of `topk.parquet` as columns, in any order."""
    pair: list[int] = []
    sample: list[int] = []
    position: list[int] = []
    chosen: list[int] = []
    before: list[Extent] = []
    here: list[Extent] = []
    for state in shown:
        sequence = state.pair.a if side == "a" else state.pair.b
        at = state.pair.divergence
        parted = (state.logits_position or 0) + 1 if at is None else at
        for wanted in range(max(parted - _SHOWN_BEFORE, 1), parted + 1):
            row = row_of(trace, sequence, wanted - 1)
            if row >= 0:
                pair.append(state.pair.index)
                sample.append(state.pair.a.key[1])
                position.append(wanted)
                chosen.append(int(sequence.tokens[wanted]) if wanted < sequence.length else NO_TOKEN)
                before.append((row, 1))
                here.append((row_of(trace, sequence, wanted), 1))
    found, steps = read_candidates(trace, before), RowReader(trace, ["step"])
    last, own = _steps(steps.read(before)), _steps(steps.read(here))
    step = np.where(own >= 0, own, np.where(last >= 0, last + 1, -1)).astype(np.int32)
    row_index, rank = np.nonzero(found.ids != NO_TOKEN)
    token = found.ids[row_index, rank]
    return {
        "pair": np.array(pair, np.int32)[row_index],
        "sample": np.array(sample, np.int16)[row_index],
        "position": np.array(position, np.int32)[row_index],
        "step": step[row_index],
        "side": np.full(len(rank), "ab".index(side), np.int32),
        "rank": rank.astype(np.int16),
        "token_id": token,
        "logit": found.logits[row_index, rank],
        "logprob": found.logprobs[row_index, rank],
        "has_logit": found.has_logits[row_index],
        "has_logprob": found.has_logprobs[row_index],
        "chosen": token == np.array(chosen, np.int32)[row_index],
    }


def _steps(table: pa.Table) -> np.ndarray:
    """int32[N]; −1 inside the prompt and beyond the end."""
    return np.asarray(table.column("step").fill_null(-1))


Both = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""What `SiteRowReader` gives, of A and of B."""


class PairRowReader:
    """Site columns of both sides of pairs. Use as a context manager."""

    def __init__(self, a: Trace, b: Trace, plan: SitePlan) -> None:
        self.a, self.b = SiteRowReader(a, plan.of_a), SiteRowReader(b, plan.of_b)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.a.close()
        self.b.close()

    def hashes(self, pair: Pair, start: int, stop: int) -> Both:
        """Of positions `start` to `stop`."""
        return self.a.hashes(pair.a, start, stop), self.b.hashes(pair.b, start, stop)

    def column(self, pair: Pair, positions: np.ndarray, site: int) -> Both:
        """Of one site at some positions, which are ascending."""
        return self.a.column(pair.a, positions, site), self.b.column(pair.b, positions, site)

    def sketches(self, pair: Pair, position: int, sites: np.ndarray) -> Both:
        """Of some sites of one row."""
        return self.a.sketches(pair.a, position, sites), self.b.sketches(pair.b, position, sites)


class SiteRowReader:
    """Site columns of one trace by sequence and position, in the order of the plan."""

    def __init__(self, trace: Trace, columns: np.ndarray) -> None:
        self._trace, self._columns = trace, columns
        self._reader = SiteReader(trace)

    def close(self) -> None:
        self._reader.close()

    def hashes(self, sequence: IndexedSequence, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """uint64[P, S, 2] and bool[P, S]: which are there."""
        size = len(self._columns)
        found = np.zeros((stop - start, size, 2), np.uint64)
        there = np.zeros((stop - start, size), np.bool_)
        rows = [row_of(self._trace, sequence, position) for position in range(start, stop)]
        at = 0
        while at < len(rows):
            if rows[at] < 0:
                at += 1
                continue
            number = self._trace.group_of(rows[at])
            group = self._trace.groups[number]
            count = 1
            while (
                at + count < len(rows) and rows[at + count] == rows[at] + count < group.first_row + group.rows
            ):
                count += 1
            columns = group.part.columns_of[self._columns]
            whole = np.zeros((count, group.part.width, 2), np.uint64)
            present = self._reader.group(number).hashes(rows[at] - group.first_row, whole)
            here = slice(at, at + count)
            found[here] = whole[:, columns]
            there[here] = (columns >= 0) & (True if present is None else present[:, columns])
            at += count
        return found, there

    def column(
        self, sequence: IndexedSequence, positions: np.ndarray, site: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """float32[n, 16] sketches and float32[n] norms of one site at n positions, which are ascending."""
        rows = np.array([row_of(self._trace, sequence, int(position)) for position in positions])
        groups = np.array([self._trace.group_of(int(row)) for row in rows])
        sketches, norms = np.zeros((len(rows), SKETCH_SIZE), np.float32), np.zeros(len(rows), np.float32)
        for number in np.unique(groups).tolist():
            here = groups == number
            group = self._trace.groups[number]
            inside = rows[here] - group.first_row
            columns = np.full(len(inside), group.part.columns_of[self._columns[site]])
            reader = self._reader.group(number)
            norms[here] = reader.take("site_l2", inside, columns)
            sketches[here] = reader.take("site_sketch", inside, columns)
        return sketches, norms

    def sketches(
        self, sequence: IndexedSequence, position: int, sites: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """float32[n, 16] sketches and float32[n] norms of n sites of one row."""
        row = row_of(self._trace, sequence, position)
        number = self._trace.group_of(row)
        group = self._trace.groups[number]
        columns = group.part.columns_of[self._columns[sites]]
        rows = np.full(len(columns), row - group.first_row)
        reader = self._reader.group(number)
        norms = reader.take("site_l2", rows, columns).copy()  # what is read next may overwrite it
        return reader.take("site_sketch", rows, columns).copy(), norms
