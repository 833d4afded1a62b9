"""From an envelope to what an engine runs, or why it cannot: prompt, sampling and golden tokens, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fingerprint
from ...schemas.lane import Setting
from ...schemas.trace import Mode
from ..wire import invalid_sampling, shortened
from .batches import ResolvedRequest
from .client_fields import check_honoured, structured_output, unsent_fields
from .contract import (
    ANSWERED_TEXT,
    PROGRAMS,
    about_request,
    check_constraints,
    check_prompt,
    check_vocabulary,
    is_repeatable,
    left_to_server,
    redacted_sampling,
    resolve_sampling,
    silent_defaults,
    with_sampling,
)
from .findings import Findings, finding

_NOTHING: Mapping[str, Any] = MappingProxyType({})
UNKNOWN_LENGTH = 2**31 - 1
"""Vocabulary or context of a server that does not report its own."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do. A replay that needs more is refused before it starts."""

    modes: tuple[Mode, ...] = ("free",)
    sites: bool = False
    """Layers can be observed."""
    logits_hash: bool = False
    """Equal logits can be proved; else only log-probabilities can be compared."""
    seed: bool = True
    """A seed chooses the draws."""
    token_ids: bool = True
    """Takes a prompt as token ids, and returns the ids that it generated. Else there is only text."""
    most_topk: int | None = None
    """Largest K of the distributions that it returns; 0: none at all, None: no limit."""
    logprobs: Literal["raw", "processed", "unknown", "none"] = "raw"
    """Whether they are those before the logits processors and the temperature."""
    batch: Literal["static", "concurrent"] = "static"
    """`static`: the sequences of a batch share every forward pass. `concurrent`: they are sent together, and
    the engine's scheduler decides."""
    starts: bool = True
    """rip can start it, and so start it again; else it is only called by its URL."""
    taps: bool = False
    """A server that runs already shows its sites only through the folder that taps in it write to."""


def check_capabilities(engine: str, can: Capabilities, mode: str, sites: bool) -> None:
    """Refuse, before any work, what an engine does not support.

    Raises:
        BadInput: It does not support the mode, or the capture of sites.
    """
    if mode not in can.modes:
        raise BadInput(
            f"the engine {engine} does not support mode {mode}", f"choose one of: {', '.join(can.modes)}"
        )
    if sites and not can.sites:
        raise BadInput(
            f"the engine {engine} does not support the capture of sites",
            "use --capture tokens, without --sites",
        )


def known_vocabulary(engine_size: int, fingerprint: Fingerprint) -> int:
    """How many token ids there are: as the engine reports, else as the model's files say."""
    stated = fingerprint.get("model", "vocab_size")
    if engine_size < UNKNOWN_LENGTH or stated is None or not isinstance(stated.value, int):
        return engine_size
    return stated.value


def vocabulary_size(engine_size: int, fingerprint: Fingerprint, otherwise: str = "") -> int:
    """How many token ids there are to draw from (see `known_vocabulary`).

    Args:
        otherwise: What else fixes it where neither is known.

    Raises:
        BadInput: Neither is known.
    """
    known = known_vocabulary(engine_size, fingerprint)
    if known < UNKNOWN_LENGTH:
        return known
    raise BadInput(
        "the size of the vocabulary is not known: the server does not report it",
        f"name the model's files with --model{', ' if otherwise else ''}{otherwise}",
    )


Golden = dict[tuple[str, int], tuple[int, ...]]
"""(request_id, sample) → generated token ids."""


def golden_for(envelope: Envelope, golden: tuple[Golden, Path] | None) -> dict[int, tuple[int, ...]]:
    """Tokens to force for one envelope, by sample; none of them empty.

    Raises:
        BadInput: The envelope has no expected tokens and no trace was given, or the trace lacks the request
            or its tokens.
    """
    if golden is None:
        if envelope.expected is None or not envelope.expected.token_ids:
            raise BadInput(
                f"{envelope.request_id}: no recorded tokens to force: expected.token_ids is missing or empty",
                "give a trace with --golden, or record the envelope with its answer",
            )
        return {0: tuple(envelope.expected.token_ids)}
    trace, path = golden
    found = {
        sample: tokens for (request_id, sample), tokens in trace.items() if request_id == envelope.request_id
    }
    if not found:
        raise BadInput(
            f"{envelope.request_id}: not in the golden trace {path}",
            "record it there, or leave it out of the set",
        )
    if not all(found.values()):
        raise BadInput(
            f"{envelope.request_id}: the golden trace {path} holds no generated token of it",
            "give a trace of a run that came to its end",
        )
    return found


class Target(Protocol):
    """An opened engine, as far as a request is checked against it (see `engines.base.Engine`)."""

    capabilities: Capabilities
    """Of the class: at most this. Of the opened engine: this."""
    vocab_size: int
    """2^31 − 1 where it is not known."""
    context_length: int
    """Likewise."""
    sampling_defaults: Mapping[str, Any] | None
    """What applies where the envelope is silent, by the names of generation_config.json; None: the server
    has defaults of its own and does not report them."""
    sampling_defaults_from: str
    """Where they come from, as a source of settings."""
    sends_client_fields: bool
    """Whatever else the client stated (`envelope.request`) is sent as it was."""

    @property
    def unsupported_sampling(self) -> frozenset[str]:
        """Sampling fields that this engine does not support."""

    def has_tokenizer(self) -> bool:
        """Whether stop strings and bad words can be searched for."""

    def tokenize(self, envelope: Envelope) -> list[int]:
        """Token ids of a prompt text, or of chat messages and tools through the model's template.

        Raises:
            BadInput: There is no tokenizer, or no template for messages.
        """


def resolve_request(
    envelope: Envelope,
    engine: Target,
    mode: Mode,
    golden: tuple[Golden, Path] | None,
    findings: Findings,
    sampling_stated: Mapping[str, Any] = _NOTHING,
) -> ResolvedRequest:
    """One envelope with prompt, sampling and golden tokens, checked against the model.

    Args:
        golden: Tokens of a golden trace, with its path; None takes them from the envelope.
        findings: Gets what a reader of the trace should know.
        sampling_stated: Sampling fields of the replay, in place of the envelope's.

    Raises:
        BadInput: This engine or model cannot run it.
    """
    name, forced = envelope.request_id, mode != "free"
    envelope = with_sampling(envelope, sampling_stated)
    with about_request(name):
        if not forced and not engine.sends_client_fields:
            envelope = _with_client_fields(envelope, engine, findings)
        sampling = resolve_sampling(
            envelope,
            engine.sampling_defaults,
            engine.unsupported_sampling - (PROGRAMS if forced else frozenset()),
            engine.sampling_defaults_from,
            sampling_stated,
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
    tokens_of = golden_for(envelope, golden) if forced else {}
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


def _with_client_fields(envelope: Envelope, engine: Target, findings: Findings) -> Envelope:
    """The request with the constraint that the client stated under a name of its own, as a sampling field.

    Raises:
        BadInput: The engine cannot keep to it, so that its answer would be another one.
    """
    check_honoured(envelope, "structured_outputs" not in engine.unsupported_sampling)
    unsent = unsent_fields(envelope)
    reported = invalid_sampling(unsent)  # among them by their names in an envelope
    shown = {name: shortened(value) for name, value in unsent.items() if name not in reported}
    if shown:
        findings.add(finding("fields-not-sent", fields=shown), envelope.request_id)
    if "request" in (envelope.redactions or {}):
        findings.add(finding("fields-redacted"), envelope.request_id)
    stated = structured_output(envelope)
    return envelope if stated is None else with_sampling(envelope, {"structured_outputs": stated[1]})


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
    return engine.tokenize(envelope)


def _check_text(envelope: Envelope) -> None:
    """Refuse an envelope that an engine which takes only text cannot run."""
    if not envelope.messages and envelope.prompt_text is None:
        raise BadInput(
            "the envelope holds no text, and this engine takes nothing else",
            "replay it on an engine that takes token ids, or give prompt_text or messages",
        )
