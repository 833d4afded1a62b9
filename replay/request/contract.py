"""The request contract: which sampling values apply and where each came from, and what a model cannot run.

Whether it is the recorded model at all is asked in identity.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ...schemas.base import describe_validation_error
from ...schemas.envelope import Envelope, Expected, Sampling
from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fingerprint
from ...schemas.trace import Setting
from ..engines.base import UNKNOWN_LENGTH

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

INHERITED = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
}
"""Fields that vLLM's server takes from the model's generation_config.json, and their names there."""

PROGRAMS = frozenset({"structured_outputs", "logits_processors"})
"""Fields that hold a program or a grammar, which an engine in this process cannot carry out."""

GENERATION_CONFIG = "generation_config"
"""Source of a value that comes from the model's generation_config.json."""

TOLD_BY_SERVER = "told by the server"
"""Source of a default that the server itself names."""

ANSWERED_LENGTH = "length of the recorded answer"
"""Source of a limit of tokens that was not stated: that many were answered."""

ANSWERED_TEXT = "no less than the recorded text can take"
"""Source of a limit of tokens that was not stated, of an answer whose token ids are not known."""

SERVER_DEFAULT = "server default"
"""Source of a value that is left to the server, which does not tell it."""

_UNSEEN_TOKENS = 16
"""Tokens of an answer that its text may not show: marks of the end, of reasoning, of calls."""

LEFT_TO_TEXT_SERVERS = ("presence_penalty", "frequency_penalty", "seed")
"""Fields whose defaults a server that tells only text may have set otherwise, beside those of `INHERITED`."""


def resolve_sampling(
    envelope: Envelope,
    generation_config: Mapping[str, Any] | None,
    unsupported: frozenset[str] = PROGRAMS,
    inherited_from: str = GENERATION_CONFIG,
) -> dict[str, Setting]:
    """Every sampling field with its value and source: envelope, generation_config or engine default.

    Args:
        envelope: The request.
        generation_config: What applies where it is silent, before the engine's default; None: the server has
            defaults that it does not tell. Then they are left to it, and the value is None.
        unsupported: Fields that the engine has no word for.
        inherited_from: Where those defaults come from.

    Raises:
        BadInput: The envelope asks for something that this engine cannot do, where silence would change the
            answer; or the model's generation_config holds a value that cannot apply.
    """
    asked = envelope.sampling
    for name in sorted(unsupported):
        value = getattr(asked, name)
        if value and value != ENGINE_DEFAULTS.get(name):
            raise BadInput(
                f"{envelope.request_id}: sampling.{name} cannot be replayed on this engine",
                "replay on the engine that recorded it, or remove the field to replay without it",
            )
    if asked.allowed_token_ids == []:
        raise BadInput(
            f"{envelope.request_id}: sampling.allowed_token_ids is empty, so no token may follow",
            "name the allowed tokens, or remove the field",
        )
    for name in ("stop", "bad_words"):
        if "" in _stated_value(asked, name, []):
            raise BadInput(
                f"{envelope.request_id}: sampling.{name} holds an empty string, which every text contains",
                "remove the empty string",
            )
    resolved: dict[str, Setting] = {}
    for name, default in ENGINE_DEFAULTS.items():
        value = _stated_value(asked, name, None)
        inherited = (generation_config or {}).get(INHERITED.get(name, ""))
        if value is not None:
            resolved[name] = Setting(requested=value, resolved=value, source="envelope")
        elif inherited is not None and not (name == "max_tokens" and _answered_length(envelope)[0]):
            _check_inherited(name, inherited)
            resolved[name] = Setting(resolved=inherited, source=inherited_from)
        elif name == "max_tokens" and (length := _answered_length(envelope))[0]:
            resolved[name] = Setting(resolved=length[0], source=length[1])
        elif generation_config is None and name in INHERITED and name != "max_tokens":
            resolved[name] = Setting(source=SERVER_DEFAULT)
        else:
            resolved[name] = Setting(resolved=default, source="engine default")
    return resolved


def is_repeatable(sampling: Mapping[str, Setting]) -> bool:
    """Whether the request, as it was recorded, fixes its tokens: greedy, or with a seed that was stated."""
    return sampling["temperature"].resolved == 0 or sampling["seed"].source == "envelope"


def _answered_length(envelope: Envelope) -> tuple[int, str]:
    """Tokens of the longest recorded answer: where no limit was stated, the server's own let so many come.

    Returns:
        How many, and where that comes from. Of a text whose token ids are not known, as many as it can take:
        a byte a token, and a few that no text shows.
    """
    expected = envelope.expected
    answers = [] if expected is None else [expected, *(expected.samples or ())]
    tokens = max((len(answer.token_ids or ()) for answer in answers), default=0)
    if tokens:
        return tokens, ANSWERED_LENGTH
    written = max((len(_written(answer).encode("utf-8", "replace")) for answer in answers), default=0)
    return (written + _UNSEEN_TOKENS if written else 0), ANSWERED_TEXT


def _written(answer: Expected) -> str:
    calls = json.dumps(answer.tool_calls) if answer.tool_calls else ""
    return f"{answer.text or ''}{answer.reasoning or ''}{calls}"


def left_to_server(sampling: Mapping[str, Setting]) -> dict[str, Setting]:
    """The sampling of a request to a server that tells only text: what the envelope leaves out is not sent.

    A seed above all: one of rip's own would make every sample of a statistic the same.
    """
    unsent = [name for name in LEFT_TO_TEXT_SERVERS if sampling[name].source != "envelope"]
    return {**sampling, **dict.fromkeys(unsent, Setting(source=SERVER_DEFAULT))}


def silent_defaults(sampling: Mapping[str, Setting]) -> str | None:
    """Which fields that decide the tokens were silent in the envelope, and what applied; None: none."""
    telling = ["temperature", "max_tokens"]
    if sampling["temperature"].resolved != 0:
        telling[1:1] = ["top_p", "top_k", "min_p", "seed"]
    applied: dict[str, list[str]] = {}
    for name in telling:
        if sampling[name].source != "envelope":
            known = sampling[name].source != SERVER_DEFAULT
            said_of = f"{name}={sampling[name].resolved}" if known else name
            applied.setdefault(sampling[name].source, []).append(said_of)
    if not applied:
        return None
    said = (f"{', '.join(values)} ({source})" for source, values in applied.items())
    return f"the envelope is silent, so these applied: {'; '.join(said)}"


def redacted_sampling(envelope: Envelope) -> list[str]:
    """Sampling fields whose values were removed by redaction, so that nobody can apply them."""
    names = (name.partition(".") for name in envelope.redactions or {})
    return [field for part, _, field in names if part == "sampling"]


def check_prompt(
    request_id: str, prompt: Sequence[int], wanted: int, vocab_size: int, context_length: int
) -> None:
    """Refuse what the model cannot run.

    Raises:
        BadInput: Empty prompt, a token id outside the vocabulary, or more tokens than the context holds.
    """
    if not prompt:
        raise BadInput(
            f"{request_id}: the prompt has no tokens", "give prompt_token_ids, prompt_text or messages"
        )
    check_vocabulary(request_id, "the prompt", prompt, vocab_size)
    if len(prompt) + wanted > context_length:
        raise BadInput(
            f"{request_id}: {len(prompt)} prompt tokens and {wanted} to generate exceed "
            f"the context of {context_length}",
            "shorten the prompt or lower sampling.max_tokens",
        )


def misfits(envelope: Envelope, fingerprint: Fingerprint) -> list[str]:
    """What a replay in this process would refuse, as far as envelope and model files tell, in words."""
    sizes = []
    for name in ("vocab_size", "context_length"):
        known = fingerprint.get("model", name)
        sizes.append(known.value if known is not None and isinstance(known.value, int) else 2**31)
    wanted = envelope.sampling.max_tokens or 0
    found: list[str] = []
    for check in (
        lambda: resolve_sampling(envelope, {}, PROGRAMS),
        lambda: check_prompt(
            envelope.request_id, envelope.prompt_token_ids or (0,), wanted, sizes[0], sizes[1]
        ),
    ):
        try:
            check()
        except BadInput as error:
            found.append(error.message.removeprefix(f"{envelope.request_id}: "))
    return found


def known_vocabulary(engine_size: int, fingerprint: Fingerprint) -> int | None:
    """How many token ids there are: as the engine says, else as the model's files do; None: neither does."""
    if engine_size < UNKNOWN_LENGTH:
        return engine_size
    known = fingerprint.get("model", "vocab_size")
    return known.value if known is not None and isinstance(known.value, int) else None


def check_vocabulary(request_id: str, holder: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Refuse token ids that the model does not have.

    Args:
        holder: Where the ids stand, for the message.

    Raises:
        BadInput: One of them is outside the vocabulary.
    """
    worst = max(tokens, default=0)
    if worst >= vocab_size:
        raise BadInput(
            f"{request_id}: token id {worst} in {holder} is outside the vocabulary of {vocab_size}",
            "it was made with another tokenizer: give the model it was recorded with (--model)",
        )


def check_constraints(
    request_id: str, sampling: Mapping[str, Setting], vocab_size: int, has_tokenizer: bool, forced: bool
) -> None:
    """Refuse, before anything runs, constraints that this model cannot be put under.

    Args:
        forced: Recorded tokens are forced, so that no stop string is looked for.

    Raises:
        BadInput: A token id outside the vocabulary, or text without a tokenizer to compare it with.
    """
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        ids = [int(token) for token in sampling[name].resolved]
        check_vocabulary(request_id, f"sampling.{name}", ids, vocab_size)
    for name, instead in (("stop", "stop_token_ids"), ("bad_words", "logit_bias")):
        unused = forced and name == "stop"
        if sampling[name].resolved and not has_tokenizer and not unused:
            raise BadInput(
                f"{request_id}: sampling.{name} needs a tokenizer, and the model folder has none",
                f"add tokenizer.json to the folder, or state {instead} in its place",
            )


def _stated_value(asked: Sampling, name: str, silent: Any) -> Any:
    value = getattr(asked, name)
    if value is None:
        return silent
    return asked.stop_strings() if name == "stop" else value


def _check_inherited(name: str, value: Any) -> None:
    try:
        Sampling.model_validate({name: value})
    except ValidationError as error:
        raise BadInput(
            f"generation_config.json of the model: {INHERITED[name]} cannot apply: "
            f"{describe_validation_error(error)}",
            f"correct it there, or state sampling.{name} in the envelope",
        ) from None
