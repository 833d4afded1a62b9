"""A fingerprint in about fifteen lines: what it is of, versions, devices, and what could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.fingerprint import is_absent_text
from .drift_sentences import visible

if TYPE_CHECKING:
    from ...schemas.fingerprint import Fingerprint

_SHOWN = 200
"""Characters of one value."""
_ROWS = {
    "of": "process.observed",
    "engine": "engine.name",
    "version": "engine.version",
    "model": "model.sha256",
    "architecture": "model.architecture",
    "quantization": "model.quantization_method",
    "template": "template.sha256",
    "torch": "frameworks.torch",
    "CUDA": "libraries.cuda",
    "GPUs": "gpus.name_and_compute_capability",
    "driver": "driver.version",
    "CPU": "cpu.model",
    "system": "os.distribution",
    "attention": "engine.attention_backend",
}
"""Label \u2192 section and field."""


def summary_rows(read: Fingerprint) -> list[tuple[str, str]]:
    """Labels and values, as they are printed; what is not known has no row, but is named in one."""
    known = {label: read.get(*place.split(".", 1)) for label, place in _ROWS.items()}
    rows = [
        (label, visible(str(fact.value))[:_SHOWN])
        for label, fact in known.items()
        if fact is not None and fact.value is not None
    ]
    unread = [key for key, value in read.flat().items() if is_absent_text(value)]
    if unread:
        rows.append(("not read", ", ".join(unread)))
    return [*rows, ("recorded", read.created), ("root digest", read.root_digest)]
