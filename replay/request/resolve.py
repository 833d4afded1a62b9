"""From an envelope to what an engine runs: prompt, sampling and golden tokens, checked against the model."""

from __future__ import annotations

from pathlib import Path

from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput
from ...schemas.trace import Mode, Setting
from ..engines.base import Engine
from ..proxy.request import unread_sampling
from .batches import Requested
from .contract import (
    ANSWERED_TEXT,
    check_constraints,
    check_prompt,
    check_vocabulary,
    is_repeatable,
    left_to_server,
    redacted_sampling,
    resolve_sampling,
    silent_defaults,
)
from .findings import Findings
from .golden import Golden, golden_for
from .identity import shortened


def requested(
    envelope: Envelope, engine: Engine, mode: Mode, golden: tuple[Golden, Path] | None, findings: Findings
) -> Requested:
    """One envelope with prompt, sampling and golden tokens, checked against the model.

    Args:
        envelope: The request.
        engine: What will run it.
        mode: How.
        golden: Tokens of a golden trace, with its path; None takes them from the envelope.
        findings: Told what a reader of the trace should know.

    Raises:
        BadInput: This engine or model cannot run it.
    """
    name = envelope.request_id
    sampling = resolve_sampling(
        envelope, engine.sampling_defaults, engine.unsupported_sampling, engine.sampling_defaults_from
    )
    if not engine.capabilities.token_ids:
        _check_text(envelope)
        sampling = left_to_server(sampling)
    forced = mode != "free"
    for field, value in unread_sampling(envelope.request).items() if not forced else ():
        findings.add(f"{field} was stated as {shortened(value)}, which it cannot be: it does not apply", name)
    silent = None if forced else silent_defaults(sampling)
    if silent:
        findings.add(silent, name)
    if envelope.expected is not None and not forced and not is_repeatable(sampling):
        findings.add(
            "recorded above temperature 0 without a seed: its answer is not expected to come again", name
        )
    removed = redacted_sampling(envelope)
    if removed and not forced:
        raise BadInput(
            f"{name}: sampling.{removed[0]} was redacted, so its tokens cannot be chosen as they were",
            "replay the envelope that was not redacted, or force its tokens with a golden mode",
        )
    unknown = envelope.unknown_fields()
    if unknown:
        findings.add(f"fields this rip does not know were kept: {', '.join(unknown)}", name)
    prompt = _prompt(envelope, engine, findings) if engine.capabilities.token_ids else []
    check_constraints(name, sampling, engine.vocab_size, engine.has_tokenizer(), forced)
    tokens_of: dict[int, tuple[int, ...]] = {}
    if not forced:
        sampling = _within_context(sampling, len(prompt), engine.context_length)
        wanted = int(sampling["max_tokens"].resolved)
        if wanted == 0:
            raise BadInput(
                f"{name}: max_tokens is 0: there is nothing to generate",
                "raise sampling.max_tokens, or score recorded tokens with --mode golden-prefill",
            )
    else:
        trace, path = golden if golden else (None, None)
        tokens_of = golden_for(envelope, trace, path)
        wanted = max(len(tokens) for tokens in tokens_of.values())
        for tokens in tokens_of.values():
            check_vocabulary(name, "the golden tokens", tokens, engine.vocab_size)
    if engine.capabilities.token_ids:
        check_prompt(name, prompt, wanted, engine.vocab_size, engine.context_length)
    return Requested(envelope, tuple(prompt), sampling, tokens_of)


def _within_context(
    sampling: dict[str, Setting], prompt_tokens: int, context_length: int
) -> dict[str, Setting]:
    """The same; a limit that only says how much a recorded text can take gives way to the context."""
    limit = sampling["max_tokens"]
    room = max(1, context_length - prompt_tokens)
    if limit.source != ANSWERED_TEXT or int(limit.resolved) <= room:
        return sampling
    return {**sampling, "max_tokens": limit.model_copy(update={"resolved": room})}


def _prompt(envelope: Envelope, engine: Engine, findings: Findings) -> list[int]:
    if envelope.prompt_token_ids is not None:
        return envelope.prompt_token_ids
    if envelope.prompt_text is None and not envelope.messages:
        raise BadInput(
            f"{envelope.request_id}: the prompt was redacted, token ids included",
            "replay the envelope that was not redacted",
        )
    findings.add("token ids were made from text here; the envelope holds none", envelope.request_id)
    try:
        return engine.tokenize(envelope.prompt_text, envelope.messages, envelope.tools)
    except BadInput as error:
        raise BadInput(f"{envelope.request_id}: {error.message}", error.fix) from error


def _check_text(envelope: Envelope) -> None:
    """Refuse an envelope that an engine which takes only text cannot run."""
    if not envelope.messages and envelope.prompt_text is None:
        raise BadInput(
            f"{envelope.request_id}: the envelope holds no text, and this engine takes nothing else",
            "replay it on an engine that takes token ids, or give prompt_text or messages",
        )
