"""Sentences of evidence in how the rows were computed: settings, shapes of passes, the environment."""

from __future__ import annotations

import json

from ....schemas.findings.execution import (
    DtypeDiffers,
    ExecutionDiffers,
    FieldChanged,
    NoSeed,
    PassDiffers,
    SamplingDiffers,
    SettingDiffers,
    SeveralDiffer,
    ShapeDiffers,
    TensorOfModule,
    TensorsChanged,
)
from ..format import listed, shortened
from .parts import at

_SHOWN = 60
"""Characters of a value that a sentence shows."""
_OF = {"engine": "engines", "mode": "modes", "channel": "observed as"}


def setting_differs(found: SettingDiffers) -> str:
    a, b = f"{found.a} in A", f"{found.b} in B"
    values = {
        "A": f"{a}, not stated in B",
        "B": f"{b}, not stated in A",
        "both": f"{a}, {b}",
    }[found.stated_in]
    return f"{'sent together, ' if found.sent_together else ''}{found.name}: {values}"


def sampling_differs(found: SamplingDiffers) -> str:
    stated = "envelope" in (found.source_a, found.source_b)
    return (
        f"{found.name}: {json.dumps(found.a)} ({found.source_a}) in A, {json.dumps(found.b)} "
        f"({found.source_b}) in B{'' if stated else ' (not stated in the envelope)'}"
    )


def shape_differs(found: ShapeDiffers) -> str:
    return f"{found.name}: {found.a} in A, {found.b} in B"


def dtype_differs(found: DtypeDiffers) -> str:
    return f"dtype of the observed rows: {found.a} in A, {found.b} in B"


def execution_differs(found: ExecutionDiffers) -> str:
    return f"{_OF[found.of]}: {found.a} in A, {found.b} in B"


def pass_differs(found: PassDiffers) -> str:
    if found.how == "prefill or decode":
        decoded, prefilled = ("A", "B") if found.a < found.b else ("B", "A")
        return (
            f"{decoded} computed the first differing row alone (decode), {prefilled} in a pass of "
            f"{max(found.a, found.b)} tokens (prefill): {at(found.site, found.position)}"
        )
    return (
        f"golden-prefill computes prompt and answer in one pass: {at(found.site, found.position)} was one of "
        f"{found.a} tokens in A and one of {found.b} in B"
    )


def several_differ(found: SeveralDiffer) -> str:
    return f"several things differ at once: {', '.join(found.names)}"


def field_changed(found: FieldChanged) -> str:
    name = ".".join((found.section, found.field, *found.path))
    more = f" (and {found.others} more)" if found.others else ""
    before, after = shortened(found.before, _SHOWN), shortened(found.after, _SHOWN)
    return f"changed in the fingerprint: {name}: {before} → {after}{more}"


def tensors_changed(found: TensorsChanged) -> str:
    return f"tensors that changed: {listed(found.names, len(found.names), found.count)}"


def tensor_of_module(found: TensorOfModule) -> str:
    place = at(found.site, found.position)
    return f"{found.tensor} belongs to the module where the difference begins: {place}"


def no_seed(found: NoSeed) -> str:
    return f"{found.engine}, the engine of {found.side}, takes no seed: its draws cannot be repeated"
