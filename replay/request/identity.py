"""Whether model, tokenizer, template and environment are those an envelope names, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...schemas.envelope import Envelope, Runtime, is_placeholder
from ...schemas.errors import ContractBroken
from ...schemas.fingerprint import Fact, Fingerprint
from ...schemas.lane import Setting
from ...schemas.trace import Finding
from ..wire import invalid_sampling, shortened
from .contract import redacted_sampling
from .findings import differing_identity, finding

IDENTITY = {
    "model_artifact_sha256": ("model", "sha256", "model"),
    "tokenizer_sha256": ("tokenizer", "sha256", "tokenizer"),
    "chat_template_sha256": ("template", "sha256", "chat template"),
}
"""Identity hash of an envelope → section and field of the fingerprint, and what it is called."""

RUNTIME = {
    "engine_version": ("engine", "version"),
    "torch_version": ("frameworks", "torch"),
    "cuda_version": ("libraries", "cuda"),
    "gpu_model": ("gpus", "name_and_compute_capability"),
    "tensor_parallel_size": ("parallelism", "tensor_parallel_size"),
    "attention_backend": ("engine", "attention_backend"),
    "quantization": ("model", "quantization_method"),
    "dtype": ("engine", "dtype"),
}
"""Runtime field of an envelope → section and field of the fingerprint."""


def check_identity(envelope: Envelope, fingerprint: Fingerprint, allow_drift: bool) -> list[Finding]:
    """Compare the envelope's hashes with the model, tokenizer and template at hand.

    Returns:
        Hashes that could not be checked, and drift that was allowed.

    Raises:
        ContractBroken: A hash differs and `allow_drift` is off.
    """
    stated = list(_stated(envelope, fingerprint))
    unknown = {
        field: found.unavailable or "" if found else "not probed"
        for field, _, _, found in stated
        if found is None or found.unavailable is not None
    }
    findings = [finding("identity-unchecked", fields=unknown)] if unknown else []
    differing = {
        noun: {"recorded": recorded, "here": str(found.value)}
        for _, noun, recorded, found in stated
        if found is not None and found.unavailable is None and found.value != recorded
    }
    if differing and not allow_drift:
        raise ContractBroken(
            f"{envelope.request_id}: recorded with {differing_identity(differing)}",
            "give the model that it was recorded with (--model), or keep the difference with --allow-drift",
        )
    return [*findings, finding("identity-drift", fields=differing)] if differing else findings


def identity_differences(envelope: Envelope, fingerprint: Fingerprint) -> list[Finding]:
    """The hashes an envelope states that are not those at hand."""
    return [
        finding(
            "identity-differs",
            noun=noun,
            field=field,
            recorded=recorded,
            here=found.text() if found else "not probed",
        )
        for field, noun, recorded, found in _stated(envelope, fingerprint)
        if found is None or found.value != recorded
    ]


def unstated_identity(envelopes: Sequence[Envelope]) -> list[Finding]:
    """One finding about the identity hashes that envelopes leave out or as placeholders."""
    counts = {
        field: sum(_is_silent(getattr(envelope, field)) for envelope in envelopes) for field in IDENTITY
    }
    silent = {field: count for field, count in counts.items() if count}
    return [finding("identity-unstated", fields=silent, requests=len(envelopes))] if silent else []


def completeness(envelope: Envelope) -> list[Finding]:
    """What an envelope leaves out that a replay needs to be exact."""
    missing = [field for field in IDENTITY if _is_silent(getattr(envelope, field))]
    found = [finding("identity-missing", fields=missing)] if missing else []
    if envelope.prompt_token_ids is None:
        found.append(finding("token-ids-missing"))
    deciding = ["temperature", "max_tokens"]
    if envelope.sampling.temperature != 0:
        deciding += ["top_p", "top_k", "seed"]
    redacted = redacted_sampling(envelope)
    invalid = invalid_sampling(envelope.request)
    found += [
        finding("sampling-not-valid", field=name, value=shortened(value)) for name, value in invalid.items()
    ]
    known = {*redacted, *invalid}
    silent = [name for name in deciding if getattr(envelope.sampling, name) is None and name not in known]
    if silent:
        found.append(finding("sampling-missing", fields=silent))
    if envelope.sampling.max_tokens == 0:
        found.append(finding("nothing-to-generate"))
    if redacted:
        found.append(finding("sampling-redacted", fields=redacted))
    unfilled = [name for name, value in envelope.runtime if isinstance(value, str) and is_placeholder(value)]
    if unfilled:
        found.append(finding("runtime-placeholders", fields=unfilled))
    return found


def runtime_settings(runtime: Runtime, engine: str, fingerprint: Fingerprint) -> dict[str, Setting]:
    """The recorded runtime beside what is here. rip cannot choose these, only report that they differ."""
    settings = {"engine": Setting(requested=runtime.engine, resolved=engine, observed=engine, source="lane")}
    for name, (section, field) in RUNTIME.items():
        if name not in ("attention_backend", "dtype"):  # the engine's own settings report these
            found = fingerprint.get(section, field)
            here = found.value if found is not None else None
            settings[name] = Setting(
                requested=getattr(runtime, name), resolved=here, observed=here, source="environment"
            )
    return settings


def runtime_difference(runtime: Runtime, engine: str, fingerprint: Fingerprint) -> Finding | None:
    """How the recorded runtime differs from the one here; None: not, as far as stated."""
    recorded: dict[str, Any] = {}
    here: dict[str, Any] = {}
    for name in ("engine", *RUNTIME):
        stated = getattr(runtime, name)
        if stated is None or (isinstance(stated, str) and is_placeholder(stated)):
            continue
        found = None if name == "engine" else fingerprint.get(*RUNTIME[name])
        value = engine if name == "engine" else None if found is None else found.value
        if _plain(stated) != _plain(value):
            recorded[name], here[name] = stated, value
    return finding("runtime-differs", recorded=recorded, here=here) if recorded else None


def _stated(envelope: Envelope, fingerprint: Fingerprint) -> Iterator[tuple[str, str, str, Fact | None]]:
    """(field, noun, recorded digest, fact at hand) of every identity hash that the envelope states."""
    for field, (section, name, noun) in IDENTITY.items():
        recorded: str | None = getattr(envelope, field)
        if recorded is not None and not _is_silent(recorded):
            yield (
                field,
                noun,
                recorded.strip().lower().removeprefix("sha256:"),
                fingerprint.get(section, name),
            )


def _is_silent(value: str | None) -> bool:
    return value is None or is_placeholder(value)


def _plain(value: object) -> str:
    """A runtime value without differences of spelling: `torch.bfloat16` is `bfloat16`."""
    return str(value).lower().removeprefix("torch.")
