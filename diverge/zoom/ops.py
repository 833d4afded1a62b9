"""From the ops of two passes to the first op that gives another output for equal inputs.

Ops are aligned by what they are and where they ran, never by their number: two kernels have other sequences
of ops. It knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...schemas.rerun import Op, OpTensor, OpTrace
from ...schemas.zoom import OpFinding
from .align import Step, align, told
from .tensors import Equality, compare, gap

_VIEWS = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "transpose",
        "t",
        "permute",
        "unsqueeze",
        "squeeze",
        "expand",
        "slice",
        "select",
        "alias",
        "detach",
        "as_strided",
        "split",
        "chunk",
        "unbind",
    ]
)
_TOLD_OPS = 24
"""Ops of a block that a finding lists on each side."""


@dataclass(frozen=True)
class _Seen:
    """A pair of matched ops, compared."""

    a: Op
    b: Op
    inputs: tuple[tuple[OpTensor, OpTensor, Equality], ...]
    output: Equality

    @property
    def uncomparable(self) -> bool:
        return self.output == "unknown" and bool(self.a.outputs) and bool(self.a.outputs[0].digest)


def first_differing_op(a: OpTrace, b: OpTrace) -> OpFinding:
    """The first op whose inputs are equal and whose output is not, or what stands in its place.

    Args:
        a: The pass that computed the position, in A.
        b: The same in B.
    """
    steps = align(a.ops, b.ops)
    matched = sum(i is not None and j is not None for i, j in steps)
    counts = {"matched": matched, "only_a": len(a.ops) - matched, "only_b": len(b.ops) - matched}
    finding = _find(a, b, steps)
    if finding.kind in ("none", "unknown") and _lie_alike(a, b):
        # An axis that only happens to be as long as the pass may have been cut short: once more, uncut.
        finding = min(
            finding, _find(_uncut(a), _uncut(b), steps), key=lambda one: one.kind in ("none", "unknown")
        )
    hints_a, hints_b = dict(a.hints), dict(b.hints)
    if hints_a != hints_b:
        keys = [key for key in {**hints_a, **hints_b} if hints_a.get(key) != hints_b.get(key)]
        hints_a, hints_b = ({key: side[key] for key in keys if key in side} for side in (hints_a, hints_b))
    return finding.model_copy(update={**counts, "hints_a": hints_a, "hints_b": hints_b})


def _lie_alike(a: OpTrace, b: OpTrace) -> bool:
    """The sequence lies in both passes in the same place, so that whole tensors can be compared."""
    places = [(one.batch_size, one.tokens, one.total, one.fed, one.seen) for one in (a, b)]
    return places[0] == places[1] and a.batch_size == 1


def _uncut(trace: OpTrace) -> OpTrace:
    return replace(trace, tokens=-1, total=-1)


def _find(a: OpTrace, b: OpTrace, steps: Sequence[Step]) -> OpFinding:
    """Walk along the aligned ops to the first difference."""
    compared: list[_Seen | Step] = [
        (i, j) if i is None or j is None else _compared(a.ops[i], b.ops[j], a, b) for i, j in steps
    ]
    for place, item in enumerate(compared):
        if not isinstance(item, _Seen):
            continue
        moved = [pair for pair in item.inputs if pair[2] == "differs"]
        if moved:
            return _moved_input(place, moved[0], compared, a, b)
        if item.output == "differs":
            before = _lone_before(compared, place)
            if before is not None and any(pair[2] == "unknown" for pair in item.inputs):
                return _block(before, place, compared, a, b)
            return _one_op(item, a, b)
    lone = [place for place, item in enumerate(compared) if not isinstance(item, _Seen)]
    last = _lone_before(compared, len(compared))
    if last is not None and not _ends_equal(a, b):
        return _block(last, len(compared) - 1, compared, a, b)
    dark = sum(isinstance(item, _Seen) and item.uncomparable for item in compared)
    sentence = f"no op of the {len(compared) - len(lone)} that both sides run is known to differ"
    sentence += f"; {len(lone)} have no counterpart" if lone else ""
    sentence += f"; {dark} could not be compared" if dark else ""
    return OpFinding(kind="unknown" if dark else "none", sentence=sentence)


def _ends_equal(a: OpTrace, b: OpTrace) -> bool:
    """Whether what the last ops gave is equal, whatever they were."""
    ends = a.ops[-1:], b.ops[-1:]
    if not all(ends) or not all(op.outputs for (op,) in ends):
        return False
    return compare(ends[0][0].outputs[0], ends[1][0].outputs[0], a, b) == "equal"


def _compared(one: Op, other: Op, a: OpTrace, b: OpTrace) -> _Seen:
    pairs = zip(one.inputs, other.inputs, strict=False)
    inputs = tuple((left, right, compare(left, right, a, b)) for left, right in pairs)
    outputs = list(zip(one.outputs, other.outputs, strict=False))
    if "attention" in one.name:
        outputs = outputs[:1]  # the others are for training, and padding leaves what it likes in them
    states = {compare(left, right, a, b) for left, right in outputs}
    output: Equality = "differs" if "differs" in states else "unknown" if "unknown" in states else "equal"
    return _Seen(one, other, inputs, output)


def _lone_before(compared: Sequence[_Seen | Step], place: int) -> int | None:
    """The first op without counterpart after the last pair that is known to agree; None: there is none."""
    found = None
    for index in reversed(range(place)):
        item = compared[index]
        if isinstance(item, _Seen) and not item.uncomparable:
            break
        found = found if isinstance(item, _Seen) else index
    return found


def _moved_input(
    place: int,
    moved: tuple[OpTensor, OpTensor, Equality],
    compared: Sequence[_Seen | Step],
    a: OpTrace,
    b: OpTrace,
) -> OpFinding:
    """An input differs that no matched op made: a weight, another block of ops, or something from outside."""
    seen, (left, right, _) = compared[place], moved
    assert isinstance(seen, _Seen)
    if left.parameter and right.parameter:
        return _weight(compared[place:], left, right)
    makers = left.producer, right.producer
    for index, item in enumerate(compared[:place]):
        if not isinstance(item, _Seen) and _made(item, makers, a, b):
            return _block(index, place, compared, a, b)
    before = _lone_before(compared, place)
    if before is not None:
        return _block(before, place, compared, a, b)
    distance = gap(left, right, a, b)
    return OpFinding(
        kind="outside",
        sentence=f"the input {left.name!r} of {seen.a.name} in {_in(seen.a)} differs already, and no "
        "recorded op of this pass made it: it came in from outside (a KV cache, positions, a mask, or a "
        "module that was not recorded)",
        a=[told(seen.a)],
        b=[told(seen.b)],
        tensor=left.name,
        max_abs_diff=distance.max_abs if distance else None,
        differing=distance.differing if distance else None,
        elements=distance.elements if distance else None,
    )


def _made(step: Step, makers: tuple[int, int], a: OpTrace, b: OpTrace) -> bool:
    """Whether an op without counterpart made one of two tensors."""
    i, j = step
    return (i is not None and a.ops[i].index == makers[0]) or (j is not None and b.ops[j].index == makers[1])


def _weight(rest: Sequence[_Seen | Step], left: OpTensor, right: OpTensor) -> OpFinding:
    how = "holds other values in B"
    if left.dtype != right.dtype:
        how = f"is {left.dtype} in A and {right.dtype} in B"
    users = [item for item in rest if isinstance(item, _Seen) and left.parameter in _parameters(item.a)]
    user = next((item for item in users if not _is_view(item.a)), users[0])
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


def _one_op(seen: _Seen, a: OpTrace, b: OpTrace) -> OpFinding:
    pair = next(
        (one, other)
        for one, other in zip(seen.a.outputs, seen.b.outputs, strict=False)
        if compare(one, other, a, b) == "differs"
    )
    distance = gap(*pair, a, b)
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
        max_abs_diff=distance.max_abs if distance else None,
        differing=distance.differing if distance else None,
        elements=distance.elements if distance else None,
    )


def _block(first: int, place: int, compared: Sequence[_Seen | Step], a: OpTrace, b: OpTrace) -> OpFinding:
    """Other ops stand on one side than on the other.

    Args:
        first: The step that the block begins with, an op without counterpart. It goes on to the last such op
            of the same call of the module, and to the step that shows the difference.
        place: The step that shows it.
        compared: All steps.
        a: The pass in A.
        b: The pass in B.
    """
    home = _call_of(compared[first], a, b)
    lone = [
        index
        for index, item in enumerate(compared)
        if index >= first and not isinstance(item, _Seen) and _call_of(item, a, b) == home
    ]
    shows = compared[place]
    taker = None
    if (
        isinstance(shows, _Seen)
        and place > lone[-1]
        and _call_of(shows, a, b) == home
        and not _is_view(shows.a)
    ):
        taker = shows
    ops_a: list[Op] = []
    ops_b: list[Op] = []
    for item in compared[first : (place if taker else lone[-1]) + 1]:
        one, other = (item.a, item.b) if isinstance(item, _Seen) else _ops_of(item, a, b)
        ops_a += [] if one is None else [one]
        ops_b += [] if other is None else [other]
    distance = next(
        (
            gap(item.a.outputs[0], item.b.outputs[0], a, b)
            for item in compared[lone[-1] :]
            if isinstance(item, _Seen) and item.output == "differs"
        ),
        None,
    )
    if distance is None and ops_a and ops_b and ops_a[-1].outputs and ops_b[-1].outputs:
        distance = gap(ops_a[-1].outputs[0], ops_b[-1].outputs[0], a, b)
    where = home[0] or "the model itself"
    return OpFinding(
        kind="block",
        sentence=f"other ops in {where}, with equal inputs and another output: "
        + _replaced(ops_a, ops_b, taker, [_ops_of(compared[index], a, b) for index in lone]),  # type: ignore[arg-type]
        a=[told(op) for op in ops_a[:_TOLD_OPS]],
        b=[told(op) for op in ops_b[:_TOLD_OPS]],
        max_abs_diff=distance.max_abs if distance else None,
        differing=distance.differing if distance else None,
        elements=distance.elements if distance else None,
    )


def _replaced(
    ops_a: Sequence[Op], ops_b: Sequence[Op], taker: _Seen | None, lone: Sequence[tuple[Op | None, Op | None]]
) -> str:
    """Which ops stand in the place of which, in words."""
    only_a = [one for one, _ in lone if one is not None]
    only_b = [other for _, other in lone if other is not None]
    if (only_a and only_b) or (taker is None and ops_a and ops_b):
        # Also where an op has a counterpart, which then takes or gives something else.
        return f"{_names(ops_a)} in A, {_names(ops_b)} in B"
    side, only = ("A", only_a) if only_a else ("B", only_b)
    return f"only {side} runs {_names(only)}" + (f" before {taker.a.name}" if taker else "")


def _ops_of(step: Step, a: OpTrace, b: OpTrace) -> tuple[Op | None, Op | None]:
    i, j = step
    return None if i is None else a.ops[i], None if j is None else b.ops[j]


def _call_of(item: _Seen | Step, a: OpTrace, b: OpTrace) -> tuple[str, int]:
    one, other = (item.a, item.b) if isinstance(item, _Seen) else _ops_of(item, a, b)
    op = one or other
    assert op is not None
    return op.module, op.call


def _names(ops: Sequence[Op]) -> str:
    """The names of a few ops that compute; views only where there is nothing else."""
    computing = [op.name for op in ops if not _is_view(op)] or [op.name for op in ops]
    names = list(dict.fromkeys(computing))
    return " → ".join(names[:6]) + (f" … ({len(names) - 6} more)" if len(names) > 6 else "")


def _is_view(op: Op) -> bool:
    """It moves nothing: its output is an input's memory, seen otherwise."""
    name = op.name.split(".")[1]
    return name in _VIEWS


def _in(op: Op) -> str:
    return op.module or "the model itself"
