"""The `OpFinding` of each kind of difference between two sequences of ops. It does not search for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.findings.ops import InputDiffers, OpDiffers, OpsDiffer, WeightDiffers
from ...schemas.recorded_ops import Op, OpTensor, OpTrace
from ...schemas.zoom import InputOf, OpFinding
from .align_ops import Step, is_view, zoom_op
from .tensors import Equality, Gap, compare, gap

_LISTED_OPS = 24
"""Ops of a block that a finding lists on each side."""

Pair = tuple[OpTensor, OpTensor, Equality]
"""An input in A, its counterpart in B, compared."""


@dataclass(frozen=True)
class ComparedOps:
    """A pair of matched ops, compared."""

    a: Op
    b: Op
    inputs: tuple[Pair, ...]
    output: Equality

    @property
    def uncomparable(self) -> bool:
        """Its output has content, but could not be compared."""
        return self.output == "unknown" and bool(self.a.outputs) and bool(self.a.outputs[0].digest)


def outside_finding(ops: ComparedOps, left: OpTensor, right: OpTensor, a: OpTrace, b: OpTrace) -> OpFinding:
    """An input differs that no recorded op made.

    Args:
        ops: The op that takes it.
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
    return OpFinding(
        kind="outside",
        shows=InputDiffers(
            tensor=left.name,
            op=ops.a.name,
            module=ops.a.module,
            made_by="before this pass" if makers == [None, None] else "different module",
        ),
        a=[zoom_op(ops.a)],
        b=[zoom_op(ops.b)],
        tensor=left.name,
        maker_a=makers[0],
        maker_b=makers[1],
        **_distance(gap(left, right, a, b)),
    )


def with_producing_op(taker: OpFinding, maker: OpFinding) -> OpFinding:
    """What was found of the op that made a differing input, with the op that takes it.

    Args:
        taker: The finding `outside` about the op that takes the input.
        maker: The finding among the ops that made it.
    """
    op = taker.a[0]
    return maker.model_copy(
        update={
            "through": InputOf(op=op.op, module=op.module, tensor=taker.tensor or ""),
            "tensor": maker.tensor or taker.tensor,
            "matched": taker.matched,
            "only_a": taker.only_a,
            "only_b": taker.only_b,
        }
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


def weight_finding(rest: Sequence[ComparedOps | Step], left: OpTensor, right: OpTensor) -> OpFinding:
    users = [item for item in rest if isinstance(item, ComparedOps) and left.parameter in _parameters(item.a)]
    user = next((item for item in users if not is_view(item.a.name)), users[0])
    return OpFinding(
        kind="weight",
        shows=WeightDiffers(
            tensor=left.parameter,
            dtype_a=left.dtype,
            dtype_b=right.dtype,
            op=user.a.name,
            module=user.a.module,
        ),
        a=[zoom_op(user.a)],
        b=[zoom_op(user.b)],
        tensor=left.parameter,
    )


def _parameters(op: Op) -> list[str]:
    return [tensor.parameter for tensor in op.inputs]


def op_finding(ops: ComparedOps, a: OpTrace, b: OpTrace) -> OpFinding:
    pair = next(
        (one, other)
        for one, other in zip(ops.a.outputs, ops.b.outputs, strict=False)
        if compare(one, other, a, b) == "differs"
    )
    unknown = [left.name for left, _, state in ops.inputs if state == "unknown"]
    return OpFinding(
        kind="unknown" if unknown and len(unknown) == len(ops.inputs) else "op",
        shows=OpDiffers(
            op=ops.a.name,
            module=ops.a.module,
            arguments_a=ops.a.arguments,
            arguments_b=ops.b.arguments,
            not_compared=unknown,
        ),
        a=[zoom_op(ops.a)],
        b=[zoom_op(ops.b)],
        **_distance(gap(*pair, a, b)),
    )


def block_finding(
    first: int, shows: int, compared: Sequence[ComparedOps | Step], a: OpTrace, b: OpTrace
) -> OpFinding:
    """Different ops run on the two sides.

    Args:
        first: A step of the block, an op without counterpart. The block begins with the first of those that
            are next to it, and goes on to the last such op of the same call of the module, and to the
            step that shows the difference.
        shows: The step that shows it.
        compared: All steps.
        a: The pass in A.
        b: The pass in B.
    """
    call = _call_of(compared[first], a, b)

    def unmatched(item: ComparedOps | Step) -> bool:
        return not isinstance(item, ComparedOps) and _call_of(item, a, b) == call

    while first and unmatched(compared[first - 1]):
        first -= 1
    steps = [index for index, item in enumerate(compared) if index >= first and unmatched(item)]
    taker = compared[shows] if shows > steps[-1] and _call_of(compared[shows], a, b) == call else None
    if not isinstance(taker, ComparedOps) or is_view(taker.a.name):
        taker = None
    inside = [
        (item.a, item.b) if isinstance(item, ComparedOps) else ops_of(item, a, b)
        for item in compared[first : (shows if taker else steps[-1]) + 1]
    ]
    ops_a, ops_b = [one for one, _ in inside if one], [other for _, other in inside if other]
    only = [ops_of(compared[index], a, b) for index in steps]  # type: ignore[arg-type]
    return OpFinding(
        kind="block",
        shows=_replaced(call[0], ops_a, ops_b, taker, only),
        a=[zoom_op(op) for op in ops_a[:_LISTED_OPS]],
        b=[zoom_op(op) for op in ops_b[:_LISTED_OPS]],
        left_out_a=sum(not is_view(op.name) for op in ops_a[_LISTED_OPS:]),
        left_out_b=sum(not is_view(op.name) for op in ops_b[_LISTED_OPS:]),
        **_distance(_gap_after(compared[steps[-1] :], call, a, b)),
    )


def _gap_after(
    rest: Sequence[ComparedOps | Step], call: tuple[str, int], a: OpTrace, b: OpTrace
) -> Gap | None:
    """The gap of the first differing output behind a block; else of the last output of the module's call."""
    for item in rest:
        if isinstance(item, ComparedOps) and item.output == "differs":
            found = gap(item.a.outputs[0], item.b.outputs[0], a, b)
            if found is not None:
                return found
            break
    last = [[op for op in trace.ops if (op.module, op.call) == call and op.outputs][-1:] for trace in (a, b)]
    return gap(last[0][0].outputs[0], last[1][0].outputs[0], a, b) if all(last) else None


def _replaced(
    module: str,
    ops_a: Sequence[Op],
    ops_b: Sequence[Op],
    taker: ComparedOps | None,
    only: Sequence[tuple[Op | None, Op | None]],
) -> OpsDiffer:
    """Which ops replace which."""
    only_a = [one for one, _ in only if one is not None]
    only_b = [other for _, other in only if other is not None]
    if (only_a and only_b) or (taker is None and ops_a and ops_b):
        # Also where an op has a counterpart, which then takes or gives something else.
        return OpsDiffer(module=module, a=_names(ops_a), b=_names(ops_b))
    before = taker.a.name if taker else None
    return OpsDiffer(module=module, a=_names(only_a), b=[] if only_a else _names(only_b), before=before)


def ops_of(step: Step, a: OpTrace, b: OpTrace) -> tuple[Op | None, Op | None]:
    i, j = step
    return None if i is None else a.ops[i], None if j is None else b.ops[j]


def _call_of(item: ComparedOps | Step, a: OpTrace, b: OpTrace) -> tuple[str, int]:
    one, other = (item.a, item.b) if isinstance(item, ComparedOps) else ops_of(item, a, b)
    op = one or other
    assert op is not None
    return op.module, op.call


def _names(ops: Sequence[Op]) -> list[str]:
    """The names of the ops that compute; views only where there is nothing else."""
    computing = [op.name for op in ops if not is_view(op.name)] or [op.name for op in ops]
    return list(dict.fromkeys(computing))
