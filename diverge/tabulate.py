"""The rows of the result tables that are made from finished comparisons: sites, totals, candidates, changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..schemas.change import Change
from .align import SitePlan, row_of
from .columns import RowReader
from .load import Trace
from .sites import SiteRows
from .tables import arrow_schema
from .tally import Tally
from .tokens import TokenRows
from .topk import NO_TOKEN, Candidates, candidates

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
            "before": "absent" if change.before is None else change.before.text(),
            "after": "absent" if change.after is None else change.after.text(),
            "risk": change.risk,
            "rule": change.rule,
        }
        for change in changes
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema("changes"))


def candidate_rows(tally: Tally, a: Trace, b: Trace) -> Iterator[pa.RecordBatch]:
    """The candidates at the first divergence of each pair and a few steps before it.

    Where the tokens never part, the first position whose distributions differ stands for it.
    """
    readers = [RowReader(trace, ["topk_ids", "topk_logits", "topk_logprobs"]) for trace in (a, b)]
    steps = [RowReader(trace, ["step"]) for trace in (a, b)]
    shown = [state for state in tally.pairs if state.pair.divergence is not None or state.logits_position is not None]
    for state in shown[:_SHOWN_PAIRS]:
        pair = state.pair
        parted = (state.logits_position or 0) + 1 if pair.divergence is None else pair.divergence
        rows: list[dict[str, object]] = []
        for position in range(max(parted - _SHOWN_BEFORE, 1), parted + 1):
            for side, reader, step_reader, sequence in zip("ab", readers, steps, (pair.a, pair.b), strict=True):
                row = row_of(reader.trace, sequence, position - 1)
                if row >= 0:
                    about = {
                        "pair": pair.index,
                        "request_id": pair.a.key[0],
                        "sample": pair.a.key[1],
                        "position": position,
                        "step": _next_step(step_reader, row),
                        "side": side,
                    }
                    chosen = int(sequence.tokens[position]) if position < sequence.length else NO_TOKEN
                    rows += _listed(candidates(reader.read([(row, 1)])), chosen, about)
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema("topk"))


def _next_step(reader: RowReader, row: int) -> int | None:
    """The step of the token that a row's distribution predicted, as far as the row itself tells."""
    step = reader.read([(row, 1)]).column(0)[0].as_py()
    if step is not None:
        return int(step) + 1
    following = reader.read([(row + 1, 1)]).column(0)[0].as_py() if row + 1 < reader.trace.rows else None
    return 0 if following == 0 else None


def _listed(found: Candidates, chosen: int, about: dict[str, object]) -> Iterator[dict[str, object]]:
    """The candidates of one row as rows of `topk.parquet`."""
    for rank, token in enumerate(found.ids[0].tolist()):
        if token != NO_TOKEN:
            yield about | {
                "rank": rank,
                "token_id": token,
                "logit": float(found.logits[0, rank]) if found.has_logits[0] else None,
                "logprob": float(found.logprobs[0, rank]) if found.has_logprobs[0] else None,
                "chosen": token == chosen,
            }
