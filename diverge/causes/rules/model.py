"""Causes in the model: its weights, its configuration, the dtype it is computed in."""

from __future__ import annotations

from ....schemas.findings.evidence import Conclusion, Evidence
from ....schemas.findings.execution import TensorOfModule, TensorsChanged
from ..evidence import Basis
from ..settings import DTYPE_FIELDS
from .describe_module import drift_size, subject
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
    if site is not None:
        # GPT-2's checkpoints call their layers h.
        paths = f".{site.site}.", f".{site.site.replace('layers.', 'h.', 1)}."
        own = [name for name in tensors if any(path in f".{name}" for path in paths)]
        if own:
            evidence.append(TensorOfModule(tensor=own[0], site=site.label(), position=site.position))
    return Finding(evidence, "high", confirm=basis.commands.show_changes(), direct=True)


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
        confirm=basis.commands.show_changes(),
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
