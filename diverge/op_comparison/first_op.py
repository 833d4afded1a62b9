"""From the ops of two passes to the first op with equal inputs and a different output.

Ops are aligned by what they are and where they ran, never by their number: two kernels have different
sequences of ops. It knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...schemas.findings.ops import NoOpDiffers
from ...schemas.recorded_ops import Op, OpTrace
from ...schemas.zoom import OpFinding
from .align_ops import Step, align_ops, is_view
from .findings import ComparedOps, Pair, block_finding, op_finding, ops_of, outside_finding, weight_finding
from .tensors import Equality, compare


def first_differing_op(a: OpTrace, b: OpTrace) -> OpFinding:
    """The first op whose inputs are equal and whose output is not, or the ops that replace it.

    Args:
        a: The pass that computed the position, in A.
        b: The same in B.
    """
    steps = align_ops(a.ops, b.ops)
    matched = sum(i is not None and j is not None for i, j in steps)
    counts = {"matched": matched, "only_a": len(a.ops) - matched, "only_b": len(b.ops) - matched}
    finding = _find(a, b, steps)
    if finding.kind in ("none", "unknown") and _same_layout(a, b):
        # An axis that only happens to be as long as the pass may have been cut short: compare it uncut.
        finding = min(
            finding, _find(_uncut(a), _uncut(b), steps), key=lambda one: one.kind in ("none", "unknown")
        )
    hints_a, hints_b = dict(a.hints), dict(b.hints)
    if hints_a != hints_b:
        keys = [key for key in {**hints_a, **hints_b} if hints_a.get(key) != hints_b.get(key)]
        hints_a, hints_b = ({key: side[key] for key in keys if key in side} for side in (hints_a, hints_b))
    return finding.model_copy(update={**counts, "hints_a": hints_a, "hints_b": hints_b})


def ops_leading_to(trace: OpTrace, last: int | None) -> OpTrace:
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


def _same_layout(a: OpTrace, b: OpTrace) -> bool:
    """The sequence has the same rows and columns in both passes, so whole tensors can be compared."""
    layouts = [(one.batch_size, one.tokens, one.total, one.fed, one.seen) for one in (a, b)]
    return layouts[0] == layouts[1] and a.batch_size == 1


def _uncut(trace: OpTrace) -> OpTrace:
    return replace(trace, tokens=-1, total=-1)


def _find(a: OpTrace, b: OpTrace, steps: Sequence[Step]) -> OpFinding:
    """Go through the aligned ops to the first difference."""
    compared: list[ComparedOps | Step] = [
        (i, j) if i is None or j is None else _compared(a.ops[i], b.ops[j], a, b) for i, j in steps
    ]
    unread: tuple[int, Pair] | None = None
    for index, item in enumerate(compared):
        if not isinstance(item, ComparedOps):
            continue
        differing = [pair for pair in item.inputs if pair[2] == "differs"]
        if differing and item.output == "equal" and all(left.parameter for left, _, _ in differing):
            # What differs in the weight was not read here: a row of an embedding that no token chose.
            unread = unread or (index, differing[0])
        elif differing:
            return _differing_input(index, differing[0], compared, a, b)
        elif item.output == "differs":
            before = _unmatched_before(compared, index)
            if before is not None and any(pair[2] == "unknown" for pair in item.inputs):
                return block_finding(before, index, compared, a, b)
            return op_finding(item, a, b)
    unmatched = [item for item in compared if not isinstance(item, ComparedOps)]
    last = _unmatched_before(compared, len(compared))
    if last is not None and not _ends_equal(a, b):
        return block_finding(last, len(compared) - 1, compared, a, b)
    if unread is not None:
        return _differing_input(*unread, compared, a, b)
    unknown = sum(isinstance(item, ComparedOps) and item.uncomparable for item in compared)
    matched = len(compared) - len(unmatched)
    shows = NoOpDiffers(matched=matched, one_side=len(unmatched), not_comparable=unknown)
    return OpFinding(kind="unknown" if unknown else "none", shows=shows)


def _ends_equal(a: OpTrace, b: OpTrace) -> bool:
    """Whether what the last ops gave is equal, whatever they were."""
    ends = a.ops[-1:], b.ops[-1:]
    if not all(ends) or not all(op.outputs for (op,) in ends):
        return False
    return compare(ends[0][0].outputs[0], ends[1][0].outputs[0], a, b) == "equal"


def _compared(one: Op, other: Op, a: OpTrace, b: OpTrace) -> ComparedOps:
    pairs = zip(one.inputs, other.inputs, strict=False)
    inputs = tuple((left, right, compare(left, right, a, b)) for left, right in pairs)
    outputs = list(zip(one.outputs, other.outputs, strict=False))
    if "attention" in one.name:
        outputs = outputs[:1]  # the others are for training, and padding leaves what it likes in them
    states = {compare(left, right, a, b) for left, right in outputs}
    output: Equality = "differs" if "differs" in states else "unknown" if "unknown" in states else "equal"
    return ComparedOps(one, other, inputs, output)


def _unmatched_before(compared: Sequence[ComparedOps | Step], stop: int) -> int | None:
    """The first op without counterpart after the last pair that is known to agree; None: there is none."""
    found = None
    for index in reversed(range(stop)):
        item = compared[index]
        if isinstance(item, ComparedOps) and not item.uncomparable:
            break
        found = found if isinstance(item, ComparedOps) else index
    return found


def _differing_input(
    index: int, pair: Pair, compared: Sequence[ComparedOps | Step], a: OpTrace, b: OpTrace
) -> OpFinding:
    """An input differs that no matched op made: a weight, another block of ops, or something from outside."""
    ops, (left, right, _) = compared[index], pair
    assert isinstance(ops, ComparedOps)
    if left.parameter and right.parameter:
        return weight_finding(compared[index:], left, right)
    makers = left.producer, right.producer
    for first, item in enumerate(compared[:index]):
        if not isinstance(item, ComparedOps) and _made(item, makers, a, b):
            return block_finding(first, index, compared, a, b)
    before = _unmatched_before(compared, index)
    if before is not None:
        return block_finding(before, index, compared, a, b)
    return outside_finding(ops, left, right, a, b)


def _made(step: Step, makers: tuple[int, int], a: OpTrace, b: OpTrace) -> bool:
    """Whether an op without counterpart made one of two tensors."""
    one, other = ops_of(step, a, b)
    return (one is not None and one.index == makers[0]) or (other is not None and other.index == makers[1])
