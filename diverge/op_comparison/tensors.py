"""Are two tensors of two op traces equal, as far as one sequence and its positions go?

A sequence may lie in another row of another batch on the other side, behind other padding, and in a longer
pass. Axes: B sequences in the batch, T columns of the pass, S columns that attention sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...schemas.recorded_ops import OpTensor, OpTrace

Equality = Literal["equal", "differs", "unknown"]
Bytes = np.ndarray[Any, Any]

_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
          "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """How far apart two tensors are, over the compared elements."""

    differing: int
    """Elements whose bits differ."""
    elements: int
    max_abs: float | None
    """None: other dtypes, or not finite."""
    positions: tuple[int, int] | None
    """First and last of those that the elements are rows of; None: no axis counts positions."""


@dataclass(frozen=True)
class _Cut:
    """The elements of two tensors that can be compared, as bytes [..., item size]."""

    a: Bytes
    b: Bytes
    positions: tuple[int, int] | None
    """First and last of those that they are rows of; None: no axis counts positions."""


def compare(a: OpTensor, b: OpTensor, in_a: OpTrace, in_b: OpTrace) -> Equality:
    """Whether a tensor of A equals its counterpart in B, for the compared sequence and positions.

    Args:
        a: The tensor in A.
        b: Its counterpart in B.
        in_a: The pass that `a` is from.
        in_b: The pass that `b` is from.
    """
    if not a.digest or not b.digest:
        return "unknown"
    if a.dtype != b.dtype:
        return "differs"
    if a.shape == b.shape and a.digest == b.digest:
        return "equal"
    if a.parameter or b.parameter:
        # Another part of a weight says nothing of the weight: a kernel may take it in pieces.
        return "differs" if a.shape == b.shape or not a.parameter or not b.parameter else "unknown"
    cut = _cut(a, b, in_a, in_b)
    if cut is None:
        return "unknown"
    return "equal" if np.array_equal(cut.a, cut.b) else "differs"


def gap(a: OpTensor, b: OpTensor, in_a: OpTrace, in_b: OpTrace) -> Gap | None:
    """How far apart two tensors are; None where that was not kept or is not known."""
    cut = _cut(a, b, in_a, in_b)
    if cut is None or a.dtype != b.dtype:
        return None
    differing = int((cut.a != cut.b).any(axis=-1).sum())
    values = _values(cut.a, a.dtype), _values(cut.b, b.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(values[0] - values[1])
    largest = float(distance.max()) if distance.size and np.isfinite(distance).all() else None
    return Gap(differing, cut.a[..., 0].size, largest, cut.positions)


def _cut(a: OpTensor, b: OpTensor, in_a: OpTrace, in_b: OpTrace) -> _Cut | None:
    """The elements of both that belong to the sequence and to positions that both passes know.

    None where that is not known.
    """
    left, right = _share(a, in_a), _share(b, in_b)
    if left is None or right is None:
        return None
    axes = max(left.ndim, right.ndim)
    left, right = (one.reshape((1,) * (axes - one.ndim) + one.shape) for one in (left, right))
    scores = _are_scores(left.shape[:-1], in_a) and _are_scores(right.shape[:-1], in_b)
    common = min(len(in_a.fed), len(in_b.fed))  # both end at the compared position
    positions: tuple[int, int] | None = None
    for axis in range(axes - 1):
        if axis == axes - 2 and axes > 2 and not scores:
            break  # the last axis counts channels
        kinds = _kinds(left.shape[axis], in_a) & _kinds(right.shape[axis], in_b)
        if not kinds:
            continue
        if "fed" in kinds and not (positions is not None and "seen" in kinds):
            columns = in_a.fed[-common:], in_b.fed[-common:]
            positions = in_a.position - common + 1, in_a.position
        elif "seen" in kinds:
            columns = in_a.seen, in_b.seen
            positions = positions if scores else (0, in_a.position)  # of scores the rows are the pass's own
        else:
            columns = _cached(in_a), _cached(in_b)
            positions = 0, len(columns[0]) - 1
        left, right = left.take(columns[0], axis=axis), right.take(columns[1], axis=axis)
    return _Cut(left, right, positions) if left.shape == right.shape else None


def _share(tensor: OpTensor, trace: OpTrace) -> Bytes | None:
    """The part of a tensor that belongs to the sequence."""
    size = _SIZES.get(tensor.dtype)
    if tensor.data is None or size is None:
        return None
    whole = np.frombuffer(tensor.data, np.uint8).reshape(*tensor.shape, size)
    if tensor.shape and trace.batch_size > 1 < tensor.shape[0] and tensor.shape[0] % trace.batch_size == 0:
        # [B, …], [B · T, …] and [B · heads, …] alike: a sequence's share of the first axis is contiguous.
        share = tensor.shape[0] // trace.batch_size
        whole = whole[trace.batch_row * share : (trace.batch_row + 1) * share]
    return whole


def _kinds(size: int, trace: OpTrace) -> set[str]:
    """What an axis of this size may count: columns of the pass, all that attention sees, cached ones."""
    counts = {"fed": trace.tokens, "seen": trace.total, "cached": trace.total - trace.tokens}
    return {kind for kind, columns in counts.items() if size == columns > 0}


def _cached(trace: OpTrace) -> tuple[int, ...]:
    """Columns of `total` with this sequence's positions from before the pass."""
    return tuple(column for column in trace.seen if column < trace.total - trace.tokens)


def _are_scores(shape: tuple[int, ...], trace: OpTrace) -> bool:
    """The last axis counts columns that attention sees, the one before it those of the pass."""
    return len(shape) > 2 and shape[-2:] == (trace.tokens, trace.total) and (len(shape) > 3 or shape[0] > 1)


def _values(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    raw = np.ascontiguousarray(raw)
    if dtype == "bfloat16":
        bits = raw.view(np.uint16)[..., 0].astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64)
    return raw.view(np.dtype(dtype))[..., 0].astype(np.float64)
