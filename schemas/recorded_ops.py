"""Recorded ops: the ops of one forward pass in memory, and the file `NAME.zoom.parquet` that keeps them.

pyarrow is imported only by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from . import column_types
from .base import Document, Record
from .column_types import Column

if TYPE_CHECKING:
    import pyarrow as pa

ZOOM_KEY = b"rip.zoom"
"""Parquet key-value metadata key of a zoom file's header."""
ZOOM_SUFFIX = ".zoom.parquet"

COLUMNS: tuple[Column, ...] = (
    Column("pass", "int32", "index", "which recorded forward pass; the header's `passes` say whose"),
    Column("index", "int32", "index", "ordinal of the op in the pass, ops out of scope included"),
    Column("module", "string", "", "canonical path of the module that it ran in; empty: the model itself"),
    Column("call", "int32", "index", "which run of that module in the pass"),
    Column("op", "string", "", "op and overload: `aten.mm.default`"),
    Column("occurrence", "int32", "index", "ops of that name before it in the same call of the module"),
    Column("arguments", "string", "", "arguments that are no tensors"),
    Column("inputs", "list<tensor>", "", "its input tensors, as they were before it ran"),
    Column("outputs", "list<tensor>", "", "its output tensors"),
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


@dataclass(frozen=True)
class OpTensor:
    """One input or output tensor of an op: what `TENSOR_FIELDS` says.

    The digest is empty where the content is undefined; being of logical order, it does not depend on strides.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    storage_offset: int
    digest: bytes
    parameter: str = ""
    producer: int = -1
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Op:
    """One dispatched op: what `COLUMNS` says; `name` is its column `op`."""

    index: int
    module: str
    call: int
    name: str
    occurrence: int
    arguments: str
    inputs: tuple[OpTensor, ...]
    outputs: tuple[OpTensor, ...]


@dataclass(frozen=True)
class OpTrace:
    """The ops of the forward pass that computed one position of one sequence.

    Attributes:
        position: The position.
        batch_size: B of the pass.
        batch_row: The sequence's row in it.
        tokens: T, columns that the pass fed.
        total: Columns that attention sees: cached ones and T.
        fed: Columns of T that hold this sequence's positions up to `position`.
        seen: Columns of `total` that do.
        hints: What chooses kernels: threads, CPU capability, backends switched on.
        ops: Those in scope, in order.
    """

    position: int
    batch_size: int
    batch_row: int
    tokens: int
    total: int
    fed: tuple[int, ...]
    seen: tuple[int, ...]
    hints: Mapping[str, str]
    ops: tuple[Op, ...]


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

    @classmethod
    def of(cls, trace: OpTrace, ops: int, request_id: str, sample: int) -> ZoomPass:
        """The record of a pass, its ops aside."""
        known = {**vars(trace), "ops": ops, "fed": list(trace.fed), "seen": list(trace.seen)}
        return cls(request_id=request_id, sample=sample, **known)

    def with_ops(self, ops: tuple[Op, ...]) -> OpTrace:
        """The pass with its ops."""
        known = self.model_dump(exclude={"request_id", "sample"})
        return OpTrace(**{**known, "ops": ops, "fed": tuple(self.fed), "seen": tuple(self.seen)})


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

    tensor = pa.struct(column_types.arrow_schema(TENSOR_FIELDS))
    return column_types.arrow_schema(COLUMNS, {"tensor": tensor})
