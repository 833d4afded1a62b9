"""`NAME.zoom.parquet`: the recorded ops of a replay, beside its trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...schemas.errors import BadInput
from ...schemas.files import replace_file, report_disk_errors
from ...schemas.recorded_ops import (
    COLUMNS,
    ZOOM_KEY,
    ZOOM_SUFFIX,
    Op,
    OpTensor,
    OpTrace,
    ZoomHeader,
    arrow_schema,
)

_TRACE_SUFFIX = ".parquet"


def zoom_path(trace: Path) -> Path:
    """Where the ops of a trace's run go: `T.parquet` → `T.zoom.parquet`."""
    return trace.with_name(trace.name.removesuffix(_TRACE_SUFFIX) + ZOOM_SUFFIX)


def write_ops(path: Path, header: ZoomHeader, passes: Sequence[Sequence[Op]]) -> None:
    """Write recorded passes, replacing what is there. Like a trace, the file may hold secrets: mode 0600.

    Args:
        path: The file.
        header: What is known of the run; its `passes` name the op lists by index.
        passes: The ops of each pass.

    Raises:
        OutputFailed: It cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema()
    with (
        report_disk_errors(path),
        replace_file(path) as unfinished,
        pq.ParquetWriter(unfinished, schema, compression="ZSTD", write_page_checksum=True) as writer,
    ):
        for index, ops in enumerate(passes):
            rows = [_row(index, op) for op in ops]
            columns = [
                pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        writer.add_key_value_metadata({ZOOM_KEY: header.to_json().encode()})


def read_ops(path: Path) -> tuple[ZoomHeader, list[OpTrace]]:
    """Read what `write_ops` wrote: the header, and a trace of ops for each of its `passes`.

    Raises:
        BadInput: Missing, damaged, foreign or newer file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    fix = "give a file that rip replay --zoom wrote"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            text, table = (file.metadata.metadata or {}).get(ZOOM_KEY), file.read()
    except (OSError, pa.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), "damaged")
        raise BadInput(f"{path}: cannot be read: {reason}", fix) from None
    if text is None or not {column.name for column in COLUMNS} <= set(table.column_names):
        raise BadInput(f"{path}: a Parquet file, but no recorded ops", fix)
    header = ZoomHeader.from_json(text, str(path))
    ops: dict[int, list[Op]] = {}
    for row in table.to_pylist():
        ops.setdefault(row["pass"], []).append(_op(row))
    return header, [record.with_ops(tuple(ops.get(record.ops, ()))) for record in header.passes]


def _row(index: int, op: Op) -> dict[str, Any]:
    return {
        "pass": index,
        "index": op.index,
        "module": op.module,
        "call": op.call,
        "op": op.name,
        "occurrence": op.occurrence,
        "arguments": op.arguments,
        "inputs": [_written(tensor) for tensor in op.inputs],
        "outputs": [_written(tensor) for tensor in op.outputs],
    }


def _written(tensor: OpTensor) -> dict[str, Any]:
    return {**vars(tensor), "digest": tensor.digest or None}


def _op(row: dict[str, Any]) -> Op:
    return Op(
        index=row["index"],
        module=row["module"],
        call=row["call"],
        name=row["op"],
        occurrence=row["occurrence"],
        arguments=row["arguments"],
        inputs=tuple(_read(tensor) for tensor in row["inputs"]),
        outputs=tuple(_read(tensor) for tensor in row["outputs"]),
    )


def _read(tensor: dict[str, Any]) -> OpTensor:
    shapes = {name: tuple(tensor[name]) for name in ("shape", "stride")}
    return OpTensor(**{**tensor, **shapes, "digest": tensor["digest"] or b""})
