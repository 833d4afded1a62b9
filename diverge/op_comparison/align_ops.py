"""The ops of two runs, aligned: which op of A is which of B (longest common subsequence)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...schemas.recorded_ops import Op, OpTensor
from ...schemas.zoom import ZoomOp, ZoomTensor

Step = tuple[int | None, int | None]
"""Indices into A's and B's ops; None: that side has no counterpart."""


_VIEWS = re.compile(
    r"aten\.(view|_unsafe_view|reshape|transpose|t|permute|unsqueeze|squeeze|expand|slice|select|alias|detach"
    r"|as_strided|split|chunk|unbind|lift_fresh)\."
)


def is_view(name: str) -> bool:
    """Whether an op (`aten.view.default`) moves nothing: its output is an input's memory, read otherwise."""
    return _VIEWS.match(name) is not None


def align_ops(a: Sequence[Op], b: Sequence[Op]) -> list[Step]:
    """A longest common subsequence of the ops' keys, with what is on one side only between its pairs."""
    keys_a, keys_b = [_key(op) for op in a], [_key(op) for op in b]
    first = 0
    while first < min(len(a), len(b)) and keys_a[first] == keys_b[first]:
        first += 1
    last = 0
    while last < min(len(a), len(b)) - first and keys_a[-1 - last] == keys_b[-1 - last]:
        last += 1
    rest_a, rest_b = keys_a[first : len(a) - last], keys_b[first : len(b) - last]
    # length[i][j]: of the longest common subsequence of rest_a[i:] and rest_b[j:]
    length = [[0] * (len(rest_b) + 1) for _ in range(len(rest_a) + 1)]
    for i in reversed(range(len(rest_a))):
        for j in reversed(range(len(rest_b))):
            same = rest_a[i] == rest_b[j]
            length[i][j] = length[i + 1][j + 1] + 1 if same else max(length[i + 1][j], length[i][j + 1])
    steps: list[Step] = [(index, index) for index in range(first)]
    i = j = 0
    while i < len(rest_a) or j < len(rest_b):
        if i < len(rest_a) and j < len(rest_b) and rest_a[i] == rest_b[j]:
            steps.append((first + i, first + j))
            i, j = i + 1, j + 1
        elif j == len(rest_b) or (i < len(rest_a) and length[i + 1][j] >= length[i][j + 1]):
            steps.append((first + i, None))
            i += 1
        else:
            steps.append((None, first + j))
            j += 1
    return steps + [(len(a) - last + index, len(b) - last + index) for index in range(last)]


def _key(op: Op) -> tuple[str, int, str]:
    return op.module, op.call, op.name


def zoom_op(op: Op) -> ZoomOp:
    """An op as a record of findings."""
    return ZoomOp(
        op=op.name,
        module=op.module,
        occurrence=op.occurrence,
        arguments=op.arguments,
        inputs=[_zoom_tensor(tensor) for tensor in op.inputs],
        outputs=[_zoom_tensor(tensor) for tensor in op.outputs],
    )


def _zoom_tensor(tensor: OpTensor) -> ZoomTensor:
    return ZoomTensor(
        name=tensor.name,
        shape=list(tensor.shape),
        stride=list(tensor.stride),
        dtype=tensor.dtype,
        device=tensor.device,
        storage_offset=tensor.storage_offset,
        parameter=tensor.parameter or None,
    )
