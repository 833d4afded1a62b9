"""Zoom: a difference found op by op, as verdicts hold it, and the file `NAME.zoom.parquet`.

What passes in memory between a re-run and the comparison is in rerun.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Document, Real, Record
from .trace import Column

if TYPE_CHECKING:
    import pyarrow as pa

ZOOM_KEY = b"rip.zoom"
"""Parquet key-value metadata key of a zoom file's header."""
ZOOM_SUFFIX = ".zoom.parquet"

COLUMNS: tuple[Column, ...] = (
    Column("pass", "int32", "index", "which recorded forward pass; the header's `passes` name its sequences"),
    Column("index", "int32", "index", "ordinal of the op in the pass, ops out of scope included"),
    Column("module", "string", "", "canonical path of the module that it ran in; empty: the model itself"),
    Column("call", "int32", "index", "which run of that module in the pass"),
    Column("op", "string", "", "op and overload: `aten.mm.default`"),
    Column("occurrence", "int32", "index", "ops of that name before it in the same call of the module"),
    Column("arguments", "string", "", "arguments that are no tensors"),
    Column("inputs", "list<tensor>", "", "the tensors that it took, as they were before it ran"),
    Column("outputs", "list<tensor>", "", "the tensors that it gave"),
)
"""Of `NAME.zoom.parquet`."""

TENSOR_FIELDS: tuple[Column, ...] = (
    Column("name", "string", "", "the argument's name (`tensors.0` in a list); `out`, `out.1` for results"),
    Column("shape", "list<int64>", "elements", "elements along each axis"),
    Column("stride", "list<int64>", "elements", "elements between neighbours along each axis"),
    Column("dtype", "string", "", "torch name without the prefix"),
    Column("device", "string", "", "where it lies"),
    Column("storage_offset", "int64", "elements", "elements before the first one in its memory"),
    Column("digest", "binary[16]?", "", "BLAKE3 of its elements in logical order; null: undefined content"),
    Column("parameter", "string", "", "the parameter or buffer whose memory it is; empty: an activation"),
    Column("producer", "int32", "index", "the op of this pass that wrote its memory last; −1: none did"),
    Column("data", "binary?", "", "its elements in logical order, where they were kept"),
)
"""Of a tensor in `inputs` and `outputs`."""


class ZoomTensor(Record):
    """One tensor of an op."""

    name: str
    shape: list[int]
    stride: list[int]
    dtype: str
    device: str
    storage_offset: int = 0
    parameter: str | None = None


class ZoomOp(Record):
    """One op."""

    op: str
    """`aten.mm.default`."""
    module: str
    occurrence: int
    """How many ops of that name ran before it in the same call of the module."""
    arguments: str = ""
    inputs: list[ZoomTensor] = []
    outputs: list[ZoomTensor] = []


class OpFinding(Record):
    """The first difference in a module's ops."""

    kind: Literal["op", "block", "weight", "outside", "unknown", "none"]
    """`op`: one op has a different output for equal inputs. `block`: different ops run. `weight`: a
    parameter differs. `outside`: a tensor that was made before this pass, or outside the recorded modules,
    differs (a KV cache, positions). `unknown`: tensors could not be compared. `none`: nothing differs."""
    sentence: str
    a: list[ZoomOp] = []
    """The op, or the block of ops, in A."""
    b: list[ZoomOp] = []
    tensor: str | None = None
    """The weight, or the input, that differs."""
    maker_a: int | None = None
    """Of `outside`: ordinal in the pass of the op that made it in A, in a module that was not recorded."""
    maker_b: int | None = None
    left_out_a: int = 0
    """Ops of a block in A beyond those listed, without views."""
    left_out_b: int = 0
    max_abs_diff: Real | None = None
    """Largest difference of the outputs at the compared positions; absent: it was not kept or not finite."""
    differing: int | None = None
    """Elements of the output that differ."""
    elements: int | None = None
    """Of so many."""
    first: int | None = None
    """These elements are rows of positions from this one on, …"""
    last: int | None = None
    """… to this one, as far as the tensor has rows of positions."""
    matched: int = 0
    """Ops that both sides ran."""
    only_a: int = 0
    only_b: int = 0
    hints_a: dict[str, str] = {}
    """What chooses kernels, where it differs between the sides; with equal hints: all of it."""
    hints_b: dict[str, str] = {}


class SideCheck(Record):
    """Whether a re-run repeated what the trace recorded."""

    state: Literal["repeated", "not repeated", "not recorded"]
    rows: int = 0
    """Row hashes compared."""
    where: str | None = None
    """The first row that was not repeated."""


class TransplantedSite(Record):
    """A site at which A's rows had to stand in for B's."""

    site: str
    """Its label; `logits`: what the head gave, for which A's logits stand in. Nothing follows from them, as
    tokens are forced."""
    positions: int
    """At how many positions."""
    first: int
    last: int


class Transplant(Record):
    """B's run with A's rows at the sites where B differs by itself."""

    state: Literal["proven", "not proven", "not run"]
    """`proven`: with A's rows at these sites, nothing of B differs from A at any compared position."""
    origins: list[TransplantedSite] = []
    """In execution order. Each had equal inputs: everything before it was equal, or A's."""
    first: int = 0
    """Positions compared: the first, …"""
    last: int = 0
    logits: int = 0
    """Logits compared."""
    logits_equal: int = 0
    """Those that are equal with A's rows, or A's logits, in their places."""
    why: str | None = None


class Zoom(Record):
    """The first difference of two runs, in a re-run of both, op by op, with its proof."""

    request_id: str
    sample: int
    position: int
    site: str
    """Label of the site; empty: the rows are equal and only logits differ."""
    a: SideCheck
    b: SideCheck
    seen_again: bool
    """The re-runs differ first at this position and site too."""
    finding: OpFinding | None = None
    transplant: Transplant = Transplant(state="not run")
    notes: list[str] = []


class ZoomPass(Record):
    """One recorded forward pass, as one of its sequences lies in it: see `OpTrace`."""

    ops: int
    """The column `pass` of its ops. Sequences that share a forward pass share them."""
    request_id: str
    sample: int
    position: int
    batch_size: int
    batch_row: int
    tokens: int
    total: int
    fed: list[int]
    seen: list[int]
    hints: dict[str, str]


class ZoomHeader(Document):
    """What the metadata of `NAME.zoom.parquet` says."""

    KIND: ClassVar[str] = "zoom"

    tool_version: str
    created: str
    engine: str
    model: str | None = None
    settings: dict[str, Any] = {}
    """What each setting of the lane was."""
    scope: str = ""
    """Pattern that paths of modules had to match; empty: all."""
    passes: list[ZoomPass]
    left_out_bytes: int = 0
    """Tensors that were not kept, because the bound on their sum was reached."""


def arrow_schema() -> pa.Schema:
    """The Arrow schema of `NAME.zoom.parquet`."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "list<int64>": pa.list_(pa.int64()),
        "binary[16]?": pa.binary(16),
        "binary?": pa.binary(),
    }
    tensor = pa.struct([pa.field(field.name, types[field.type]) for field in TENSOR_FIELDS])
    types["list<tensor>"] = pa.list_(tensor)
    return pa.schema([pa.field(column.name, types[column.type]) for column in COLUMNS])
