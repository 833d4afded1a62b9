"""The rows of the result tables made from finished comparisons: sites, totals, candidates, changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...schemas.change import Change
from ..reading.candidates import NO_TOKEN
from ..reading.columns import Extent, RowReader, read_candidates
from ..reading.load import Trace
from ..result.tables import arrow_schema
from .align import row_of
from .site_plan import SitePlan
from .sites import SiteRows
from .tally import PairState, Tally
from .tokens import TokenRows

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
