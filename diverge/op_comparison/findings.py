"""What is found where two sequences of ops part, as an `OpFinding` tells it.

Where they part is ops.py's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.rerun import Op, OpTensor, OpTrace
from ...schemas.zoom import OpFinding
from .align_ops import Step, is_view, told
from .tensors import Equality, Gap, compare, gap

_TOLD_OPS = 24
"""Ops of a block that a finding lists on each side."""

Pair = tuple[OpTensor, OpTensor, Equality]
"""An input in A, its counterpart in B, compared."""


@dataclass(frozen=True)
class Seen:
    """A pair of matched ops, compared."""

    a: Op
    b: Op
    inputs: tuple[Pair, ...]
    output: Equality

    @property
    def uncomparable(self) -> bool:
        """Its output has content, but could not be compared."""
        return self.output == "unknown" and bool(self.a.outputs) and bool(self.a.outputs[0].digest)


def from_outside(seen: Seen, left: OpTensor, right: OpTensor, a: OpTrace, b: OpTrace) -> OpFinding:
    """An input differs that no recorded op made.

    Args:
        seen: The op that takes it.
        left: The input in A.
        right: The input in B.
        a: The pass in A.
        b: The pass in B.
    """
    makers = [
        tensor.producer
        if all(op.index != tensor.producer for op in trace.ops) and tensor.producer >= 0
        else None
        for tensor, trace in ((left, a), (right, b))
    ]
    where = "another module of this pass made it"
    if makers == [None, None]:
        where = "no op of this pass made it: it came in from outside (a KV cache, positions, a mask)"
    return OpFinding(
        kind="outside",
        sentence=f"the input {left.name!r} of {seen.a.name} in {_in(seen.a)} differs already, and {where}",
        a=[told(seen.a)],
        b=[told(seen.b)],
        tensor=left.name,
        maker_a=makers[0],
        maker_b=makers[1],
        **_distance(gap(left, right, a, b)),
    )


def _distance(found: Gap | None) -> dict[str, Any]:
    """A gap as fields of a finding."""
    if found is None:
        return {}
    return {
        "max_abs_diff": found.max_abs,
        "differing": found.differing,
        "elements": found.elements,
        "first": found.positions[0] if found.positions else None,
        "last": found.positions[1] if found.positions else None,
    }


def weight(rest: Sequence[Seen | Step], left: OpTensor, right: OpTensor) -> OpFinding:
    how = "holds other values in B"
    if left.dtype != right.dtype:
        how = f"is {left.dtype} in A and {right.dtype} in B"
    users = [item for item in rest if isinstance(item, Seen) and left.parameter in _parameters(item.a)]
    user = next((item for item in users if not is_view(item.a.name)), users[0])
    return OpFinding(
        kind="weight",
        sentence=f"the weight {left.parameter} {how}; {user.a.name} in {_in(user.a)} takes it, and is not at "
        "fault",
        a=[told(user.a)],
        b=[told(user.b)],
        tensor=left.parameter,
    )


def _parameters(op: Op) -> list[str]:
    return [tensor.parameter for tensor in op.inputs]


def one_op(seen: Seen, a: OpTrace, b: OpTrace) -> OpFinding:
    pair = next(
        (one, other)
        for one, other in zip(seen.a.outputs, seen.b.outputs, strict=False)
        if compare(one, other, a, b) == "differs"
    )
    unknown = [left.name for left, _, state in seen.inputs if state == "unknown"]
    sentence = f"{seen.a.name} in {_in(seen.a)}: equal inputs, another output"
    if seen.a.arguments != seen.b.arguments:
        sentence += (
            f"; its arguments differ: {seen.a.arguments or 'none'} in A, {seen.b.arguments or 'none'} in B"
        )
    if unknown:
        sentence += f" (not compared: {', '.join(unknown)})"
    return OpFinding(
        kind="unknown" if unknown and len(unknown) == len(seen.inputs) else "op",
        sentence=sentence,
        a=[told(seen.a)],
        b=[told(seen.b)],
        **_distance(gap(*pair, a, b)),
    )


def block(first: int, place: int, compared: Sequence[Seen | Step], a: OpTrace, b: OpTrace) -> OpFinding:
    """Other ops stand on one side than on the other.

    Args:
        first: A step of the block, an op without counterpart. The block begins with the first of those that
            stand together with it, and goes on to the last such op of the same call of the module, and to the
            step that shows the difference.
        place: The step that shows it.
        compared: All steps.
        a: The pass in A.
        b: The pass in B.
    """
    home = _call_of(compared[first], a, b)
    while first and not isinstance(compared[first - 1], Seen) and _call_of(compared[first - 1], a, b) == home:
        first -= 1
    lone = [
        index
        for index, item in enumerate(compared)
        if index >= first and not isinstance(item, Seen) and _call_of(item, a, b) == home
    ]
    shows = compared[place]
    taker = None
    if (
        isinstance(shows, Seen)
        and place > lone[-1]
        and _call_of(shows, a, b) == home
        and not is_view(shows.a.name)
    ):
        taker = shows
    ops_a: list[Op] = []
    ops_b: list[Op] = []
    for item in compared[first : (place if taker else lone[-1]) + 1]:
        one, other = (item.a, item.b) if isinstance(item, Seen) else ops_of(item, a, b)
        ops_a += [] if one is None else [one]
        ops_b += [] if other is None else [other]
    distance = next(
        (
            gap(item.a.outputs[0], item.b.outputs[0], a, b)
            for item in compared[lone[-1] :]
            if isinstance(item, Seen) and item.output == "differs"
        ),
        None,
    )
    if distance is None:  # no op that both run comes behind: what the module's call gave at last
        ends = [
            [op for op in trace.ops if (op.module, op.call) == home and op.outputs][-1:] for trace in (a, b)
        ]
        if all(ends):
            distance = gap(ends[0][0].outputs[0], ends[1][0].outputs[0], a, b)
    where = home[0] or "the model itself"
    return OpFinding(
        kind="block",
        sentence=f"other ops in {where}, with equal inputs and another output: "
        + _replaced(ops_a, ops_b, taker, [ops_of(compared[index], a, b) for index in lone]),  # type: ignore[arg-type]
        a=[told(op) for op in ops_a[:_TOLD_OPS]],
        b=[told(op) for op in ops_b[:_TOLD_OPS]],
        left_out_a=sum(not is_view(op.name) for op in ops_a[_TOLD_OPS:]),
        left_out_b=sum(not is_view(op.name) for op in ops_b[_TOLD_OPS:]),
        **_distance(distance),
    )


def _replaced(
    ops_a: Sequence[Op], ops_b: Sequence[Op], taker: Seen | None, lone: Sequence[tuple[Op | None, Op | None]]
) -> str:
    """Which ops stand in the place of which, in words."""
    only_a = [one for one, _ in lone if one is not None]
    only_b = [other for _, other in lone if other is not None]
    if (only_a and only_b) or (taker is None and ops_a and ops_b):
        # Also where an op has a counterpart, which then takes or gives something else.
        return f"{_names(ops_a)} in A, {_names(ops_b)} in B"
    side, only = ("A", only_a) if only_a else ("B", only_b)
    return f"only {side} runs {_names(only)}" + (f" before {taker.a.name}" if taker else "")


def ops_of(step: Step, a: OpTrace, b: OpTrace) -> tuple[Op | None, Op | None]:
    i, j = step
    return None if i is None else a.ops[i], None if j is None else b.ops[j]


def _call_of(item: Seen | Step, a: OpTrace, b: OpTrace) -> tuple[str, int]:
    one, other = (item.a, item.b) if isinstance(item, Seen) else ops_of(item, a, b)
    op = one or other
    assert op is not None
    return op.module, op.call


def _names(ops: Sequence[Op]) -> str:
    """The names of a few ops that compute; views only where there is nothing else."""
    computing = [op.name for op in ops if not is_view(op.name)] or [op.name for op in ops]
    names = list(dict.fromkeys(computing))
    return " → ".join(names[:6]) + (f" … ({len(names) - 6} more)" if len(names) > 6 else "")


def _in(op: Op) -> str:
    return op.module or "the model itself"
