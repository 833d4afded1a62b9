"""The view `zoom`: what `rip diverge --zoom` found, a row a place where A's rows stood in for B's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .memory_tables import create_table, writable

if TYPE_CHECKING:
    import duckdb

    from ...schemas.zoom import Zoom, ZoomOp

COLUMNS: dict[str, tuple[str, str]] = {
    "request_id": ("VARCHAR", "the sequence that was looked at"),
    "sample": ("INTEGER", "which of its samples"),
    "position": ("INTEGER", "position of the difference that was looked at"),
    "site": ("VARCHAR", "label of its site; empty: only logits differ"),
    "seen_again": ("BOOLEAN", "the re-runs differ first at this place too"),
    "kind": ("VARCHAR", "op, block, weight, outside, unknown or none; null: no ops were recorded"),
    "finding": ("VARCHAR", "what the ops show, as a sentence"),
    "op_a": ("VARCHAR", "the op that differs, in A; several are joined by +"),
    "op_b": ("VARCHAR", "the same in B"),
    "tensor": ("VARCHAR", "the weight, or the input, that differs"),
    "max_abs_diff": ("DOUBLE", "largest difference of the outputs"),
    "differing": ("BIGINT", "elements of the output that differ"),
    "elements": ("BIGINT", "of so many"),
    "transplant": ("VARCHAR", "proven, not proven or not run: does B follow A with A's rows at the origins?"),
    "origin": ("VARCHAR", "a site at which A's rows stood in; null: none did"),
    "origin_positions": ("INTEGER", "at how many positions"),
    "origin_first": ("INTEGER", "the first of them"),
    "origin_last": ("INTEGER", "the last"),
    "logits": ("INTEGER", "logits compared after the transplant"),
    "logits_equal": ("INTEGER", "those that are then equal"),
}
"""Column → SQL type and meaning."""


def create_zoom(connection: duckdb.DuckDBPyConnection, found: Zoom | None) -> None:
    """Make the table `zoom`; empty where nothing was zoomed into."""
    rows: list[tuple[object, ...]] = []
    if found is not None:
        finding, done = found.finding, found.transplant
        about = (writable(found.request_id), found.sample, found.position, found.site, found.seen_again)
        ops: tuple[object, ...] = (None,) * 8
        if finding is not None:
            numbers = (finding.max_abs_diff, finding.differing, finding.elements)
            named = (_names(finding.a), _names(finding.b), finding.tensor)
            ops = (finding.kind, finding.sentence, *named, *numbers)
        places: list[tuple[object, ...]] = [
            (one.site, one.positions, one.first, one.last) for one in done.origins
        ]
        rows += [
            (*about, *ops, done.state, *place, done.logits, done.logits_equal)
            for place in places or [(None,) * 4]
        ]
    create_table(connection, "zoom", ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items()), rows)


def _names(ops: list[ZoomOp]) -> str | None:
    return " + ".join(op.op for op in ops) or None
