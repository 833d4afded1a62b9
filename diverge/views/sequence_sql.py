"""The SQL of the views over many sequences: rates, populations, survival and growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..result_folder import Column
from ..statistics import newcombe_bounds, survival_bounds, wilson_bounds
from .memory_tables import create_table, writable

if TYPE_CHECKING:
    import duckdb

    from ...schemas.zoom import Zoom, ZoomOp


Bounds = Callable[..., tuple[np.ndarray, np.ndarray]]


def _wilson(count: np.ndarray, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return wilson_bounds(np.divide(count, of), of)


_INTERVALS: dict[str, Bounds] = {
    "wilson": _wilson,
    "newcombe": newcombe_bounds,
    "survival": survival_bounds,
}
"""Intervals that SQL can ask for, as `NAME_low` and `NAME_high`."""


def interval_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """SQL functions of whole columns of numbers, which give DOUBLE: name and function."""
    for name, bounds in _INTERVALS.items():
        for index, end in enumerate(("low", "high")):
            yield f"{name}_{end}", _one_end(bounds, index)


def _one_end(bounds: Bounds, index: int) -> Callable[..., Any]:
    import pyarrow as pa

    def function(*columns: Any) -> Any:
        return pa.array(bounds(*(np.asarray(column, np.float64) for column in columns))[index])

    return function


def _octave(column: str) -> tuple[str, str]:
    """The label of a number's power-of-two bucket, and its lower edge."""
    low = f"CASE WHEN {column} < 1 THEN 0 ELSE (1 << floor(log2({column}))::INTEGER) END"
    label = f"CASE WHEN {column} < 2 THEN {column}::VARCHAR ELSE {low} || ' to ' || (2 * ({low}) - 1) END"
    return label, low


def _populations() -> str:
    """(dimension, value, place, diverged) of every sequence, for the dimensions that divide all of them."""
    label, low = _octave("prompt_tokens")
    parts = [
        "SELECT 'all' AS dimension, 'all' AS value, 0::BIGINT AS place, diverged FROM sequences",
        f"SELECT 'prompt_tokens', {label}, ({low})::BIGINT, diverged FROM sequences",
    ]
    parts += [
        f"SELECT '{name}', {name}::VARCHAR, {name}::BIGINT, diverged FROM sequences WHERE {name} IS NOT NULL"
        for name in ("batch_size_a", "batch_size_b")
    ]
    parts += [
        f"SELECT '{name}', {name}::VARCHAR, 0::BIGINT, diverged FROM sequences"
        f" WHERE coalesce({name}::VARCHAR, '') <> ''"
        for name in ("replica_a", "replica_b", "cell")
    ]
    return " UNION ALL ".join(parts)


def _kinds() -> str:
    """(dimension, value, place) of every diverging sequence, for what only they have."""
    return (
        "SELECT 'first_layer' AS dimension, coalesce(first_layer::VARCHAR, coalesce(first_site, 'not seen'))"
        " AS value, coalesce(first_layer, 1000000)::BIGINT AS place FROM sequences WHERE diverged"
        " UNION ALL SELECT 'cause', CASE WHEN causes IS NULL THEN 'not diagnosed'"
        " ELSE coalesce(cause, 'unknown') END, 0::BIGINT FROM sequences WHERE diverged"
    )


def _steps() -> str:
    """By octave of steps: of the sequences that agree at its start, those that diverge within it."""
    label, low = _octave("step")
    return (
        f"SELECT 'step' AS dimension, any_value({label}) AS value, ({low})::BIGINT AS place,"
        " max(at_risk)::BIGINT AS sequences, sum(diverged)::BIGINT AS diverging"
        " FROM survival GROUP BY place"
    )


_SURVIVAL = """
CREATE VIEW survival AS
WITH subject AS (
    SELECT CASE WHEN diverged THEN divergence_step ELSE steps - 1 END AS step, diverged AS event
    FROM sequences WHERE CASE WHEN diverged THEN divergence_step IS NOT NULL ELSE steps > 0 END
), counted AS (
    SELECT step, count(*) FILTER (event) AS diverged, count(*) FILTER (NOT event) AS censored
    FROM subject GROUP BY step
), risk AS (
    SELECT *, sum(diverged + censored) OVER (ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
        ::BIGINT AS at_risk FROM counted
), curve AS (
    SELECT *, product(1 - diverged / at_risk) OVER w AS share,
        coalesce(sum(diverged / nullif(at_risk * (at_risk - diverged), 0)) OVER w, 0) AS spread,
        (SELECT count(*) FROM subject) AS sequences
    FROM risk WINDOW w AS (ORDER BY step)
)
SELECT step, at_risk, diverged, censored, share,
    survival_low(share, spread, sequences) AS low, survival_high(share, spread, sequences) AS high
FROM curve
"""

_POPULATIONS = """
CREATE VIEW populations AS
SELECT one.dimension, one.value AS value_1, other.value AS value_2,
    one.sequences AS sequences_1, one.diverging AS diverging_1,
    other.sequences AS sequences_2, other.diverging AS diverging_2,
    other.share - one.share AS difference,
    newcombe_low(one.diverging, one.sequences, other.diverging, other.sequences) AS low,
    newcombe_high(one.diverging, one.sequences, other.diverging, other.sequences) AS high
FROM divergence_rates AS one JOIN divergence_rates AS other
    ON one.dimension = other.dimension AND (one.place, one.value) < (other.place, other.value)
WHERE one.dimension IN ('prompt_tokens', 'batch_size_a', 'batch_size_b', 'replica_a', 'replica_b', 'cell')
"""

_GROWTH = """
CREATE VIEW growth AS
SELECT layer, step, count(*) AS rows, median(rel_drift) AS drift_p50, max(rel_drift) AS drift_max
FROM sites WHERE layer IS NOT NULL GROUP BY layer, step
"""


def statements() -> list[str]:
    """CREATE VIEW statements over the views `sequences` and `sites`; they call `interval_functions`."""
    rates = (
        "CREATE VIEW divergence_rates AS WITH grouped AS ("
        "SELECT dimension, value, place, count(*) AS sequences, count(*) FILTER (diverged) AS diverging"
        f" FROM ({_populations()}) GROUP BY ALL"
        " UNION ALL SELECT dimension, value, place, (SELECT count(*) FROM sequences), count(*)"
        f" FROM ({_kinds()}) GROUP BY ALL"
        f" UNION ALL {_steps()})"
        " SELECT dimension, value, sequences, diverging, diverging / sequences AS share,"
        " wilson_low(diverging, sequences) AS low, wilson_high(diverging, sequences) AS high, place"
        " FROM grouped"
    )
    return [_SURVIVAL, rates, _POPULATIONS, _GROWTH]


COLUMNS = (
    Column("request_id", "string", "the sequence that was run again"),
    Column("sample", "int32", "which of its samples"),
    Column("position", "int32", "position of the first difference"),
    Column("site", "string", "label of its site; empty: only logits differ"),
    Column("seen_again", "bool", "the re-runs differ first at this position and site too"),
    Column("kind", "string?", "op, block, weight, outside, unknown or none; null: no ops were recorded"),
    Column("finding", "string?", "what the ops show, as a sentence"),
    Column("op_a", "string?", "the op that differs, in A; several are joined by +"),
    Column("op_b", "string?", "the same in B"),
    Column("tensor", "string?", "the weight, or the input, that differs"),
    Column("max_abs_diff", "float64?", "largest difference of the outputs"),
    Column("differing", "int64?", "elements of the output that differ"),
    Column("elements", "int64?", "elements compared"),
    Column("transplant", "string", "proven, not proven or not run: with A's rows at the origins, B equals A"),
    Column("origin", "string?", "a site at which A's rows replaced B's; null: none did"),
    Column("origin_positions", "int32?", "at how many positions"),
    Column("origin_first", "int32?", "the first of them"),
    Column("origin_last", "int32?", "the last"),
    Column("logits", "int32", "logits compared after the transplant"),
    Column("logits_equal", "int32", "those that are then equal"),
)


def create_zoom(connection: duckdb.DuckDBPyConnection, found: Zoom | None) -> None:
    """Make the table `zoom`; empty where the result has none."""
    rows: list[tuple[object, ...]] = []
    if found is not None:
        finding, done = found.finding, found.transplant
        about = (writable(found.request_id), found.sample, found.position, found.site, found.seen_again)
        ops: tuple[object, ...] = (None,) * 8
        if finding is not None:
            numbers = (finding.max_abs_diff, finding.differing, finding.elements)
            named = (_names(finding.a), _names(finding.b), finding.tensor)
            ops = (finding.kind, finding.shows.text, *named, *numbers)
        origins: list[tuple[object, ...]] = [
            (one.site, one.positions, one.first, one.last) for one in done.origins
        ]
        rows += [
            (*about, *ops, done.state, *origin, done.logits, done.logits_equal)
            for origin in origins or [(None,) * 4]
        ]
    create_table(connection, "zoom", COLUMNS, rows)


def _names(ops: list[ZoomOp]) -> str | None:
    return " + ".join(op.op for op in ops) or None
