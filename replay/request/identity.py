"""Whether model, tokenizer, template and environment are those an envelope names, and what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...schemas.envelope import Envelope, Runtime, is_placeholder
from ...schemas.errors import ContractBroken
from ...schemas.fingerprint import Fact, Fingerprint
from ...schemas.trace import Setting
from ..proxy.request import unread_sampling
from .contract import redacted_sampling

_SHOWN_VALUE = 60
"""Characters of a stated value that a sentence shows."""

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


def check_identity(envelope: Envelope, fingerprint: Fingerprint, allow_drift: bool) -> list[str]:
    """Compare the envelope's hashes with the model, tokenizer and template at hand.

    Returns:
        Findings: hashes that could not be checked, and drift that was allowed.

    Raises:
        ContractBroken: A hash differs and `allow_drift` is off.
    """
    unknown = {
        field: found.unavailable if found else "not probed"
        for field, _, _, found in _stated(envelope, fingerprint)
        if found is None or found.unavailable is not None
    }
    unchecked = []
    if unknown:
        reasons = "; ".join(dict.fromkeys(str(reason) for reason in unknown.values()))
        unchecked = [f"could not be checked: {', '.join(unknown)} ({reasons})"]
    differing = [
        f"{noun} ({_short(wanted)}, here {_short(found.value)})"
        for _, noun, wanted, found in _stated(envelope, fingerprint)
        if found is not None and found.unavailable is None and found.value != wanted
    ]
    if not differing:
        return unchecked
    said = f"recorded with another {', another '.join(differing)}"
    if not allow_drift:
        raise ContractBroken(
            f"{envelope.request_id}: {said}",
            "give the model that it was recorded with (--model), or keep the difference with --allow-drift",
        )
    return [*unchecked, f"drift allowed: {said}"]


def identity_differences(envelope: Envelope, fingerprint: Fingerprint) -> list[str]:
    """The hashes an envelope states that are not those at hand, in words."""
    return [
        f"another {noun}: {field} is {_short(wanted)}, here {_short(found.text()) if found else 'not probed'}"
        for field, noun, wanted, found in _stated(envelope, fingerprint)
        if found is None or found.value != wanted
    ]


def unstated_identity(envelopes: Sequence[Envelope]) -> list[str]:
    """One finding about the identity hashes that envelopes leave out or as placeholders."""
    silent = {
        field: sum(_is_silent(getattr(envelope, field)) for envelope in envelopes) for field in IDENTITY
    }
    every = len(envelopes)
    said = [
        field if count == every else f"{field} ({count} of {every})"
        for field, count in silent.items()
        if count
    ]
    return [f"not checked, because the envelope does not state it: {', '.join(said)}"] if said else []


def completeness(envelope: Envelope) -> list[str]:
    """What an envelope leaves out that a replay needs to be exact, in words."""
    missing = [field for field in IDENTITY if _is_silent(getattr(envelope, field))]
    findings = [f"{', '.join(missing)} not stated"] if missing else []
    if envelope.prompt_token_ids is None:
        findings.append(
            "no prompt_token_ids: a tokenizer or template change could not be told from a numeric one"
        )
    telling = ["temperature", "max_tokens"]
    if envelope.sampling.temperature != 0:
        telling += ["top_p", "top_k", "seed"]
    redacted = redacted_sampling(envelope)
    unread = unread_sampling(envelope.request)
    for name, value in unread.items():
        findings.append(
            f"{name} was stated as {shortened(value)}, which it cannot be: the engine's default will apply"
        )
    known = {*redacted, *unread}
    silent = [name for name in telling if getattr(envelope.sampling, name) is None and name not in known]
    if silent:
        findings.append(f"sampling is silent on {', '.join(silent)}: defaults of the engine will apply")
    if envelope.sampling.max_tokens == 0:
        findings.append("max_tokens is 0: there is nothing to generate")
    if redacted:
        findings.append(f"sampling was redacted: {', '.join(redacted)}")
    unfilled = [name for name, value in envelope.runtime if isinstance(value, str) and is_placeholder(value)]
    if unfilled:
        findings.append(f"runtime placeholders not filled in: {', '.join(unfilled)}")
    return findings


def shortened(value: Any) -> str:
    """A stated value as JSON, cut to what a sentence holds."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"


def runtime_settings(runtime: Runtime, engine: str, fingerprint: Fingerprint) -> dict[str, Setting]:
    """The recorded runtime beside what is here. rip cannot choose these; it can say that they differ."""
    settings = {"engine": Setting(requested=runtime.engine, resolved=engine, observed=engine, source="lane")}
    for name, (section, field) in RUNTIME.items():
        if name not in ("attention_backend", "dtype"):  # the engine's own settings tell these
            found = fingerprint.get(section, field)
            here = found.value if found is not None else None
            settings[name] = Setting(
                requested=getattr(runtime, name), resolved=here, observed=here, source="environment"
            )
    return settings


def runtime_difference(runtime: Runtime, engine: str, fingerprint: Fingerprint) -> str | None:
    """How the recorded runtime differs from the one here, in one sentence; None: not, as far as stated."""
    recorded, here = [], []
    for name in ("engine", *RUNTIME):
        stated = getattr(runtime, name)
        if stated is None or (isinstance(stated, str) and is_placeholder(stated)):
            continue
        found = None if name == "engine" else fingerprint.get(*RUNTIME[name])
        value = engine if name == "engine" else None if found is None else found.value
        if _plain(stated) != _plain(value):
            recorded.append(f"{name}={stated}")
            here.append("unknown" if value is None else str(value))
    if not recorded:
        return None
    return f"recorded with {', '.join(recorded)}; here {', '.join(here)}"


def _stated(envelope: Envelope, fingerprint: Fingerprint) -> Iterator[tuple[str, str, str, Fact | None]]:
    """(field, noun, stated digest, fact at hand) of every identity hash that the envelope states."""
    for field, (section, name, noun) in IDENTITY.items():
        wanted: str | None = getattr(envelope, field)
        if wanted is not None and not _is_silent(wanted):
            yield field, noun, wanted.strip().lower().removeprefix("sha256:"), fingerprint.get(section, name)


def _is_silent(value: str | None) -> bool:
    return value is None or is_placeholder(value)


def _short(digest: object) -> str:
    """Enough of a digest to tell two apart; the trace keeps them whole."""
    text = str(digest)
    return f"{text[:12]}…" if len(text) == 64 else text


def _plain(value: object) -> str:
    """A runtime value without differences of spelling: `torch.bfloat16` is `bfloat16`."""
    return str(value).lower().removeprefix("torch.")
