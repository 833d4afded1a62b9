"""The result folder: its tables, how it is written and how it is read back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import BadInput, NewerVersion, OutputFailed
from ..schemas.files import NewFolder, report_disk_errors, restore_folder
from ..schemas.open_files import open_regular
from ..schemas.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path


SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class Column:
    """One column: the name of its Arrow type (`?`: nullable), and what it means."""

    name: str
    type: str
    meaning: str

    def field(self) -> pa.Field:
        """The column in an Arrow schema."""
        return pa.field(self.name, _ARROW_TYPES[self.type.rstrip("?")], nullable=self.type.endswith("?"))


_ARROW_TYPES = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}

TABLES: dict[str, tuple[Column, ...]] = {
    "tokens": (
        Column("pair", "int32", "index of the compared pair of sequences"),
        Column("request_id", "dictionary", "the envelope's request_id"),
        Column("sample", "int16", "which sample of the request"),
        Column("position", "int32", "index of the token, prompt included"),
        Column("step", "int32?", "index among generated tokens; null inside the prompt"),
        Column("phase", "dictionary", "prompt or decode"),
        Column("token_a", "int32?", "null: trace A ended before this position"),
        Column("token_b", "int32?", "null: trace B ended before this position"),
        Column("token_equal", "bool", "the tokens at this position are the same"),
        Column("comparable", "bool", "all tokens up to and including this position are equal"),
        # The distribution that PREDICTED the token at this position, i.e. the row at position − 1.
        # All null at position 0, where the rows are not comparable, and where an engine gave nothing.
        Column("logits_equal", "bool?", "that distribution's logits hashes are equal"),
        Column(
            "logprob_a", "float32?", "log-probability A's distribution gave token_a (null: not in its top-K)"
        ),
        Column(
            "logprob_b", "float32?", "log-probability B's distribution gave token_b (null: not in its top-K)"
        ),
        Column(
            "margin_a", "float32?", "top-1 minus top-2 raw logit in A (logprobs where there are no logits)"
        ),
        Column("margin_b", "float32?", "the same in B"),
        Column("max_abs_logit_diff", "float32?", "largest |logit_a − logit_b| over ids in both top-K lists"),
        Column(
            "max_rel_logit_diff",
            "float32?",
            "largest |logit_a − logit_b| / max(|logit_a|, |logit_b|) likewise",
        ),
        Column("max_abs_logprob_diff", "float32?", "largest |logprob_a − logprob_b| likewise"),
        Column("kl", "float32?", "KL(A‖B) in nats over A's top-K ids that B lists too, plus one rest bucket"),
        Column("topk_overlap", "float32?", "share of A's top-K ids that B lists too"),
        Column("top1_equal", "bool?", "both rank the same id first"),
        # The execution of the row AT this position.
        Column(
            "sites_compared", "int32", "sites whose row hash both traces have here (0 where not comparable)"
        ),
        Column("sites_differing", "int32", "those whose hashes differ"),
        Column(
            "first_site",
            "int16?",
            "first differing site in execution order (by_sketch ones too): index into site_totals",
        ),
        Column("batch_size_a", "int32?", "sequences in A's forward pass"),
        Column("batch_size_b", "int32?", "sequences in B's forward pass"),
        Column("num_tokens_a", "int32?", "tokens of this sequence in A's forward pass"),
        Column("num_tokens_b", "int32?", "tokens of this sequence in B's forward pass"),
        Column("padded_tokens_a", "int32?", "padding in A's row"),
        Column("padded_tokens_b", "int32?", "padding in B's row"),
        Column("cached_tokens_a", "int32?", "tokens of this sequence in A's KV cache before the pass"),
        Column("cached_tokens_b", "int32?", "tokens of this sequence in B's KV cache before the pass"),
    ),
    "sites": (
        Column("pair", "int32", "index of the compared pair of sequences"),
        Column("position", "int32", "index of the token, prompt included"),
        Column("site", "int16", "index into site_totals"),
        Column(
            "rel_drift",
            "float32?",
            "‖S(a) − S(b)‖ / max(‖a‖, ‖b‖), by sketch; 0: less than it resolves; NaN: a NaN",
        ),
        Column("l2_a", "float32", "Euclidean norm of A's row"),
        Column("l2_b", "float32", "Euclidean norm of B's row"),
    ),
    "site_totals": (
        Column("site", "int16", "index, in execution order"),
        Column("name", "string", "canonical module path"),
        Column("occurrence", "int32", "which run of the module within a forward pass"),
        Column("part", "string", "empty, or which tensor of the module"),
        Column("module", "string", "class of the module in A"),
        Column("dtype_a", "string", "dtype of A's rows"),
        Column("dtype_b", "string", "dtype of B's rows"),
        Column(
            "compared",
            "int64",
            "rows compared by hash (0 and null drifts where dtypes differ: see by_sketch)",
        ),
        Column("differing", "int64", "rows whose hashes differ"),
        Column("by_sketch", "bool", "dtypes differ, so rows were compared by sketch only"),
        Column("first_pair", "int32?", "pair of the first differing row"),
        Column("first_position", "int32?", "position of the first differing row in that pair"),
        Column("drift_p50", "float32?", "median rel_drift of the rows in sites (log histogram, within 3 %)"),
        Column("drift_p95", "float32?", "95th percentile likewise"),
        Column("drift_max", "float32?", "largest rel_drift, exact"),
    ),
    "topk": (
        Column("pair", "int32", "index of the compared pair of sequences"),
        Column("request_id", "dictionary", "the envelope's request_id"),
        Column("sample", "int16", "which sample of the request"),
        Column("position", "int32", "position of the token that this distribution predicted"),
        Column("step", "int32?", "index among generated tokens"),
        Column("side", "dictionary", "a or b"),
        Column("rank", "int16", "0 is the most likely"),
        Column("token_id", "int32", "candidate"),
        Column("logit", "float32?", "raw logit"),
        Column("logprob", "float32?", "raw log-probability"),
        Column("chosen", "bool", "this candidate is the token at `position` on its side"),
    ),
    "changes": (
        Column("section", "string", "fingerprint section"),
        Column("field", "string", "fingerprint field"),
        Column("before", "string", "value in A, or why it is unavailable"),
        Column("after", "string", "value in B, likewise"),
        Column("risk", "string?", "strongest level in doubt"),
        Column("rule", "string", "why, with its source"),
    ),
    "sequences": (
        Column("pair", "int32", "index of the compared pair of sequences"),
        Column("request_id", "dictionary", "the envelope's request_id"),
        Column("sample", "int16", "which sample of the request"),
        Column("cell", "dictionary", "the matrix cell; empty outside a matrix"),
        Column("prompt_tokens", "int32", "tokens before the first generated one"),
        Column("positions", "int32", "positions whose tokens, and all before them, are equal"),
        Column("steps", "int32", "generated tokens among them"),
        Column("diverged", "bool", "the tokens differ, or one side ends before the other"),
        Column("divergence_position", "int32?", "first position where they do"),
        Column("divergence_step", "int32?", "the same among generated tokens; null inside the prompt"),
        Column("margin_a", "float32?", "top-1 minus top-2 raw logit of A's distribution there"),
        Column("margin_b", "float32?", "the same in B"),
        Column("max_abs_logit_diff", "float32?", "largest |logit_a − logit_b| there"),
        Column("first_site", "string?", "label of the first differing row's site"),
        Column("first_layer", "int32?", "layer number in it"),
        Column("first_site_position", "int32?", "position of that row"),
        Column("first_drift", "float32?", "its rel_drift"),
        Column(
            "cause",
            "string?",
            "first-ranked cause where it diverges (null: none found, or not diagnosed)",
        ),
        Column("causes", "string?", "all of its causes, by rank (null: not diagnosed; the first 1,000 are)"),
        Column(
            "batch_size_a", "int32?", "sequences in A's forward pass that chose the divergent, or last, token"
        ),
        Column("batch_size_b", "int32?", "the same in B"),
        Column("replica_a", "string?", "context.replica_id of the envelope in A"),
        Column("replica_b", "string?", "the same in B"),
    ),
    "reference_sites": (
        Column("site", "int16", "index, in execution order"),
        Column("label", "string", "name#occurrence:part, or logits, logprobs"),
        Column("layer", "int32?", "layer number in the name"),
        Column("dtype_a", "string", "dtype of A's rows"),
        Column("dtype_b", "string", "dtype of B's rows"),
        Column("dtype_reference", "string", "dtype of the reference's rows"),
        Column("rows", "int64", "rows compared"),
        Column("effective_rows", "float32", "independent rows that they are worth (docs/reference.md)"),
        Column("distance_a_p50", "float32?", "median of ‖S(a) − S(r)‖ / ‖r‖ (logits: largest |a − r|)"),
        Column("distance_a_p95", "float32?", "95th percentile likewise"),
        Column("distance_a_max", "float32?", "largest likewise"),
        Column("distance_b_p50", "float32?", "the same of B"),
        Column("distance_b_p95", "float32?", "the same of B"),
        Column("distance_b_max", "float32?", "the same of B"),
        Column("ratio", "float32?", "median over the rows of B's distance / A's distance"),
        Column("ratio_low", "float32?", "95 % interval of that median"),
        Column("ratio_high", "float32?", "95 % interval of that median"),
        Column("farther", "string?", "a or b: farther than the dtype explains; null: neither"),
        Column("noise_p50", "float32?", "largest median distance between A and a repeat (--noise)"),
    ),
    "reference_steps": (
        Column("layer", "int32", "layer number"),
        Column("label", "string", "the layer's last site: its output"),
        Column("step", "int32?", "index among generated tokens; null: the whole prompt"),
        Column("rows", "int32", "sequences (in the prompt: rows) compared"),
        Column("distance_a", "float32", "their median distance from the reference in A"),
        Column("distance_b", "float32", "the same in B"),
    ),
}
LATER_TABLES = frozenset({"sequences", "reference_sites", "reference_steps"})
"""Absent from results that were written before they were invented."""


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of one result table."""
    return pa.schema([column.field() for column in TABLES[table]])


class ResultWriter:
    """Writes a result folder under a temporary name and renames it when whole.

    Use as a context manager: leaving it by an error removes what was written.
    """

    _ROWS_PER_GROUP: ClassVar[dict[str, int]] = {"tokens": 1 << 14, "sites": 1 << 20}

    def __init__(self, folder: Path, force: bool) -> None:
        """Prepare to write `folder`.

        Raises:
            OutputFailed: It exists and `force` is off, or is not a result folder, or cannot be made.
        """
        if folder.is_symlink():  # what a link leads to is replaced, not the link
            folder = folder.resolve()
        if folder.name in ("", ".."):
            raise OutputFailed(f"{folder} is not a name of a folder", "choose a name, for example result")
        self._folder = folder
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        with report_disk_errors(self._folder):
            restore_folder(folder)
        if folder.exists():
            if not force:
                raise OutputFailed(
                    f"{folder} exists already", "choose a different name, or overwrite it with --force"
                )
            if not folder.is_dir() or (any(folder.iterdir()) and not (folder / SUMMARY_FILE).is_file()):
                raise OutputFailed(
                    f"{folder} is not a result of rip diverge, so it is not overwritten",
                    "choose a different name",
                )
        with report_disk_errors(self._folder):
            self._new = NewFolder(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for writer in self._writers.values():
            with suppress(OSError, pa.ArrowInvalid):  # a full disk fails here too
                writer.close()
        self._writers.clear()
        self._new.discard()

    def add(self, table: str, rows: pa.RecordBatch) -> None:
        """Append rows to one of the tables; they are written in row groups of a million rows or less."""
        waiting = self._waiting.setdefault(table, [])
        waiting.append(rows)
        if sum(batch.num_rows for batch in waiting) >= self._ROWS_PER_GROUP.get(table, 1 << 16):
            self._flush(table)

    def finish(self, summary: str) -> None:
        """Write what waits and `summary.json`, and give the folder its name."""
        for table in TABLES:
            self._flush(table)
        with report_disk_errors(self._folder):
            for writer in self._writers.values():
                writer.close()
            (self._new.path / SUMMARY_FILE).write_text(summary, encoding="utf-8")
            self._new.publish()

    def _flush(self, table: str) -> None:
        schema = arrow_schema(table)
        with report_disk_errors(self._folder):
            if table not in self._writers:
                path = self._new.path / f"{table}.parquet"
                self._writers[table] = pq.ParquetWriter(path, schema, **_parquet_options(table))
            waiting = self._waiting.pop(table, [])
            if waiting:
                rows = pa.Table.from_batches(waiting, schema)
                self._writers[table].write_table(rows, row_group_size=max(rows.num_rows, 1))


def _parquet_options(table: str) -> dict[str, object]:
    if table != "sites":
        named = ["request_id", "phase", "side", "cell"]
        return {"compression": "LZ4", "use_dictionary": named, "write_statistics": ["pair", "position"]}
    # Millions of rows where everything differs: plain pages cost least, statistics let readers skip groups.
    return {"compression": "NONE", "use_dictionary": False, "write_statistics": ["pair", "position"]}


REPEAT_DIVERGE = "run rip diverge again: the folder is damaged"
"""How to fix any file of a result folder: nobody writes them by hand."""


def _read_summary(summary: Path) -> bytes:
    with open_regular(summary) as file:
        return file.readall()


def read_verdict(folder: Path) -> Verdict:
    """The verdict of a result folder.

    Raises:
        BadInput: There is none, it is damaged, or a newer rip wrote it.
    """
    summary = folder / SUMMARY_FILE
    try:
        return Verdict.from_json(_read_summary(summary), str(summary))
    except OSError as error:
        raise BadInput(
            f"{folder} is not a result of rip diverge: {summary.name}: {error.strerror}",
            "give the folder that rip diverge wrote with -o",
        ) from None
    except NewerVersion:
        raise
    except BadInput as error:
        raise BadInput(error.message, REPEAT_DIVERGE) from None
