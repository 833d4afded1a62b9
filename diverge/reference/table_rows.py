"""The rows of `reference_sites.parquet` and `reference_steps.parquet`."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..comparison.site_plan import layer_number
from ..result_folder import arrow_schema
from .judge import Judged


def reference_rows(judged: Judged, prompt_lengths: np.ndarray) -> list[tuple[str, pa.RecordBatch]]:
    """The rows of both tables, by the table's name; none where nothing was compared.

    Args:
        judged: What was compared.
        prompt_lengths: Of each pair; −1 where nothing was generated.
    """
    tables = {"reference_sites": _site_rows(judged), "reference_steps": _step_rows(judged, prompt_lengths)}
    return [(name, rows) for name, rows in tables.items() if rows is not None]


def _site_rows(judged: Judged) -> pa.RecordBatch | None:
    """How far both sides lie from the reference at every site; None where nothing was compared."""
    found, whole = judged.distances, judged.whole
    if found is None or whole is None:
        return None
    s = len(found.labels)
    sides = {
        f"distance_{name}_{word}": _quantile(side, share)
        for name, side in (("a", found.a), ("b", found.b))
        for word, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
    }
    farther = np.zeros(s, np.int8) if judged.farther is None else judged.farther
    noise = [_quantile(gap, 0.5) for gap in found.is_clearly_farther]
    columns = {
        "site": pa.array(np.arange(s, dtype=np.int16)),
        "label": found.labels,
        "layer": [layer_number(label) for label in found.labels],
        "dtype_a": [names[0] for names in found.dtypes],
        "dtype_b": [names[1] for names in found.dtypes],
        "dtype_reference": [names[2] for names in found.dtypes],
        "rows": pa.array(whole.rows.astype(np.int64)),
        "effective_rows": _floats(whole.effective),
        **{name: _floats(values) for name, values in sides.items()},
        "ratio": _floats(whole.ratio),
        "ratio_low": _floats(whole.low),
        "ratio_high": _floats(whole.high),
        "farther": [{1: "b", -1: "a"}.get(int(value)) for value in farther],
        "noise_p50": _floats(np.fmax.reduce(noise) if noise else np.full(s, np.nan)),
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema("reference_sites"))


def _step_rows(judged: Judged, prompt_lengths: np.ndarray) -> pa.RecordBatch | None:
    """How distances grow: the median over the sequences, for each layer and step."""
    found = judged.distances
    if found is None:
        return None
    prompt = prompt_lengths[found.pair]
    step = np.where(prompt < 0, -1, np.maximum(found.position - prompt, -1))
    order = np.argsort(step, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(step[order])) + 1).tolist(), len(order)]
    last = {
        layer: site for site, label in enumerate(found.labels) if (layer := layer_number(label)) is not None
    }
    sites = np.array(list(last.values()), np.int64)
    rows: list[dict[str, object]] = []
    for start, stop in pairwise(edges):
        chosen = order[start:stop]
        a, b = (_quantile(side[np.ix_(chosen, sites)], 0.5) for side in (found.a, found.b))
        known = np.count_nonzero(~np.isnan(found.a[np.ix_(chosen, sites)]), axis=0)
        here = int(step[chosen[0]])
        rows += [
            {
                "layer": layer,
                "label": found.labels[site],
                "step": None if here < 0 else here,
                "rows": int(known[index]),
                "distance_a": float(a[index]),
                "distance_b": float(b[index]),
            }
            for index, (layer, site) in enumerate(last.items())
            if known[index] and not np.isnan(b[index])
        ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema("reference_steps"))


def _quantile(values: np.ndarray, share: float) -> np.ndarray:
    """float64[S]: over the rows; NaN where a site has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without values is NaN, as it should be
        found: np.ndarray = np.nanquantile(values, share, axis=0, method="inverted_cdf")
    return found


def _floats(values: np.ndarray) -> pa.Array:
    return pa.array(values.astype(np.float32), mask=np.isnan(values), from_pandas=False)
