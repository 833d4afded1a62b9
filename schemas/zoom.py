"""Zoom: both sides of a comparison run again, and what their ops show of the first difference.

`Zoom` is the result, as verdicts hold it. `Rerun` and `SideRun` pass between a re-run and the comparison,
in memory only; the ops themselves are in recorded_ops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .base import Real, Record
from .findings.ops import NotProven, OpsShow, ZoomNote
from .findings.statement import Location
from .recorded_ops import OpTrace
from .trace import Site

SitePosition = tuple[int, int]
"""(position, index of a site in the side's own table)."""


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


class InputOf(Record):
    """An input of an op."""

    op: str
    module: str
    tensor: str


class OpFinding(Record):
    """The first difference in a module's ops."""

    kind: Literal["op", "block", "weight", "outside", "unknown", "none"]
    """`op`: one op has a different output for equal inputs. `block`: different ops run. `weight`: a
    parameter differs. `outside`: a tensor that was made before this pass, or outside the recorded modules,
    differs (a KV cache, positions). `unknown`: tensors could not be compared. `none`: nothing differs."""
    shows: OpsShow
    """The same as data, with its sentence."""
    through: InputOf | None = None
    """The input through which a difference came that a different module of the pass made."""
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
    where: Location | None = None
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
    why: NotProven | None = None


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
    notes: list[ZoomNote] = []


@dataclass(frozen=True)
class Rerun:
    """What a re-run of one side should do beside running.

    Attributes:
        position: Record the ops of the pass that computes it; None: record none.
        scope: Pattern (`re.search`) for the paths of modules whose ops are recorded.
        keep_from: Keep whole rows of every site from this position on; None: keep none.
        patch: Rows of the other side (activation patching): where a row of this run differs, the run goes on
            with the other side's.
    """

    position: int | None = None
    scope: str = ""
    keep_from: int | None = None
    patch: KeptRows | None = None


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
        ops: Where they were requested.
        kept: Likewise.
        patched: Where a row was replaced.
    """

    sites: tuple[Site, ...]
    row_hashes: tuple[tuple[bytes, ...], ...] = field(repr=False)
    logits_hashes: tuple[bytes | None, ...] = field(repr=False)
    tokens: tuple[int, ...] = ()
    ops: OpTrace | None = None
    kept: KeptRows | None = None
    patched: frozenset[SitePosition] = frozenset()


RunSide = Callable[[Rerun], SideRun]
"""Runs one side again, from its beginning, with A's tokens forced."""
