"""From the ops of two passes to the first op that gives another output for equal inputs.

Ops are aligned by what they are and where they ran, never by their number: two kernels have other sequences
of ops. It knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...schemas.rerun import Op, OpTrace
from ...schemas.zoom import OpFinding
from .align_ops import Step, align, is_view
from .findings import Pair, Seen, block, from_outside, one_op, ops_of, weight
from .tensors import Equality, compare


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


def making(trace: OpTrace, last: int | None) -> OpTrace:
    """The ops that led to one of them, itself included, without views; none where there is no such op.

    Args:
        trace: Every op of a pass.
        last: Ordinal of the op in the pass.
    """
    by_index = {op.index: op for op in trace.ops}
    seen: set[int] = set()
    waiting = [last]
    while waiting:
        index = waiting.pop()
        if index in by_index and index not in seen:
            seen.add(index)
            waiting += [tensor.producer for tensor in by_index[index].inputs]
    # A module may run once more on one side, and its ops are still those of that module.
    ops = tuple(replace(op, call=0) for op in trace.ops if op.index in seen and not is_view(op.name))
    return replace(trace, ops=ops)


def _lie_alike(a: OpTrace, b: OpTrace) -> bool:
    """The sequence lies in both passes in the same place, so that whole tensors can be compared."""
    places = [(one.batch_size, one.tokens, one.total, one.fed, one.seen) for one in (a, b)]
    return places[0] == places[1] and a.batch_size == 1


def _uncut(trace: OpTrace) -> OpTrace:
    return replace(trace, tokens=-1, total=-1)


def _find(a: OpTrace, b: OpTrace, steps: Sequence[Step]) -> OpFinding:
    """Walk along the aligned ops to the first difference."""
    compared: list[Seen | Step] = [
        (i, j) if i is None or j is None else _compared(a.ops[i], b.ops[j], a, b) for i, j in steps
    ]
    unread: tuple[int, Pair] | None = None
    for place, item in enumerate(compared):
        if not isinstance(item, Seen):
            continue
        moved = [pair for pair in item.inputs if pair[2] == "differs"]
        if moved and item.output == "equal" and all(left.parameter for left, _, _ in moved):
            # What differs in the weight was not read here: a row of an embedding that no token chose.
            unread = unread or (place, moved[0])
        elif moved:
            return _moved_input(place, moved[0], compared, a, b)
        elif item.output == "differs":
            before = _lone_before(compared, place)
            if before is not None and any(pair[2] == "unknown" for pair in item.inputs):
                return block(before, place, compared, a, b)
            return one_op(item, a, b)
    lone = [place for place, item in enumerate(compared) if not isinstance(item, Seen)]
    last = _lone_before(compared, len(compared))
    if last is not None and not _ends_equal(a, b):
        return block(last, len(compared) - 1, compared, a, b)
    if unread is not None:
        return _moved_input(*unread, compared, a, b)
    dark = sum(isinstance(item, Seen) and item.uncomparable for item in compared)
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


def _compared(one: Op, other: Op, a: OpTrace, b: OpTrace) -> Seen:
    pairs = zip(one.inputs, other.inputs, strict=False)
    inputs = tuple((left, right, compare(left, right, a, b)) for left, right in pairs)
    outputs = list(zip(one.outputs, other.outputs, strict=False))
    if "attention" in one.name:
        outputs = outputs[:1]  # the others are for training, and padding leaves what it likes in them
    states = {compare(left, right, a, b) for left, right in outputs}
    output: Equality = "differs" if "differs" in states else "unknown" if "unknown" in states else "equal"
    return Seen(one, other, inputs, output)


def _lone_before(compared: Sequence[Seen | Step], place: int) -> int | None:
    """The first op without counterpart after the last pair that is known to agree; None: there is none."""
    found = None
    for index in reversed(range(place)):
        item = compared[index]
        if isinstance(item, Seen) and not item.uncomparable:
            break
        found = found if isinstance(item, Seen) else index
    return found


def _moved_input(
    place: int, moved: Pair, compared: Sequence[Seen | Step], a: OpTrace, b: OpTrace
) -> OpFinding:
    """An input differs that no matched op made: a weight, another block of ops, or something from outside."""
    seen, (left, right, _) = compared[place], moved
    assert isinstance(seen, Seen)
    if left.parameter and right.parameter:
        return weight(compared[place:], left, right)
    makers = left.producer, right.producer
    for index, item in enumerate(compared[:place]):
        if not isinstance(item, Seen) and _made(item, makers, a, b):
            return block(index, place, compared, a, b)
    before = _lone_before(compared, place)
    if before is not None:
        return block(before, place, compared, a, b)
    return from_outside(seen, left, right, a, b)


def _made(step: Step, makers: tuple[int, int], a: OpTrace, b: OpTrace) -> bool:
    """Whether an op without counterpart made one of two tensors."""
    one, other = ops_of(step, a, b)
    return (one is not None and one.index == makers[0]) or (other is not None and other.index == makers[1])
