"""Rows of a trace: tokens, distributions, sampler, execution shapes, and the summaries of their sites.

The summaries are defined in `row_hash_and_sketch.py`; every kernel gives what `summarise_by_reference` gives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ...schemas.trace import SKETCH_SIZE
from .row_hash_and_sketch import (
    F32,
    U64,
    absmax_rows_reference,
    digests,
    hash_rows_reference,
    l2_rows_reference,
    sketch_rows_reference,
)

if TYPE_CHECKING:
    import torch

CACHE_LINE = 64
"""Bytes."""

SLOT_BYTES, SLOT_WORDS, SLOT_HALVES = 88, 11, 22
"""On a GPU one row's summaries lie together in a slot: int64[11], or 32-bit halves of them."""
L2_HALF, ABSMAX_HALF, SKETCH_HALF = 4, 5, 6
"""Which 32-bit half of a slot begins what; the row hash comes first."""


@dataclass(frozen=True, eq=False)
class RowSummaries:
    """Results for `positions × sites` rows. Entries that nothing was written to are 0."""

    row_hash: U64
    """uint64[positions, sites, 2]."""
    l2: F32
    """float32[positions, sites]."""
    absmax: F32
    """float32[positions, sites]."""
    sketch: F32
    """float32[positions, sites, 16]."""

    @functools.cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where the four arrays start in memory.

        Raises:
            ValueError: They are views with gaps, which can be read but not written to by the kernel.
        """
        if not all(array.flags.c_contiguous for array in self.arrays()):
            raise ValueError("summaries can only be written into contiguous arrays")
        return tuple(array.ctypes.data for array in self.arrays())

    @classmethod
    def empty(cls, positions: int, sites: int) -> RowSummaries:
        """Room for `positions × sites` rows (SLOT_BYTES each), all 0."""
        shape = (positions, sites)
        return cls(
            np.zeros((*shape, 2), np.uint64),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
            _aligned_zeros((*shape, SKETCH_SIZE)),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[RowSummaries], axis: Literal[0, 1] = 0) -> RowSummaries:
        """Some summaries one after the other, copied.

        Args:
            parts: At least one.
            axis: 0 joins positions, 1 joins sites.
        """
        return cls(*(np.concatenate(arrays, axis) for arrays in zip(*map(cls.arrays, parts), strict=True)))

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """`row_hash`, `l2`, `absmax` and `sketch`."""
        return self.row_hash, self.l2, self.absmax, self.sketch

    def at(self, positions: slice | npt.NDArray[Any]) -> RowSummaries:
        """The rows at some positions: views for a slice, copies for indices and masks."""
        return RowSummaries(*(array[positions] for array in self.arrays()))

    def is_computed(self) -> npt.NDArray[np.bool_]:
        """Which rows were written: bool[positions, sites]. No row that was has 16 zero bytes as its hash."""
        return np.asarray(self.row_hash.any(axis=-1))

    def digests(self) -> npt.NDArray[np.void]:
        """The row hashes as 16-byte strings: void16[positions, sites], a view."""
        return digests(self.row_hash)

    def same_bits(self, other: RowSummaries) -> bool:
        """Whether everything is equal to the bit: a NaN equals itself, and −0 is not 0."""
        pairs = zip(self.arrays(), other.arrays(), strict=True)
        return all(mine.tobytes() == theirs.tobytes() for mine, theirs in pairs)


def _aligned_zeros(shape: tuple[int, ...]) -> F32:
    """Float32 zeros from the start of a cache line on: then a sketch is one line, not parts of two."""
    count = math.prod(shape)
    room = np.zeros(4 * count + CACHE_LINE, np.uint8)
    first = -room.ctypes.data % CACHE_LINE
    return room[first : first + 4 * count].view(np.float32).reshape(shape)


def rows_do_not_fit_error(out: RowSummaries, rows: int, first_position: int, site: int) -> IndexError:
    """The error of rows that do not fit into an output."""
    return IndexError(f"{rows} rows at ({first_position}, {site}) do not fit into {out.l2.shape}")


def as_rows(tensor: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """The tensor (or a copy that can be addressed), its number of rows, and their stride in elements."""
    shape, stride = tensor.shape, tensor.stride()
    if stride[-1] != 1 and shape[-1] > 1:
        tensor = tensor.contiguous()
        stride = tensor.stride()
    if len(shape) == 3:
        if shape[0] == 1:
            return tensor, shape[1], stride[1]
        if shape[1] == 1:
            return tensor, shape[0], stride[0]
    elif len(shape) == 2:
        return tensor, shape[0], stride[0]
    flat = tensor.reshape(-1, shape[-1]) if shape.numel() else tensor.new_empty(shape[:-1].numel(), shape[-1])
    return flat, flat.shape[0], flat.stride(0)


def summarise_by_reference(tensor: torch.Tensor, out: RowSummaries, first_position: int, site: int) -> None:
    """What `summarise_tensor` does with a tensor on the CPU, by the definitions: slow, and never wrong."""
    import torch

    rows = tensor.detach().reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).contiguous()
    narrow = rows.dtype in (torch.bfloat16, torch.float16)
    values = rows.to(torch.float32 if narrow else torch.float64).numpy()
    here = slice(first_position, first_position + len(values))
    out.row_hash[here, site] = hash_rows_reference(rows.view(torch.uint8).numpy())
    out.l2[here, site] = l2_rows_reference(values)
    out.absmax[here, site] = absmax_rows_reference(values)
    out.sketch[here, site] = sketch_rows_reference(values)


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of one sequence, as an engine hands them over.

    Arrays share the first dimension: R rows, at positions `first_position … first_position + R − 1`.

    Attributes:
        token_ids: int32[R].
        forced: Whether the generated tokens among them were forced.
        topk: The next-token distribution of each row, None where it was not computed.
        samplers: What chose the NEXT token of each row, or None.
        shapes: The forward pass that computed each row; None where it is not known, and for a last token,
            which is never fed to the model.
        summaries: Site summaries of the R rows, or None where none were captured.
        tensors: Per row, kept rows as (site, raw bytes).
        elapsed_s: Seconds from sending the request to receiving each token; None where it was not measured.
    """

    sequence: int
    first_position: int
    token_ids: np.ndarray[Any, Any]
    forced: bool
    topk: list[TopK | None]
    samplers: list[SamplerRecord | None]
    shapes: list[ExecutionShape | None]
    summaries: RowSummaries | None = None
    tensors: list[list[tuple[int, bytes]]] = field(default_factory=list)
    elapsed_s: list[float | None] | None = None


@dataclass(frozen=True)
class TopK:
    """The raw next-token distribution at one position, cut to its K most likely ids.

    Ordered by logit, descending; equal logits by ascending id.
    """

    ids: np.ndarray[Any, Any]
    """int32[K]"""
    logits: np.ndarray[Any, Any] | None
    """float32[K]"""
    logprobs: np.ndarray[Any, Any]
    """float32[K], nats"""
    logsumexp: float | None
    """nats, over the whole vocabulary"""
    logits_hash: bytes | None
    next_logprob: float | None = None
    """Of the token that followed, chosen or forced, whether it is among the K or not; nats."""


@dataclass(frozen=True)
class SamplerRecord:
    """What the sampler used to choose one token."""

    top1_id: int
    """Most likely id after all processors."""
    top1_logit: float
    draw: float | None
    """The uniform number in [0, 1); None for greedy."""
    rng_offset: int | None
    """Draws taken from this generator before."""


@dataclass(frozen=True)
class ExecutionShape:
    """The shape of the forward pass that computed a row (see schemas/trace.py for the meanings)."""

    batch_size: int
    batch_row: int
    num_tokens: int
    padded_tokens: int
    cached_tokens: int
