"""The tables in memory over a trace's header: `header`, `results`, its sites, the texts of its tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..result_folder import TABLES, Column
from .memory_tables import create_table, writable
from .view_sql import LABEL, LAYER

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from ...schemas.trace import TraceHeader
    from ..reading.load import Part

HEADER = (
    Column("key", "string", "dotted path in the trace's header"),
    Column("value", "string", "its value; lists as JSON"),
)
RESULTS = (
    Column("sequence", "int32", "which execution: one sample of one request in this trace"),
    Column("request_id", "string", "the envelope's request_id"),
    Column("sample", "int32", "which of the repeats or of the n samples of the request"),
    Column("reason", "string", "how it ended: stop, length, golden, or the server's own word"),
    Column("text", "string?", "the generated text; all there is where an engine does not return token ids"),
    Column("ttft_s", "float64?", "seconds from sending the request to the first token; null: not over HTTP"),
    Column("itl_s", "float64?", "mean inter-token latency in seconds"),
    Column("latency_s", "float64?", "seconds from sending the request to the end of the answer"),
    Column("model", "string?", "the model that the server named in the answer"),
    Column("system_fingerprint", "string?", "the system_fingerprint in the answer"),
    Column("answered_by", "string?", "all fields of the answer about the server, as JSON"),
)
_SITES = (
    Column("site_group", "int32", "index of a group of files with the same sites"),
    Column("slot", "int32", "index in the lists of the site columns of that group"),
    Column("site", "int32", "index in execution order"),
    Column("name", "string", "canonical module path"),
    Column("occurrence", "int32", "which run of the module within a forward pass"),
    Column("part", "string", "empty, or which tensor of the module"),
    Column("module", "string", "class of the module"),
    Column("dtype", "string", "dtype of the row"),
)
_TOKEN_TEXT = (Column("token_id", "int32", "token"), Column("text", "string", "its text"))


def create_trace_tables(
    connection: duckdb.DuckDBPyConnection, header: TraceHeader, groups: list[list[Part]]
) -> None:
    """Make all of them, and the empty `changes`.

    Args:
        connection: Where.
        header: The trace's.
        groups: Its files, by their list of sites.
    """
    fields = header.to_object()
    texts = fields.pop("token_text", None) or {}
    fields.pop("results", None)  # a view of their own
    create_table(connection, "header", HEADER, list(_flattened(fields)))
    known = [(int(key), writable(str(value))) for key, value in texts.items() if str(key).isdigit()]
    create_table(connection, "token_text", _TOKEN_TEXT, known)
    create_table(connection, "results", RESULTS, list(_results(header)))
    create_table(connection, "changes", TABLES["changes"])
    sites = [
        (number, int(slot), index, site.name, site.occurrence, site.part, site.module, site.dtype)
        for number, group in enumerate(groups)
        for index, (site, slot) in enumerate(zip(header.sites, group[0].columns_of, strict=True))
        if slot >= 0
    ]
    create_table(connection, "unlabelled_sites", _SITES, sites)
    derived = f"{LABEL} AS label, {LAYER} AS layer"
    connection.execute(f"CREATE TABLE site_list AS SELECT *, {derived} FROM unlabelled_sites")


def _results(header: TraceHeader) -> Iterator[tuple[Any, ...]]:
    """A row for each sequence that ended."""
    for result in header.results:
        server = result.answered_by
        texts = (
            result.text,
            server.get("model"),
            server.get("system_fingerprint"),
            _json(server) if server else None,
        )
        text, model, system, answered_by = (None if item is None else writable(item) for item in texts)
        times = (result.ttft_s, result.itl_s, result.latency_s)
        about = (result.sequence, writable(result.request_id), result.sample, writable(result.reason))
        yield *about, text, *times, model, system, answered_by


def _flattened(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flattened(item, f"{prefix}{key}.")
        else:
            text = item if isinstance(item, str) else _json(item)
            yield f"{prefix}{key}", writable(text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
