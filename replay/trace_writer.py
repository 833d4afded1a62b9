"""The trace writer: Arrow tables of rows, bounded memory while a run goes on, one whole Parquet file at last.

Rows of several sequences arrive interleaved. They are buffered per sequence; when the buffer is full,
or some seconds have passed, everything buffered is written as one part into `OUT.parquet.parts/`. The
end of the run puts the parts in order under the final name. A run that dies leaves the parts, which
`rip query` and `rip diverge` read.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import OutputFailed
from ..schemas.files import OutputLock, create_file, replace_file
from ..schemas.trace import (
    HASH_BYTES,
    HEADER_KEY,
    SHAPE_COLUMNS,
    SITE_COLUMNS,
    TraceHeader,
    arrow_schema,
    parquet_options,
    parts_folder,
)
from .row_summaries.rows import Rows, RowSummaries, TopK


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


FLUSH_BYTES = 64 << 20
"""Buffered site summaries at which a part is written."""
FLUSH_SECONDS = 8.0
"""Longest time that a row waits here before the next one that arrives takes it to disk. Engines hand
rows over every second or two: together that stays within the ten seconds that the README promises."""

ROW_GROUP_BYTES = 64 << 20


class TraceWriter:
    """Writes one trace, and is the only one to do so until `finish`, `abandon` or `close`.

    Args:
        path: Final name. It appears only when the trace is whole.
        header: The header as far as it is known; `finish` takes the final one.
        keeps_tensors: Whether rows carry kept tensors.
        force: Replace a trace of that name, and remove at once the parts that an earlier run left.

    Raises:
        OutputFailed: At once, where another writer has that name or parts are there without `force`. On any
            write, when the disk is full or the folder is not writable.
    """

    def __init__(
        self, path: Path, header: TraceHeader, keeps_tensors: bool = False, force: bool = False
    ) -> None:
        self.path = path
        self._force = force
        self.parts = parts_folder(path)
        self._header = header
        self._header_in_parts: TraceHeader | None = None
        """What `header.json` of the parts folder holds."""
        self._schema = arrow_schema(len(header.sites), keeps_tensors)
        self._options = parquet_options(self._schema)
        self._buffered: dict[int, list[pa.Table]] = defaultdict(list)
        self._buffered_rows = 0
        self._bytes = 0
        self._part_count = 0
        self._row_groups: list[tuple[int, int, int, int]] = []
        """(sequence, first position, part, index in the part) of every row group flushed."""
        self._flushed_at = time.monotonic()
        self.rows_written = 0
        """Rows that are in a file by now."""
        self.is_torn = False
        """Rows are being taken over: interrupted here, they may be missing, and none may follow them."""
        self._lock = OutputLock(path, force)
        try:
            if self.parts.exists():
                shutil.rmtree(self.parts)
        except OSError as error:
            raise self._write_failed(error) from None

    def update(self, header: TraceHeader) -> None:
        """What is known by now, its sites unchanged: parts that are flushed from here on say so."""
        self._header = header

    def append(self, info: SequenceInfo, rows: Rows) -> None:
        """Take over consecutive rows of one sequence."""
        self.is_torn = True
        table = table_of(self._schema, info, rows)
        self._buffered[rows.sequence].append(table)
        self._buffered_rows += table.num_rows
        self._bytes += table.nbytes
        self.is_torn = False
        if self._bytes > FLUSH_BYTES or time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write everything buffered as one part."""
        self._flushed_at = time.monotonic()
        has_news = self._header is not self._header_in_parts and bool(self._header.results)
        if not self._buffered and not has_news:
            return
        part = self._part_count
        try:
            if not part:
                self.parts.mkdir(mode=0o700, exist_ok=True)
            if self._header is not self._header_in_parts:
                with replace_file(self.parts / "header.json", synced=False) as unfinished:
                    unfinished.write_text(self._header.to_json(), encoding="utf-8")
                self._header_in_parts = self._header
            with replace_file(self._part(part), synced=False) as unfinished:
                row_groups = self._write_part(unfinished)
        except OSError as error:
            raise self._write_failed(error) from None
        finally:
            if not self._part(0).exists():
                shutil.rmtree(self.parts, ignore_errors=True)
                self._header_in_parts = None
        self._row_groups += [(*key, part, index) for index, key in enumerate(row_groups)]
        self._part_count += 1
        self._clear_buffer()

    def finish(self, header: TraceHeader) -> Path:
        """Write the whole trace under its final name and remove the parts."""
        if self._part_count:
            self.flush()
        try:
            with (
                (replace_file if self._force else create_file)(self.path) as unfinished,
                self._parquet_writer(unfinished, header) as writer,
            ):
                for group in _row_groups(self._pieces()):
                    writer.write_table(group, row_group_size=group.num_rows)
        except FileExistsError:
            raise self._name_taken() from None
        except OSError as error:
            raise self._write_failed(error) from None
        self._clear_buffer()
        if self._part_count:
            shutil.rmtree(self.parts, ignore_errors=True)
        self.close()
        return self.path

    def abandon(self) -> Path | None:
        """Keep what there is after an interruption: the parts folder, or None where no row was made.

        Where even that cannot be written, the parts written before stay.
        """
        with contextlib.suppress(OutputFailed):
            self.flush()
        self.close()
        return self.parts if self._kept_parts() else None

    def close(self) -> None:
        """Let others write under this name. Nothing is written after that."""
        self._lock.release()

    def _write_part(self, path: Path) -> list[tuple[int, int]]:
        """Write what is buffered; returns (sequence, first position) of each row group."""
        keys = []
        with self._parquet_writer(path, self._header) as writer:
            for sequence in sorted(self._buffered):
                for group in _row_groups(iter(self._buffered[sequence])):
                    keys.append((sequence, group["position"][0].as_py()))
                    writer.write_table(group, row_group_size=group.num_rows)
        return keys

    @contextlib.contextmanager
    def _parquet_writer(self, path: Path, header: TraceHeader) -> Iterator[pq.ParquetWriter]:
        """A writer whose file is whole, header included, when the context ends without an error."""
        with pq.ParquetWriter(path, self._schema, **self._options) as writer:
            yield writer
            writer.add_key_value_metadata({HEADER_KEY: header.to_json().encode()})

    def _clear_buffer(self) -> None:
        """What was buffered is in a file."""
        self.rows_written += self._buffered_rows
        self._buffered.clear()
        self._buffered_rows = self._bytes = 0

    def _part(self, index: int) -> Path:
        return self.parts / f"part-{index:05d}.parquet"

    def _pieces(self) -> Iterator[pa.Table]:
        """All rows in the order of the trace: by sequence, then position."""
        if not self._part_count:
            for sequence in sorted(self._buffered):
                yield from self._buffered[sequence]
            return
        for _, _, index, group in sorted(self._row_groups):
            # Opened one at a time: a run of some hours leaves more parts than a process may have open.
            with pq.ParquetFile(self._part(index), page_checksum_verification=True) as file:
                yield file.read_row_group(group).cast(self._schema)

    def _write_failed(self, error: OSError) -> OutputFailed:
        kept = self._kept_parts()
        parts = f"; {kept} whole parts are kept in {self.parts}" if kept else ""
        fix = "free disk space, or write the trace to another folder"
        if kept < self._part_count:
            parts = f"; {self._part_count - kept} parts vanished from {self.parts}{parts}"
            fix = "leave that folder alone while a run goes on, and run the command again"
        return OutputFailed(f"{self.path} could not be written: {error.strerror or error}{parts}", fix)

    def _name_taken(self) -> OutputFailed:
        kept = self.abandon()
        return OutputFailed(
            f"{self.path} appeared while this run was recording, and was left alone"
            + (f"; {self.rows_written} rows are kept in {kept}" if kept else ""),
            "choose another name, or overwrite it with --force",
        )

    def _kept_parts(self) -> int:
        """Parts that are really there: somebody may have removed them."""
        return sum(self._part(index).exists() for index in range(self._part_count))


def _row_groups(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Gather pieces, or cut them, into tables of about ROW_GROUP_BYTES."""
    gathered: list[pa.Table] = []
    size = 0
    for whole in pieces:
        most = max(1, ROW_GROUP_BYTES * whole.num_rows // max(whole.nbytes, 1))
        for start in range(0, whole.num_rows, most):
            piece = whole.slice(start, most)
            gathered.append(piece)
            size += piece.nbytes
            if size >= ROW_GROUP_BYTES:
                yield pa.concat_tables(gathered).unify_dictionaries()
                gathered, size = [], 0
    if gathered:
        yield pa.concat_tables(gathered).unify_dictionaries()
