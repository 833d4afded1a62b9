"""Causes in the model: its weights, its configuration, the dtype it is computed in."""

from __future__ import annotations

from ....schemas.findings.evidence import Conclusion, Evidence
from ....schemas.findings.execution import TensorOfModule, TensorsChanged
from ....schemas.findings.rows import ReferenceDistance
from ....schemas.findings.unseen import Missing, NoEvidence
from ..evidence import Basis
from ..observe.changed_logits import OTHER_VALUES
from ..settings import DTYPE_FIELDS
from .describe_module import beginning, drift_size, grows, place_of, subject
from .finding import Finding

_NAMED = 6
"""Changed tensors that the evidence names."""


def weights(basis: Basis) -> Finding | None:
    """Digests of weights differ."""
    changed = basis.changed("model", fields=("sha256", "weights", "tensors"))
    if not changed or not basis.differs:
        return None
    evidence: list[Evidence] = [*changed]
    tensors, site = basis.changed_tensors, basis.first_site
    if tensors:
        evidence.append(TensorsChanged(names=tensors[:_NAMED], count=len(tensors)))
    place = None if tensors and basis.circumstances else beginning(basis)
    if site is not None and (own := _tensor_of(tensors, site.site)):
        evidence.append(TensorOfModule(tensor=own, site=site.label(), position=site.position))
        place = beginning(basis)
    pattern, acting = basis.observed.pattern, tensors_at(basis)
    for jump in [] if pattern is None else pattern.jumps:
        label = jump.site.label()
        if label in acting:
            evidence += [
                TensorOfModule(tensor=acting[label], site=label, position=jump.position, role="grows"),
                grows(jump),
            ]
            if place is None or basis.circumstances:
                place = place_of(jump)
    confirm = basis.commands.model_as_a() or basis.commands.show_changes()
    return Finding(evidence, "high", confirm=confirm, direct=True, place=place)


def tensors_at(basis: Basis) -> dict[str, str]:
    """The sites at which the drift jumps and that own a changed tensor: label → the tensor."""
    pattern, tensors = basis.observed.pattern, basis.changed_tensors
    found = {
        jump.site.label(): _tensor_of(tensors, jump.site.name)
        for jump in ([] if pattern is None else pattern.jumps)
    }
    return {label: tensor for label, tensor in found.items() if tensor is not None}


def _tensor_of(tensors: list[str], site: str) -> str | None:
    """The first of some tensors that belongs to a module."""
    # GPT-2's checkpoints call their layers h.
    paths = f".{site}.", f".{site.replace('layers.', 'h.', 1)}."
    return next((name for name in tensors if any(path in f".{name}" for path in paths)), None)


def config(basis: Basis) -> Finding | None:
    """The model's configuration differs, and its weights do not."""
    changed = basis.changed("model", fields=("config_sha256",))
    if not changed or not basis.differs or weights(basis) is not None:
        return None
    evidence: list[Evidence] = [Conclusion(what="configuration without weights"), *changed]
    pattern, site = basis.observed.pattern, basis.first_site
    if site is not None:
        evidence.append(basis.first_difference("begins"))
    return Finding(
        [*evidence, *drift_size(pattern)],
        "high" if site is not None and site.is_origin else "medium",
        confirm=basis.commands.model_as_a() or basis.commands.show_changes(),
        direct=True,
        subject=None if pattern is None else subject(pattern, "configuration"),
    )


def dtype(basis: Basis) -> Finding | None:
    """Dtype, quantization or the dtype of the KV cache differ."""
    evidence: list[Evidence] = [
        *basis.settings_of("dtype"),
        *basis.dtype_differences,
        *basis.changed("model", fields=DTYPE_FIELDS),
        *basis.changed("engine", fields=DTYPE_FIELDS),
    ]
    if not evidence or not basis.differs:
        return None
    confirm = basis.commands.replay_as_a("dtype") or basis.commands.show_changes()
    return Finding(evidence, "high", confirm=confirm, direct=True)


_OPEN = ("kernel", "module")
"""Causes that could be rounding or a fault: only a reference shows which."""


def beyond_rounding(basis: Basis) -> Finding | None:
    """B or A is farther from the reference than the other side of the same dtype."""
    found = basis.reference
    distance = None if found is None else ReferenceDistance.of(found)
    if found is None or distance is None:
        return None
    missing: list[Missing] = [] if found.repeats else [NoEvidence(kind="repeats")]
    # B on A's tokens: then every position can be compared, not only those before the tokens part.
    command = basis.commands.replay("golden-decode")
    confirm = command.model_copy(update={"then": [*command.then, "--reference", found.path]})
    return Finding([distance], "high" if found.separated else "medium", missing, confirm)


def without_reference(cause: str, basis: Basis) -> list[Missing]:
    """What a cause would need a reference for, where none could judge."""
    if cause not in _OPEN or (basis.reference is not None and basis.reference.verdict != "not judged"):
        return []
    pattern = basis.observed.pattern
    if pattern is not None:
        exact = pattern.relation is not None or pattern.across.constant
        if exact or (pattern.drift or 0) >= OTHER_VALUES:
            return []  # no rounding, whatever a reference says
    return [NoEvidence(kind="reference")]
