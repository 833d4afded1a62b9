"""The trace file: its Parquet columns, its header, and the page layout that readers may rely on.

One row per (sequence, position); sequences contiguous, positions ascending. The header is JSON in the
file's key-value metadata. pyarrow is imported only by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from . import column_types
from .base import Document, Record
from .choices import CaptureLevel as CaptureLevel
from .choices import Mode as Mode
from .column_types import Column
from .fingerprint import Fingerprint
from .lane import OF_OPTION, Lane, Setting

if TYPE_CHECKING:
    import pyarrow as pa

    from .envelope import Envelope

HEADER_KEY = b"rip.trace"
"""Parquet key-value metadata key that holds the header's JSON."""

PARTS_SUFFIX = ".parts"
"""`T.parquet.parts/` holds what a run in progress, or one that died, has flushed (see docs/formats.md)."""

HASH_BYTES = 16
SKETCH_SIZE = 16
"""m: float32 values in a sketch."""


COLUMNS: tuple[Column, ...] = (
    Column("sequence", "int32", "index", "which execution: one sample of one request in this trace"),
    Column("request_id", "dictionary<string>", "", "the envelope's request_id"),
    Column("sample", "int16", "index", "which of the repeats or of the n samples of the request"),
    Column("cell", "dictionary<string>", "", "the matrix cell that ran; empty outside a matrix"),
    Column("position", "int32", "index", "index of the token in its sequence, prompt included"),
    Column("step", "int32?", "index", "index among generated tokens; null inside the prompt"),
    Column("phase", "dictionary<string>", "", "`prompt`, or `decode` for generated tokens"),
    Column("token_id", "int32", "token id", "token at this position"),
    Column("forced", "bool", "", "a recorded token was put here in place of the engine's own choice"),
    Column("topk_ids", "list<int32>?", "token id", "most likely next tokens, raw distribution, best first"),
    Column("topk_logits", "list<float32>?", "logit", "their raw logits; null where an engine gives none"),
    Column("topk_logprobs", "list<float32>?", "nat", "their raw log-probabilities"),
    Column("next_logprob", "float32?", "nat", "raw log-probability of the NEXT token, chosen or forced"),
    Column("logsumexp", "float64?", "nat", "log of the sum of exp over all raw logits"),
    Column("logits_hash", "binary[16]?", "", "row hash of the raw logits over the whole vocabulary"),
    Column(
        "sampler",
        "struct<top1_id: int32, top1_logit: float32, draw: float64, rng_offset: int64>?",
        "",
        "what the sampler used to choose the NEXT token: processed top-1, uniform draw, draws before it",
    ),
    Column("batch_size", "int32?", "sequences", "sequences in the forward pass that computed this row"),
    Column("batch_row", "int32?", "index", "this sequence's row in that batch"),
    Column("num_tokens", "int32?", "tokens", "tokens of this sequence in that forward pass"),
    Column("padded_tokens", "int32?", "tokens", "padding in this sequence's row of that forward pass"),
    Column("cached_tokens", "int32?", "tokens", "tokens of this sequence already in the KV cache"),
    Column("elapsed_s", "float64?", "s", "from sending the request until this token arrived; servers only"),
    Column("site_hash", "list<binary[16]?>[{n}]?", "", "row hash per site; null element: not computed here"),
    Column("site_l2", "list<float32>[{n}]", "", "Euclidean norm per site; 0 where not computed"),
    Column("site_absmax", "list<float32>[{n}]", "", "largest magnitude per site; 0 where not computed"),
    Column("site_sketch", "list<float32>[{16n}]", "", "16 sketch values per site; 0 where not computed"),
    Column(
        "tensors", "list<struct<site: int32, row: binary>>?", "", "kept rows, raw bits (--capture tensors)"
    ),
)

SHAPE_COLUMNS = ("batch_size", "batch_row", "num_tokens", "padded_tokens", "cached_tokens")
"""The shape of the forward pass that computed a row."""

SITE_COLUMNS = frozenset({"site_hash", "site_l2", "site_absmax", "site_sketch"})
"""Absent from a trace whose capture level is `tokens`."""

LATER_COLUMNS = frozenset({"elapsed_s", "next_logprob"})
"""Absent from traces that were written before they were invented."""


class Site(Record):
    """A named place in the model whose output is observed."""

    name: str
    """Canonical module path, root stripped: `layers.4.mlp.gate_proj`."""
    occurrence: int = 0
    """Which run of the module within one forward pass."""
    part: str = ""
    """Empty for the module's output; else which tensor: `attn` (attention output before o_proj), `0`, `1`."""
    module: str = ""
    """Class of the module, for readers."""
    dtype: str = ""
    """torch name without the prefix: `bfloat16`."""
    width: int = 0
    """Elements in a row."""
    sharded: bool = False
    """True where tensor parallelism splits the row: compared only under equal TP."""

    def label(self) -> str:
        """For people: `layers.4.self_attn:attn`, `rotary_emb#1`."""
        return site_label(self.name, self.occurrence, self.part)


def site_label(name: str, occurrence: int, part: str) -> str:
    """What a site is called: `layers.4.self_attn#1:attn`."""
    return name + (f"#{occurrence}" if occurrence else "") + (f":{part}" if part else "")


class Request(Record):
    """One envelope as it was run."""

    request_id: str
    envelope_sha256: str
    envelope: dict[str, Any] | None = None
    """The whole envelope; None where only its digest is kept."""
    sampling: dict[str, Setting] = {}
    """Every sampling field that was really used, defaults included."""

    @property
    def overrides(self) -> dict[str, Any]:
        """The sampling fields that the replay stated in place of the envelope's."""
        return {name: one.resolved for name, one in self.sampling.items() if one.source == OF_OPTION}

    @property
    def is_sampled(self) -> bool:
        """Its tokens are drawn, as far as it says."""
        temperature = self.sampling.get("temperature")
        value = None if temperature is None else temperature.resolved
        return isinstance(value, int | float) and value > 0

    @classmethod
    def of(cls, envelope: Envelope, sampling: Mapping[str, Setting] | None = None) -> Self:
        """The whole envelope, as it is about to run."""
        return cls(
            request_id=envelope.request_id,
            envelope_sha256=envelope.sha256(),
            envelope=envelope.to_object(),
            sampling=dict(sampling or {}),
        )


class EngineAbilities(Record):
    """What the engine could do, as far as it limits what can be said of the trace."""

    modes: list[Mode]
    seed: bool
    """A seed chooses the draws; without one no run can be repeated."""
    token_ids: bool
    """It returns the ids that it generated; else there is only text."""
    logprobs: Literal["raw", "processed", "unknown", "none"]
    """Whether log-probabilities are those before the logits processors and the temperature."""


class SequenceResult(Record):
    """How one sequence ended, and what a client saw of it."""

    sequence: int
    request_id: str
    sample: int
    reason: str
    """`stop`, `length`, `golden` when the recorded tokens ran out, or what a server calls it."""
    text: str | None = None
    """The generated text; all there is of an engine that returns no token ids."""
    ttft_s: float | None = None
    """Seconds from sending the request to the first token; None for engines in this process."""
    itl_s: float | None = None
    """Mean inter-token latency in seconds."""
    latency_s: float | None = None
    """Seconds from sending the request to the end of the answer."""
    answered_by: dict[str, str] = {}
    """What the server said of itself with the answer: `model`, `system_fingerprint`."""


ObserverReason = Literal[
    "no sites captured", "run failed", "no logits", "own loop", "requests not sent", "changed"
]


class ObserverCheck(Record):
    """One sequence repeated with taps off: did observing change the result?

    Beyond `state` the data are absent from traces that were written before they were recorded.
    """

    state: Literal["equal", "changed", "not run"]
    reason: ObserverReason | None = None
    """Why it was not run, or is not equal. `own loop`: of a program of the user's own. `requests not sent`:
    they were not rip's."""
    error: str | None = None
    """Of `run failed`: its message."""
    of: Literal["logits hashes", "top-K log-probabilities"] | None = None
    """What had to be equal, …"""
    rows: int | None = None
    """… in so many rows …"""
    requests: list[str] | None = None
    """… of these requests."""
    alone: bool | None = None
    """The first sequence ran alone, as the engine's scheduler decides which of them share a pass."""
    compared: str = ""
    """What had to be equal, in words, for readers."""
    why: str | None = None
    """The reason in words, for readers."""


class Finding(Record):
    """Something that a reader of the trace should know."""

    kind: str
    """As docs/formats.md lists them: `sampling-defaults`, `identity-drift`, `prefix-cached`, …"""
    requests: list[str] = []
    """Request ids that it is about; empty: the whole run."""
    data: dict[str, Any] = {}
    """What belongs to the kind: fields, values, counts."""


class TraceHeader(Document):
    """What the trace's metadata says about the run."""

    KIND: ClassVar[str] = "trace"

    tool_version: str
    created: str
    lane: Lane
    abilities: EngineAbilities | None = None
    """Absent from traces that were written before it was recorded."""
    mode: Mode
    capture: CaptureLevel
    channel: str = ""
    """How sites were observed: `eager`, `graph`, `compiled`; empty without capture."""
    requests: list[Request]
    fingerprint: Fingerprint | None = None
    sites: list[Site] = []
    """In execution order; the position in this list is the index in the site columns."""
    site_filter: str = ""
    """The pattern that sites had to match (`--sites`); empty: all were observed."""
    row_hash: str = ""
    """Name of the row hash, with every parameter that changes it."""
    sketch: str = ""
    """Name of the sketch, likewise."""
    observer: ObserverCheck = ObserverCheck(
        state="not run", reason="no sites captured", why="no sites were captured"
    )
    seconds: dict[str, float] = {}
    """Wall times: `load`, `replay`, `observer`."""
    findings: list[str] = []
    """What a reader should know, in sentences: drift that was allowed, settings without effect, defaults."""
    findings_data: list[Finding] = []
    """The same as data. Absent from traces that were written before it was recorded."""
    not_seen: list[str] = []
    """What this trace cannot show, in sentences."""
    results: list[SequenceResult] = []
    """One for every recorded sequence that came to its end."""
    token_text: dict[str, str] = {}
    """Text of every token id that occurs (as a JSON key), so that reports can show words."""

    def is_sampled(self, request_id: str) -> bool:
        """The tokens of a request are drawn, as far as it says."""
        return any(one.is_sampled for one in self.requests if one.request_id == request_id)

    def seconds_again(self, repeats: int = 1) -> float | None:
        """How long its requests take when they run again, so often; None: it does not tell."""
        if not self.seconds:
            return None
        setting, load = self.lane.settings.get("repeat"), self.seconds.get("load", 0.0)
        ran = setting.resolved if setting is not None and isinstance(setting.resolved, int) else 1
        return load + (sum(self.seconds.values()) - load) * repeats / ran


def parts_folder(path: Path) -> Path:
    """Where the parts of the trace `path` are."""
    return path.with_name(path.name + PARTS_SUFFIX)


def arrow_schema(n_sites: int, keeps_tensors: bool) -> pa.Schema:
    """The Arrow schema of a trace with `n_sites` sites (0: no site columns)."""
    kept = [
        column
        for column in COLUMNS
        if (n_sites or column.name not in SITE_COLUMNS) and (keeps_tensors or column.name != "tensors")
    ]
    return column_types.arrow_schema(kept, {"{n}": n_sites, "{16n}": n_sites * SKETCH_SIZE})


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How a trace is written: options for `pyarrow.parquet.ParquetWriter`.

    Hashes and sketches do not compress, so they stay plain. `site_l2`, `site_absmax` and `site_sketch`
    hold no nulls and are written as ONE uncompressed PLAIN page per row group: the values are then the
    last `rows × width × 4` bytes of the column chunk, and a reader can take the sketch of a single row
    with one seek. The `topk_*` columns hardly compress and are plain pages too. A reader must check that
    layout (see diverge/reading/pages.py) and fall back to decoding. Every page carries its CRC-32, so that a
    reader that checks (pyarrow: `page_checksum_verification=True`) finds a flipped bit.
    """
    plain = [name for name in schema.names if name in SITE_COLUMNS or name.startswith("topk_")]
    small = [name for name in schema.names if name not in plain]

    def leaf(name: str) -> str:
        kind = schema.field(name).type
        return f"{name}.list.element" if str(kind).startswith(("list", "fixed_size_list")) else name

    compression = {leaf(name): "NONE" for name in plain} | {
        path: "ZSTD" for name in small for path in _leaf_paths(schema, name)
    }
    return {
        "compression": compression,
        "use_dictionary": [name for name in ("request_id", "cell", "phase") if name in schema.names],
        "write_statistics": ["sequence", "position", "step"],
        "data_page_size": 1 << 30,
        "max_rows_per_page": 1 << 30,
        "write_page_checksum": True,
    }


def _leaf_paths(schema: pa.Schema, name: str) -> list[str]:
    import pyarrow.types as kinds

    kind = schema.field(name).type
    if kinds.is_struct(kind):
        return [f"{name}.{child.name}" for child in kind]
    if kinds.is_list(kind) and kinds.is_struct(kind.value_type):
        return [f"{name}.list.element.{child.name}" for child in kind.value_type]
    if kinds.is_list(kind):
        return [f"{name}.list.element"]
    return [name]
