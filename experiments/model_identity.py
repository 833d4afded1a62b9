"""Which model, tokenizer, template and runtime an envelope names, read from a fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .progress import show_bytes

if TYPE_CHECKING:
    from ..schemas.fingerprint import Fingerprint
    from .progress import Progress

_RUNTIME = {
    "engine": ("engine", "name"),
    "engine_version": ("engine", "version"),
    "torch_version": ("frameworks", "torch"),
    "tensor_parallel_size": ("parallelism", "tensor_parallel_size"),
    "attention_backend": ("engine", "attention_backend"),
    "quantization": ("model", "quantization_method"),
    "dtype": ("engine", "dtype"),
}
"""Field of an envelope's runtime → section and field of a fingerprint."""


def identity_of(model: str, progress: Progress) -> Fingerprint:
    """The fingerprint of this environment and a model, whose files are hashed."""
    from ..fingerprint.collect import collect
    from ..fingerprint.model.ref import resolve

    return collect(resolve(model), progress=show_bytes(progress, "hashing the model"))


def identity_fields(fingerprint: Fingerprint) -> dict[str, str]:
    """The hashes of model, tokenizer and template that are known, under an envelope's names."""
    found = {
        "model_artifact_sha256": _known(fingerprint, "model", "sha256"),
        "tokenizer_sha256": _known(fingerprint, "tokenizer", "sha256"),
        "chat_template_sha256": _known(fingerprint, "template", "sha256"),
    }
    return {name: value for name, value in found.items() if value is not None}


def runtime_fields(fingerprint: Fingerprint) -> dict[str, Any]:
    """What is known of an engine and how it runs, under the names of an envelope's runtime."""
    found = {name: _known(fingerprint, *place) for name, place in _RUNTIME.items()}
    return {
        name: value
        for name, value in found.items()
        if (type(value) is int if name == "tensor_parallel_size" else isinstance(value, str))
    }


def _known(fingerprint: Fingerprint, section: str, field: str) -> Any:
    found = fingerprint.get(section, field)
    return None if found is None or found.unavailable is not None else found.value
