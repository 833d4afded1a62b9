"""Rows as an engine hands them over, as an Arrow table in the trace's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.trace import SKETCH_SIZE
from ..row_summaries.trace_rows import Rows


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
    positions = np.arange(rows.first_position, rows.first_position + count, dtype=np.int32)
    steps = positions - info.prompt_tokens
    in_prompt = steps < 0
    topk = rows.topk
    has_logits = [item is not None and item.logits is not None for item in topk]
    columns: dict[str, pa.Array] = {
        "sequence": pa.array(np.full(count, rows.sequence, dtype=np.int32)),
        "request_id": _constant_text(info.request_id, count),
        "sample": pa.array(np.full(count, info.sample, dtype=np.int16)),
        "cell": _constant_text(info.cell, count),
        "position": pa.array(positions),
        "step": pa.array(steps.astype(np.int32), mask=in_prompt),
        "phase": pa.DictionaryArray.from_arrays(
            pa.array((~in_prompt).astype(np.int32)), pa.array(["prompt", "decode"])
        ),
        "token_id": pa.array(rows.token_ids.astype(np.int32)),
        "forced": pa.array(~in_prompt if rows.forced else np.zeros(count, dtype=bool)),
        "topk_ids": _lists([None if item is None else item.ids for item in topk], pa.int32()),
        "topk_logits": _lists(
            [
                item.logits if item is not None and ok else None
                for item, ok in zip(topk, has_logits, strict=True)
            ],
            pa.float32(),
        ),
        "topk_logprobs": _lists([None if item is None else item.logprobs for item in topk], pa.float32()),
        "next_logprob": pa.array(
            [None if item is None else item.next_logprob for item in topk], pa.float32()
        ),
        "logsumexp": pa.array([None if item is None else item.logsumexp for item in topk], pa.float64()),
        "logits_hash": pa.array([None if item is None else item.logits_hash for item in topk], pa.binary(16)),
        "sampler": pa.array(
            [
                None
                if item is None
                else {
                    "top1_id": item.top1_id,
                    "top1_logit": item.top1_logit,
                    "draw": item.draw,
                    "rng_offset": item.rng_offset,
                }
                for item in rows.samplers
            ],
            schema.field("sampler").type,
        ),
    }
    for name in ("batch_size", "batch_row", "num_tokens", "padded_tokens", "cached_tokens"):
        columns[name] = pa.array(
            [None if shape is None else getattr(shape, name) for shape in rows.shapes], pa.int32()
        )
    elapsed = rows.elapsed_s if rows.elapsed_s is not None else [None] * count
    columns["elapsed_s"] = pa.array(elapsed, pa.float64())
    if "site_hash" in schema.names:
        columns |= _site_columns(schema, rows, count)
    if "tensors" in schema.names:
        kept = rows.tensors or [[] for _ in range(count)]
        columns["tensors"] = pa.array(
            [[{"site": site, "row": raw} for site, raw in row] or None for row in kept],
            schema.field("tensors").type,
        )
    return pa.Table.from_arrays(
        [columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema
    )


def _site_columns(schema: pa.Schema, rows: Rows, count: int) -> dict[str, pa.Array]:
    """Site columns of R rows; a row that was never computed has null hashes and zeros elsewhere."""
    n_sites = schema.field("site_hash").type.list_size
    summaries = rows.summaries
    if summaries is None:
        digests = pa.nulls(count * n_sites, pa.binary(16))
        zeros = np.zeros(count * n_sites, dtype=np.float32)
        values = {"site_l2": zeros, "site_absmax": zeros, "site_sketch": np.repeat(zeros, SKETCH_SIZE)}
    else:
        halves = np.ascontiguousarray(summaries.row_hash[:count])
        present = halves.any(axis=-1).reshape(-1)  # 16 zero bytes: nothing was written there
        digests = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16),
            count * n_sites,
            [
                None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little")),
                pa.py_buffer(halves),
            ],
        )
        values = {
            "site_l2": summaries.l2[:count],
            "site_absmax": summaries.absmax[:count],
            "site_sketch": summaries.sketch[:count],
        }
    columns: dict[str, pa.Array] = {
        "site_hash": pa.FixedSizeListArray.from_arrays(digests, type=schema.field("site_hash").type)
    }
    for name, array in values.items():
        flat = pa.array(np.ascontiguousarray(array).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, type=schema.field(name).type)
    return columns


def _constant_text(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([text]))


def _lists(rows: Sequence[np.ndarray[Any, Any] | None], kind: pa.DataType) -> pa.Array:
    """A nullable list column from one array (or None) a row."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([0 if row is None else len(row) for row in rows], out=offsets[1:])
    filled = [row for row in rows if row is not None]
    values = pa.array(np.concatenate(filled) if filled else np.zeros(0), kind)
    mask = pa.array([row is None for row in rows], pa.bool_())
    target = pa.list_(pa.field("element", kind, nullable=False))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=target, mask=mask)
