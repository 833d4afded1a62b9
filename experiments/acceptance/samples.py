"""One sample of every request of a trace as a trace of its own, so that repeats can be compared."""

from __future__ import annotations

from pathlib import Path

from ...schemas.trace import HEADER_KEY, TraceHeader, parquet_options


def take_sample(trace: Path, sample: int) -> Path:
    """Write the rows and results of one sample, numbered 0, beside the trace.

    Args:
        trace: A trace whose requests ran several times.
        sample: From 0.

    Returns:
        The new trace; the caller removes it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    source = pq.ParquetFile(trace)
    schema: pa.Schema = source.schema_arrow
    header = TraceHeader.from_json(source.metadata.metadata[HEADER_KEY], str(trace))
    results = [one.model_copy(update={"sample": 0}) for one in header.results if one.sample == sample]
    path = trace.with_name(f"{trace.stem}.sample-{sample}.parquet")
    at = schema.get_field_index("sample")
    with pq.ParquetWriter(path, schema, **parquet_options(schema)) as out:
        for group in range(source.num_row_groups):
            rows = source.read_row_group(group)
            rows = rows.filter(pc.equal(rows.column(at), sample))
            if rows.num_rows:
                zeros = pa.chunked_array([pa.nulls(rows.num_rows, schema.field(at).type).fill_null(0)])
                out.write_table(rows.set_column(at, schema.field(at), zeros))
        out.add_key_value_metadata(
            {HEADER_KEY: header.model_copy(update={"results": results}).to_json().encode()}
        )
    return path
