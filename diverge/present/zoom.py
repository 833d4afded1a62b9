"""Sentences on a zoom: the op, what the transplant (activation patching) proves, whether re-runs repeat."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...schemas.zoom import OpFinding, SideCheck, Transplant, TransplantedSite, Zoom, ZoomOp
from ..op_comparison.align_ops import is_view
from .format import number, plural

_SHOWN_SITES = 4
_SHOWN_OPS = 8


def zoom_lines(zoom: Zoom) -> list[str]:
    """Sentences for the terminal, the most important first."""
    lines = [proof_line(zoom)]
    if zoom.finding is not None:
        lines.append(f"op: {zoom.finding.sentence}")
        lines += _details(zoom.finding)
    lines.append(_repeats("A", zoom.a) + "; " + _repeats("B", zoom.b))
    return lines + zoom.notes


def proof_line(zoom: Zoom) -> str:
    """One sentence: what is proven."""
    found = zoom.transplant
    if found.state == "not run":
        return f"not proven: {found.why}" if found.why else "not proven"
    if found.state == "proven" and [origin.site for origin in found.origins] == ["logits"]:
        where = _at(found.origins)
        return f"proven: all rows of B equal A's and its logits differ ({where}): the head is the origin"
    sites = _sites(found)
    if found.state == "not proven":
        return f"not proven: with A's rows at {sites}, B does not follow A: {found.why}"
    count = len(found.origins)
    start = f"proven, {plural(count, 'origin')}" if count > 1 else "proven"
    if not zoom.seen_again:
        start += " for the re-runs only"
    return f"{start}: with A's rows at {sites}, B follows A to position {found.last}, {_logits(found)}"


def _logits(found: Transplant) -> str:
    return f"all {found.logits} logits equal" if found.logits > 1 else "its logits equal"


def _sites(found: Transplant) -> str:
    """Where A's rows were put in; the same module of many layers is named once."""
    kinds: dict[str, list[TransplantedSite]] = {}
    head = [origin for origin in found.origins if origin.site == "logits"]
    for origin in found.origins:
        if origin in head:
            continue
        kinds.setdefault(re.sub(r"(^|\.)\d+(?=\.|$|:)", r"\1N", origin.site), []).append(origin)
    named = [
        f"{kind if len(origins) > 1 else origins[0].site} ({_at(origins)})"
        for kind, origins in list(kinds.items())[:_SHOWN_SITES]
    ]
    left = len(kinds) - len(named)
    rows = ", ".join(named) + (f" and {left} more kinds of site" if left else "")
    return rows + (f" and A's logits ({_at(head)})" if head else "")


def _at(origins: Sequence[TransplantedSite]) -> str:
    first, last = min(origin.first for origin in origins), max(origin.last for origin in origins)
    layers = f"{len(origins)} layers, " if len(origins) > 1 else ""
    if first == last:
        return f"{layers}position {first}"
    every = all(origin.positions == last - first + 1 for origin in origins)
    if every or len(origins) > 1:
        return f"{layers}{'every position' if every else 'positions in'} {first}–{last}"
    return f"{origins[0].positions} positions in {first}–{last}"


def _details(finding: OpFinding) -> list[str]:
    lines = []
    if finding.differing is not None:
        gap = "" if finding.max_abs_diff is None else f", largest difference {number(finding.max_abs_diff)}"
        lines.append(f"{finding.differing} of {finding.elements} elements differ{_rows(finding)}{gap}")
    one_op = len(finding.a) == len(finding.b) == 1
    if one_op and _signature(finding.a[0]) == _signature(finding.b[0]):
        lines.append(f"A and B: {_signature(finding.a[0])}")
    else:
        for name, ops, beyond in (("A", finding.a, finding.left_out_a), ("B", finding.b, finding.left_out_b)):
            listed = ops if one_op else _computing(ops)
            lines += [f"{name}: {op.op} {_signature(op)}" for op in listed[:_SHOWN_OPS]]
            more = max(0, len(listed) - _SHOWN_OPS) + beyond
            lines += [f"{name}: and {more} more"] if more else []
    if finding.hints_a != finding.hints_b:
        hints = [
            f"{key} {value} in A, {finding.hints_b.get(key, 'absent')} in B"
            for key, value in finding.hints_a.items()
        ]
        lines.append(f"kernel selection: {'; '.join(hints)}")
    elif finding.hints_a and finding.kind in ("op", "block"):
        lines.append("kernels: " + ", ".join(f"{key} {value}" for key, value in finding.hints_a.items()))
    return lines


def _rows(finding: OpFinding) -> str:
    """Which positions the compared elements are rows of."""
    if finding.first is None or finding.last is None:
        return ""
    if finding.first == finding.last:
        return f" in the row of position {finding.last}"
    return f" in the rows of positions {finding.first} to {finding.last}"


def _computing(ops: list[ZoomOp]) -> list[ZoomOp]:
    """Ops that write a new output; all where every op is a view."""
    return [op for op in ops if not is_view(op.op)] or ops


def _signature(op: ZoomOp) -> str:
    inputs = ", ".join(
        f"{tensor.parameter or tensor.name} {tensor.dtype}{tensor.shape}"
        + ("" if _is_dense(tensor.shape, tensor.stride) else f" strides {tensor.stride}")
        for tensor in op.inputs
    )
    outputs = ", ".join(f"{tensor.dtype}{tensor.shape}" for tensor in op.outputs[:1])
    return f"({inputs}{f'; {op.arguments}' if op.arguments else ''}) → {outputs}"


def _is_dense(shape: list[int], stride: list[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _repeats(name: str, found: SideCheck) -> str:
    if found.state == "repeated":
        return f"{name} repeats its trace ({found.rows:,} row hashes equal)"
    if found.state == "not recorded":
        return f"{name}'s trace has no row to check the re-run against"
    return f"{name} does not repeat its trace: the row at {found.where} differs"
