"""The view `zoom`: what `rip diverge --zoom` found, a row for each site at which A's rows replaced B's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..result.tables import Column
from .memory_tables import create_table, writable

if TYPE_CHECKING:
    import duckdb

    from ...schemas.zoom import Zoom, ZoomOp

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
