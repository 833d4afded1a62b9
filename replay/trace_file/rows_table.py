"""Rows as an Arrow table in the trace's schema; the columns' types stand in `schemas/trace.py` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.trace import HASH_BYTES, SHAPE_COLUMNS, SITE_COLUMNS
from ..row_summaries.summaries import RowSummaries
from ..row_summaries.trace_rows import Rows, TopK


@dataclass(frozen=True)
class SequenceInfo:
    """What is the same in all rows of a sequence."""

    request_id: str
    sample: int
    prompt_tokens: int
    cell: str = ""


def table_of(schema: pa.Schema, info: SequenceInfo, rows: Rows) -> pa.Table:
    """R rows as a table.

    Args:
        schema: As `schemas.trace.arrow_schema` gives it.
        info: What is the same in all rows of their sequence.
        rows: The rows. Their summaries are taken over without a copy where they are contiguous.
    """
    count = len(rows.token_ids)
    values = {
        **_sequence_columns(info, rows, count),
        **_distribution_columns(rows.topk),
        "sampler": [None if sampler is None else vars(sampler) for sampler in rows.samplers],
        **{name: [getattr(shape, name, None) for shape in rows.shapes] for name in SHAPE_COLUMNS},
        "elapsed_s": rows.elapsed_s or [None] * count,
        "tensors": [[{"site": site, "row": raw} for site, raw in row] or None for row in rows.tensors]
        or [None] * count,
    }
    if SITE_COLUMNS & {*schema.names}:
        values |= _site_columns(schema, rows.summaries, count)
    return pa.Table.from_arrays([_array(values[field.name], field.type) for field in schema], schema=schema)


def _sequence_columns(info: SequenceInfo, rows: Rows, count: int) -> dict[str, Any]:
    positions = np.arange(rows.first_position, rows.first_position + count)
    steps = positions - info.prompt_tokens
    in_prompt = steps < 0
    same = np.zeros(count, np.int32)
    return {
        "sequence": np.full(count, rows.sequence),
        "request_id": pa.DictionaryArray.from_arrays(same, [info.request_id]),
        "sample": np.full(count, info.sample),
        "cell": pa.DictionaryArray.from_arrays(same, [info.cell]),
        "position": positions,
        "step": np.ma.masked_array(steps, in_prompt),
        "phase": pa.DictionaryArray.from_arrays((~in_prompt).astype(np.int32), ["prompt", "decode"]),
        "token_id": rows.token_ids,
        "forced": ~in_prompt if rows.forced else np.zeros(count, np.bool_),
    }


def _distribution_columns(topk: Sequence[TopK | None]) -> dict[str, Any]:
    fields = {
        "topk_ids": "ids",
        "topk_logits": "logits",
        "topk_logprobs": "logprobs",
        "next_logprob": "next_logprob",
        "logsumexp": "logsumexp",
        "logits_hash": "logits_hash",
    }
    return {column: [getattr(item, field, None) for item in topk] for column, field in fields.items()}


def _site_columns(schema: pa.Schema, summaries: RowSummaries | None, count: int) -> Mapping[str, pa.Array]:
    """Site columns of R rows; a row that was never computed has null hashes and zeros elsewhere."""
    n_sites = schema.field("site_hash").type.list_size
    known = RowSummaries.empty(count, n_sites) if summaries is None else summaries.at(slice(count))
    present = known.is_computed().reshape(-1)
    digests = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(HASH_BYTES),
        count * n_sites,
        [
            None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little")),
            pa.py_buffer(np.ascontiguousarray(known.row_hash)),
        ],
    )
    flat = {"site_hash": digests} | {
        name: pa.array(np.ascontiguousarray(array).reshape(-1))
        for name, array in (
            ("site_l2", known.l2),
            ("site_absmax", known.absmax),
            ("site_sketch", known.sketch),
        )
    }
    return {
        name: pa.FixedSizeListArray.from_arrays(values, type=schema.field(name).type)
        for name, values in flat.items()
    }


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """Values as an array of a column's type."""
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, kind, mask=np.ma.getmaskarray(values))
    if pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type):
        return _lists(values, kind)
    return pa.array(values, kind)


def _lists(rows: Sequence[np.ndarray[Any, Any] | None], kind: pa.DataType) -> pa.Array:
    """A nullable list column from one array (or None) a row."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([0 if row is None else len(row) for row in rows], out=offsets[1:])
    filled = [row for row in rows if row is not None]
    values = pa.array(np.concatenate(filled) if filled else np.zeros(0), kind.value_type)
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=mask)
