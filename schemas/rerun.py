"""A side of a comparison run again: what it is asked, and what it shows. It is never written.

Written are zoom.py's records and, of ops, `NAME.zoom.parquet`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .trace import Site

Place = tuple[int, int]
"""(position, index of a site in the side's own table)."""


@dataclass(frozen=True)
class OpTensor:
    """One tensor that an op took or gave.

    Attributes:
        name: The argument's name in the op's schema, with an index where it is a list (`tensors.0`); `out`,
            `out.1` for results.
        shape: Elements along each axis.
        stride: Elements between neighbours along each axis.
        dtype: torch name without the prefix.
        storage_offset: Elements before the first one.
        digest: BLAKE3 (128 bits) of the elements in logical order, so independent of strides; empty where
            the tensor has no defined content.
        parameter: The parameter or buffer whose memory it is in; empty for an activation.
        producer: Index of the op that wrote this memory last in the recorded pass; −1: none did.
        data: The elements in logical order, where they were kept.
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
    """One dispatched op.

    Attributes:
        index: Ordinal in the recorded pass, ops outside the scope included.
        module: Canonical path of the module that it ran in; empty: in none that is named.
        call: Which run of that module in the pass.
        name: Op and overload: `aten.mm.default`.
        occurrence: How many ops of that name ran before it in the same call of the module.
        arguments: Arguments that are no tensors, in words.
    """

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


@dataclass(frozen=True)
class Ask:
    """What a re-run of one side should do beside running.

    Attributes:
        position: Record the ops of the pass that computes it; None: record none.
        scope: Pattern (`re.search`) for the paths of modules whose ops are recorded.
        keep_from: Keep whole rows of every site from this position on; None: keep none.
        heal: Rows of the other side: where a row of this run differs, the other one takes its place and
            the run goes on with it.
    """

    position: int | None = None
    scope: str = ""
    keep_from: int | None = None
    heal: KeptRows | None = None


@dataclass(frozen=True)
class KeptRows:
    """Whole rows of one sequence.

    Attributes:
        rows: (site name, occurrence, part) → position → raw bits.
        dtypes: (site name, occurrence, part) → dtype.
        first: The first position that was kept.
        stop: Rows at this position and later ones were not kept.
    """

    rows: Mapping[tuple[str, int, str], Mapping[int, bytes]] = field(repr=False)
    dtypes: Mapping[tuple[str, int, str], str] = field(repr=False)
    first: int
    stop: int


@dataclass(frozen=True)
class SideRun:
    """What one re-run of one sequence showed.

    Attributes:
        sites: In execution order.
        row_hashes: Per position the row hash of each site; empty bytes: not computed here.
        logits_hashes: Per position; None where no logits were computed.
        ops: Where they were asked for.
        kept: Likewise.
        healed: Places whose row was replaced.
    """

    sites: tuple[Site, ...]
    row_hashes: tuple[tuple[bytes, ...], ...] = field(repr=False)
    logits_hashes: tuple[bytes | None, ...] = field(repr=False)
    tokens: tuple[int, ...] = ()
    ops: OpTrace | None = None
    kept: KeptRows | None = None
    healed: frozenset[Place] = frozenset()


RunSide = Callable[[Ask], SideRun]
"""Runs one side again, from its beginning, with A's tokens forced."""
