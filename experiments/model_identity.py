"""Which model, tokenizer and template an envelope speaks of, read from the files at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..schemas.envelope import Envelope
    from ..schemas.fingerprint import Fingerprint


def identity_of(model: str) -> Fingerprint:
    """The fingerprint of this environment and a model, with progress while its files are hashed."""
    from ..commands.console import progress_bar, stderr_console
    from ..fingerprint.collect import collect
    from ..fingerprint.model.ref import resolve

    with progress_bar(stderr_console()) as bar:
        task = bar.add_task("hashing the model", total=None, note="")
        return collect(
            resolve(model), progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def identity_fields(fingerprint: Fingerprint) -> dict[str, str]:
    """The hashes of model, tokenizer and template that are known, under an envelope's names."""
    found = {
        "model_artifact_sha256": _known(fingerprint, "model", "sha256"),
        "tokenizer_sha256": _known(fingerprint, "tokenizer", "sha256"),
        "chat_template_sha256": _known(fingerprint, "template", "sha256"),
    }
    return {name: value for name, value in found.items() if value is not None}


def identified_envelope(
    fingerprint: Fingerprint,
    request_id: str | None,
    ids: list[int],
    text: str | None,
    messages: list[dict[str, Any]] | None,
    sampling: dict[str, Any],
) -> Envelope:
    """An envelope with the hashes and versions at hand filled in, and a request id made from its content."""
    from ..schemas.base import sha256_of
    from ..schemas.envelope import Envelope

    raw: dict[str, Any] = {
        **identity_fields(fingerprint),
        "prompt_token_ids": ids,
        "prompt_text": text,
        "messages": messages,
        "sampling": sampling,
        "runtime": {
            "engine": "hf",
            "engine_version": _known(fingerprint, "engine", "version"),
            "torch_version": _known(fingerprint, "frameworks", "torch"),
            "quantization": _known(fingerprint, "model", "quantization_method"),
        },
    }
    raw = {key: value for key, value in raw.items() if value is not None}
    return Envelope.from_object(
        {"request_id": request_id or f"req-{sha256_of(raw)[:12]}", **raw}, "the new envelope"
    )


def _known(fingerprint: Fingerprint, section: str, field: str) -> Any:
    found = fingerprint.get(section, field)
    return None if found is None or found.unavailable is not None else found.value
