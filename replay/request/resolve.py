"""From an envelope to what an engine runs: prompt, sampling and golden tokens, checked against the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput
from ...schemas.trace import Mode, Setting
from ..wire import invalid_sampling, shortened
from .batches import ResolvedRequest
from .capabilities import Capabilities
from .contract import (
    ANSWERED_TEXT,
    about_request,
    check_constraints,
    check_prompt,
    check_vocabulary,
    is_repeatable,
    left_to_server,
    redacted_sampling,
    resolve_sampling,
    silent_defaults,
)
from .findings import Findings, finding
from .golden import Golden, golden_for


class Target(Protocol):
    """An opened engine, as far as a request is checked against it (see `engines.base.Engine`)."""

    capabilities: Capabilities
    vocab_size: int
    context_length: int
    sampling_defaults: Mapping[str, Any] | None
    sampling_defaults_from: str

    @property
    def unsupported_sampling(self) -> frozenset[str]:
        """Sampling fields that this engine does not support."""

    def has_tokenizer(self) -> bool:
        """Whether stop strings and bad words can be searched for."""

    def tokenize(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of a prompt text, or of chat messages and tools through the model's template."""


def resolve_request(
    envelope: Envelope, engine: Target, mode: Mode, golden: tuple[Golden, Path] | None, findings: Findings
) -> ResolvedRequest:
    """One envelope with prompt, sampling and golden tokens, checked against the model.

    Args:
        envelope: The request.
        engine: What will run it.
        mode: How.
        golden: Tokens of a golden trace, with its path; None takes them from the envelope.
        findings: Gets what a reader of the trace should know.

    Raises:
        BadInput: This engine or model cannot run it.
    """
    name, forced = envelope.request_id, mode != "free"
    with about_request(name):
        sampling = resolve_sampling(
            envelope, engine.sampling_defaults, engine.unsupported_sampling, engine.sampling_defaults_from
        )
        if not engine.capabilities.token_ids:
            _check_text(envelope)
            sampling = left_to_server(sampling)
        if not forced:
            _report_sampling(envelope, sampling, findings)
            _check_redacted(envelope)
        if unknown := envelope.unknown_fields():
            findings.add(finding("unknown-fields", fields=unknown), name)
        prompt = _prompt(envelope, engine, findings) if engine.capabilities.token_ids else []
        check_constraints(sampling, engine.vocab_size, engine.has_tokenizer(), forced)
    trace, path = golden or (None, None)
    tokens_of = golden_for(envelope, trace, path) if forced else {}
    with about_request(name):
        if forced:
            most_tokens = max(len(tokens) for tokens in tokens_of.values())
            for tokens in tokens_of.values():
                check_vocabulary("the golden tokens", tokens, engine.vocab_size)
        else:
            sampling = _within_context(sampling, len(prompt), engine.context_length)
            most_tokens = int(sampling["max_tokens"].resolved)
            if most_tokens == 0:
                raise BadInput(
                    "max_tokens is 0: there is nothing to generate",
                    "raise sampling.max_tokens, or score recorded tokens with --mode golden-prefill",
                )
        if engine.capabilities.token_ids:
            check_prompt(prompt, most_tokens, engine.vocab_size, engine.context_length)
    return ResolvedRequest(envelope, tuple(prompt), sampling, tokens_of)


def _report_sampling(envelope: Envelope, sampling: Mapping[str, Setting], findings: Findings) -> None:
    """What a reader should know of the sampling values of a free run."""
    name = envelope.request_id
    for field, value in invalid_sampling(envelope.request).items():
        findings.add(finding("sampling-invalid", field=field, value=shortened(value)), name)
    if silent := silent_defaults(sampling):
        findings.add(silent, name)
    if envelope.expected is not None and not is_repeatable(sampling):
        findings.add(finding("not-repeatable"), name)


def _check_redacted(envelope: Envelope) -> None:
    if removed := redacted_sampling(envelope):
        raise BadInput(
            f"sampling.{removed[0]} was redacted, so its tokens cannot be chosen as they were",
            "replay the envelope that was not redacted, or force its tokens with a golden mode",
        )


def _within_context(
    sampling: dict[str, Setting], prompt_tokens: int, context_length: int
) -> dict[str, Setting]:
    """The same; a limit that only says how much a recorded text can take gives way to the context."""
    limit = sampling["max_tokens"]
    room = max(1, context_length - prompt_tokens)
    if limit.source != ANSWERED_TEXT or int(limit.resolved) <= room:
        return sampling
    return {**sampling, "max_tokens": limit.model_copy(update={"resolved": room})}


def _prompt(envelope: Envelope, engine: Target, findings: Findings) -> list[int]:
    if envelope.prompt_token_ids is not None:
        return envelope.prompt_token_ids
    if envelope.prompt_text is None and not envelope.messages:
        raise BadInput(
            "the prompt was redacted, token ids included", "replay the envelope that was not redacted"
        )
    findings.add(finding("tokenized-here"), envelope.request_id)
    return engine.tokenize(envelope.prompt_text, envelope.messages, envelope.tools)


def _check_text(envelope: Envelope) -> None:
    """Refuse an envelope that an engine which takes only text cannot run."""
    if not envelope.messages and envelope.prompt_text is None:
        raise BadInput(
            "the envelope holds no text, and this engine takes nothing else",
            "replay it on an engine that takes token ids, or give prompt_text or messages",
        )
