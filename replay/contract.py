"""The request contract: which sampling values apply and where each came from, and whether the model,
tokenizer and template at hand are the ones the envelope names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..schemas.envelope import Envelope, is_placeholder
from ..schemas.errors import BadInput, ContractBroken
from ..schemas.fingerprint import Fact, Fingerprint
from ..schemas.trace import Setting

ENGINE_DEFAULTS: dict[str, Any] = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": 0,
    "seed_scope": "request",
    "max_tokens": 16,
    "min_tokens": 0,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": [],
}
"""What applies where the envelope and the model are silent: the OpenAI and vLLM defaults, and seed 0."""

INHERITED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields that servers take from the model's generation_config.json (vLLM documents this)."""

UNSUPPORTED = ("structured_outputs", "logits_processors")


def resolve_sampling(envelope: Envelope, generation_config: Mapping[str, Any]) -> dict[str, Setting]:
    """Every sampling field with its value and source: envelope, generation_config or engine default.

    Raises:
        BadInput: The envelope asks for something that this engine cannot do; silence would change the answer.
    """
    asked = envelope.sampling
    for name in UNSUPPORTED:
        if getattr(asked, name):
            raise BadInput(
                f"{envelope.request_id}: sampling.{name} cannot be replayed in-process",
                "replay on the engine that recorded it, or remove the field to replay without it",
            )
    resolved: dict[str, Setting] = {}
    for name, default in ENGINE_DEFAULTS.items():
        value = asked.stop_strings() or None if name == "stop" else getattr(asked, name)
        if value is not None:
            resolved[name] = Setting(requested=value, resolved=value, source="envelope")
        elif name in INHERITED and generation_config.get(name) is not None:
            resolved[name] = Setting(resolved=generation_config[name], source="generation_config")
        else:
            resolved[name] = Setting(resolved=default, source="engine default")
    return resolved


def silent_defaults(request_id: str, sampling: Mapping[str, Setting]) -> list[str]:
    """Findings about fields the envelope left silent and that change which tokens come out."""
    greedy = sampling["temperature"].resolved == 0
    telling = ("temperature", "max_tokens") if greedy else ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
    silent = [
        f"{name}={sampling[name].resolved} ({sampling[name].source})"
        for name in telling
        if sampling[name].source != "envelope"
    ]
    return [f"{request_id}: the envelope is silent on {', '.join(silent)}"] if silent else []


def check_prompt(request_id: str, prompt: Sequence[int], wanted: int, vocab_size: int, context_length: int) -> None:
    """Refuse what the model cannot run.

    Raises:
        BadInput: Empty prompt, a token id outside the vocabulary, or more tokens than the context holds.
    """
    if not prompt:
        raise BadInput(f"{request_id}: the prompt has no tokens", "give prompt_token_ids, prompt_text or messages")
    worst = max(prompt)
    if worst >= vocab_size:
        raise BadInput(
            f"{request_id}: token id {worst} is outside the vocabulary of {vocab_size}",
            "this prompt was made with another tokenizer: give the model it was recorded with (--model)",
        )
    if len(prompt) + wanted > context_length:
        raise BadInput(
            f"{request_id}: {len(prompt)} prompt tokens and {wanted} to generate exceed the context of {context_length}",
            "shorten the prompt or lower sampling.max_tokens",
        )


IDENTITY = {
    "model_artifact_sha256": ("model", "sha256", "model"),
    "tokenizer_sha256": ("tokenizer", "sha256", "tokenizer"),
    "chat_template_sha256": ("template", "sha256", "chat template"),
}


def check_identity(envelope: Envelope, fingerprint: Fingerprint, allow_drift: bool) -> list[str]:
    """Compare the envelope's hashes with the model, tokenizer and template at hand.

    Returns:
        Findings: hashes that could not be checked, and drift that was allowed.

    Raises:
        ContractBroken: A hash differs and `allow_drift` is off.
    """
    findings = []
    for field, noun, wanted, fact in _stated(envelope, fingerprint):
        if fact is None or fact.unavailable is not None:
            reason = fact.unavailable if fact else "not probed"
            findings.append(f"{envelope.request_id}: {field} could not be checked: {reason}")
        elif fact.value != wanted:
            message = f"{envelope.request_id}: another {noun}: {field} is {wanted}, the one at hand is {fact.value}"
            if not allow_drift:
                raise ContractBroken(
                    message, f"give the {noun} that was recorded (--model), or record the difference with --allow-drift"
                )
            findings.append(f"drift allowed: {message}")
    return findings


def identity_differences(envelope: Envelope, fingerprint: Fingerprint) -> list[str]:
    """The hashes an envelope states that are not those at hand, in words."""
    return [
        f"another {noun}: {field} is {wanted}, the one at hand is {fact.text() if fact else 'not probed'}"
        for field, noun, wanted, fact in _stated(envelope, fingerprint)
        if fact is None or fact.value != wanted
    ]


def completeness(envelope: Envelope) -> list[str]:
    """What an envelope leaves out that a replay needs to be exact, in words."""
    missing = [field for field in IDENTITY if _is_silent(getattr(envelope, field))]
    findings = [f"{', '.join(missing)} not stated"] if missing else []
    if envelope.prompt_token_ids is None:
        findings.append("no prompt_token_ids: a tokenizer or template change could not be told from a numeric one")
    telling = ["temperature", "max_tokens"]
    if envelope.sampling.temperature != 0:
        telling += ["top_p", "top_k", "seed"]
    silent = [name for name in telling if getattr(envelope.sampling, name) is None]
    if silent:
        findings.append(f"sampling is silent on {', '.join(silent)}: defaults of the engine will apply")
    unfilled = [name for name, value in envelope.runtime if isinstance(value, str) and is_placeholder(value)]
    if unfilled:
        findings.append(f"runtime placeholders not filled in: {', '.join(unfilled)}")
    return findings


def _stated(envelope: Envelope, fingerprint: Fingerprint) -> Iterator[tuple[str, str, str, Fact | None]]:
    """(field, noun, stated digest, fact at hand) of every identity hash that the envelope states."""
    for field, (section, name, noun) in IDENTITY.items():
        wanted: str | None = getattr(envelope, field)
        if not _is_silent(wanted):
            yield field, noun, str(wanted).lower().removeprefix("sha256:"), fingerprint.get(section, name)


def _is_silent(value: str | None) -> bool:
    return value is None or is_placeholder(value)


def unstated_identity(envelopes: Sequence[Envelope]) -> list[str]:
    """One finding for each identity hash that some envelope leaves out or as a placeholder."""
    findings = []
    for field, (_, _, noun) in IDENTITY.items():
        values = [getattr(envelope, field) for envelope in envelopes]
        silent = sum(_is_silent(value) for value in values)
        if silent:
            findings.append(f"{silent} of {len(values)} envelopes do not state {field}: the {noun} was not checked")
    return findings
