"""Sentences on a zoom: the op, what the transplant (activation patching) proves, whether re-runs repeat."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...schemas.findings import ops
from ...schemas.findings.statement import Location, Sentence, Statement
from ...schemas.zoom import InputOf, OpFinding, SideCheck, Transplant, TransplantedSite, Zoom, ZoomOp
from ..op_comparison.align_ops import is_view
from .format import number, plural

_SHOWN_SITES = 4
_SHOWN_OPS = 8
_NAMED_OPS = 6
_ROOT = "the model itself"
"""In place of an empty module path."""

Some = TypeVar("Some", bound=Statement)


def zoom_lines(zoom: Zoom) -> list[str]:
    """Sentences for the terminal, the most important first."""
    lines = [proof_line(zoom)]
    if zoom.finding is not None:
        lines.append(f"op: {finding_sentence(zoom.finding)}")
        lines += _details(zoom.finding)
    lines.append(_repeats("A", zoom.a) + "; " + _repeats("B", zoom.b))
    return lines + [sentence(note) for note in zoom.notes]


def zoom_with_sentences(zoom: Zoom) -> Zoom:
    """The same, with the sentence of each finding beside its data, as it is written."""
    changed: dict[str, Any] = {"notes": [_worded(note) for note in zoom.notes]}
    for name, check in (("a", zoom.a), ("b", zoom.b)):
        if check.where is not None:
            where = check.where.model_copy(update={"text": _place(check.where)})
            changed[name] = check.model_copy(update={"where": where})
    if zoom.finding is not None:
        shows = zoom.finding.shows.model_copy(update={"text": finding_sentence(zoom.finding)})
        changed["finding"] = zoom.finding.model_copy(update={"shows": shows})
    if zoom.transplant.why is not None:
        changed["transplant"] = zoom.transplant.model_copy(update={"why": _worded(zoom.transplant.why)})
    return zoom.model_copy(update=changed)


def _worded(found: Some) -> Some:
    return found.model_copy(update={"text": sentence(found)})


def finding_sentence(finding: OpFinding) -> str:
    """What the ops show, and through which input it came."""
    said = sentence(finding.shows)
    return said if finding.through is None else f"{_input_differs(finding.through)}: {said}"


def sentence(found: Statement) -> str:
    """The sentence of one finding of a zoom; of a document of version 2 what it said."""
    return SENTENCES[type(found)](found)


def _op_differs(found: ops.OpDiffers) -> str:
    said = f"{found.op} in {found.module or _ROOT}: equal inputs, different output"
    if found.arguments_a != found.arguments_b:
        said += (
            f"; its arguments differ: {found.arguments_a or 'none'} in A, {found.arguments_b or 'none'} in B"
        )
    return said + (f" (not compared: {', '.join(found.not_compared)})" if found.not_compared else "")


def _ops_differ(found: ops.OpsDiffer) -> str:
    if found.a and found.b:
        which = f"{_names(found.a)} in A, {_names(found.b)} in B"
    else:
        side, names = ("A", found.a) if found.a else ("B", found.b)
        which = f"only {side} runs {_names(names)}" + (f" before {found.before}" if found.before else "")
    return f"different ops in {found.module or _ROOT}, with equal inputs and a different output: {which}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_OPS
    return " → ".join(names[:_NAMED_OPS]) + (f" … ({more} more)" if more > 0 else "")


def _weight_differs(found: ops.WeightDiffers) -> str:
    how = "has different values in B"
    if found.dtype_a != found.dtype_b:
        how = f"is {found.dtype_a} in A and {found.dtype_b} in B"
    return f"the weight {found.tensor} {how}; {found.op} in {found.module or _ROOT} only reads it"


def _input_differs(found: ops.InputDiffers | InputOf) -> str:
    return f"the input {found.tensor!r} of {found.op} in {found.module or _ROOT} already differs"


def _outside(found: ops.InputDiffers) -> str:
    source = "a different module of this pass made it"
    if found.made_by == "before this pass":
        source = "it was made before this pass (a KV cache, positions, a mask)"
    return f"{_input_differs(found)}, and {source}"


def _no_op_differs(found: ops.NoOpDiffers) -> str:
    said = f"none of the {found.matched} ops that both sides run is known to differ"
    said += f"; {found.one_side} run on one side only" if found.one_side else ""
    return said + (f"; {found.not_comparable} could not be compared" if found.not_comparable else "")


_NOT_TRANSPLANTED = {
    "dtypes differ": "the sites of B have a different dtype, so no row of A fits",
    "runs equal": "the re-runs do not differ",
    "no rows kept": "no rows of A were kept",
    "no logits": "no logits were computed from the first difference on",
}


def _still_differs(found: ops.StillDiffers) -> str:
    return f"{_row(found.at)} still differs, and A's row does not fit there"


def _sites_retyped(found: ops.SitesRetyped) -> str:
    return (
        f"{found.sites} sites have a different dtype in B, so their hashes always differ: first {found.first}"
    )


def _found_elsewhere(found: ops.FoundElsewhere) -> str:
    if not found.is_origin:
        return (
            f"in the traces the first observed difference is {_row(found.recorded)}, which is not an origin; "
            f"the re-runs observe every site, and differ first at {_row(found.found)}"
        )
    return (
        f"the traces differ first at {_row(found.recorded)}, the re-runs at {_row(found.found)}: "
        "what follows is about the re-runs"
    )


def _row(at: Location) -> str:
    return f"{at.site or 'the logits'} at position {at.position}"


SENTENCES: dict[type[Statement], Callable[[Any], str]] = {
    Sentence: lambda found: found.text or "",
    ops.OpDiffers: _op_differs,
    ops.OpsDiffer: _ops_differ,
    ops.WeightDiffers: _weight_differs,
    ops.InputDiffers: _outside,
    ops.NoOpDiffers: _no_op_differs,
    ops.RunsEqual: lambda _: "the runs are equal, rows and logits",
    ops.NotTransplanted: lambda found: _NOT_TRANSPLANTED[found.kind],
    ops.StillDiffers: _still_differs,
    ops.SitesRetyped: _sites_retyped,
    ops.NotReproduced: lambda _: (
        "the re-runs are equal, rows and logits: the difference of the traces was not reproduced"
    ),
    ops.FoundElsewhere: _found_elsewhere,
    ops.ModelFilesChanged: lambda found: (
        f"the files of {found.model} have changed since {found.trace} was recorded"
    ),
}


def proof_line(zoom: Zoom) -> str:
    """One sentence: what is proven."""
    found = zoom.transplant
    if found.state == "not run":
        return f"not proven: {sentence(found.why)}" if found.why else "not proven"
    if found.state == "proven" and [origin.site for origin in found.origins] == ["logits"]:
        where = _at(found.origins)
        return f"proven: all rows of B equal A's and its logits differ ({where}): the head is the origin"
    sites = _sites(found)
    if found.state == "not proven":
        return f"not proven: with A's rows at {sites}, B does not follow A: {_why(found)}"
    count = len(found.origins)
    start = f"proven, {plural(count, 'origin')}" if count > 1 else "proven"
    if not zoom.seen_again:
        start += " for the re-runs only"
    return f"{start}: with A's rows at {sites}, B follows A to position {found.last}, {_logits(found)}"


def _why(found: Transplant) -> str:
    return "" if found.why is None else sentence(found.why)


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
    where = "" if found.where is None else _place(found.where)
    return f"{name} does not repeat its trace: the row at {where} differs"


def _place(at: Location) -> str:
    """A row; of a document of version 2 what it said."""
    return at.text or "" if at.position is None else f"position {at.position} site {at.site}"
