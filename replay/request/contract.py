"""The request contract: which sampling values apply and where each came from, and what a model cannot run.

Whether it is the recorded model at all is checked in identity.py.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from ...schemas.base import describe_validation_error
from ...schemas.envelope import Envelope, Expected, Sampling
from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fingerprint
from ...schemas.lane import OF_OPTION, Setting
from ...schemas.trace import Finding
from .client_fields import check_honoured
from .findings import finding

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
"""Fields that hold a program or a grammar, which an engine in this process does not support."""

GENERATION_CONFIG = "generation_config"
"""Source of a value that comes from the model's generation_config.json."""

REPORTED_BY_SERVER = "told by the server"
"""Source of a default that the server itself reports."""

ANSWERED_LENGTH = "length of the recorded answer"
"""Source of a limit of tokens that was not stated: that many were answered."""

ANSWERED_TEXT = "no less than the recorded text can take"
"""Source of a limit of tokens that was not stated, of an answer whose token ids are not known."""

SERVER_DEFAULT = "server default"
"""Source of a value that is left to the server, which does not report it."""

_UNSEEN_TOKENS = 16
"""Tokens of an answer that its text may not show: special tokens of the end, of reasoning, of tool calls."""

LEFT_TO_TEXT_SERVERS = ("presence_penalty", "frequency_penalty", "seed")
"""Fields whose defaults a server that returns only text may have set differently, beside `INHERITED`."""


@contextmanager
def about_request(request_id: str) -> Iterator[None]:
    """Refusals inside are about this request: their messages begin with its id.

    Raises:
        BadInput: Whatever is refused inside.
    """
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{request_id}: {error.message}", error.fix) from error


def resolve_sampling(
    envelope: Envelope,
    generation_config: Mapping[str, Any] | None,
    unsupported: frozenset[str] = PROGRAMS,
    inherited_from: str = GENERATION_CONFIG,
    overridden: Collection[str] = (),
) -> dict[str, Setting]:
    """Every sampling field with its value and source: envelope, generation_config or engine default.

    Args:
        generation_config: What applies where it is silent, before the engine's default; None: the server has
            defaults that it does not report. Then they are left to it, and the value is None.
        unsupported: Fields that the engine does not support.
        inherited_from: Where those defaults come from.
        overridden: Fields of `envelope` that the replay states (see `with_sampling`).

    Raises:
        BadInput: The envelope states something that this engine does not support, where leaving it out would
            change the answer; or the model's generation_config holds a value that cannot apply.
    """
    _check_stated(envelope.sampling, unsupported)
    length, length_source = _answered_length(envelope)
    resolved: dict[str, Setting] = {}
    for name, default in ENGINE_DEFAULTS.items():
        value = _stated_value(envelope.sampling, name)
        inherited = (generation_config or {}).get(INHERITED.get(name, ""))
        if value is not None:
            resolved[name] = Setting(requested=value, resolved=value, source=_source(name, overridden))
        elif name == "max_tokens" and length:
            resolved[name] = Setting(resolved=length, source=length_source)
        elif inherited is not None:
            _check_inherited(name, inherited)
            resolved[name] = Setting(resolved=inherited, source=inherited_from)
        elif generation_config is None and name in INHERITED and name != "max_tokens":
            resolved[name] = Setting(source=SERVER_DEFAULT)
        else:
            resolved[name] = Setting(resolved=default, source="engine default")
    return resolved


def _source(name: str, overridden: Collection[str]) -> str:
    return OF_OPTION if name in overridden else "envelope"


def with_sampling(envelope: Envelope, stated: Mapping[str, Any]) -> Envelope:
    """The request with other sampling fields, each valid by itself; the rest as it was recorded."""
    if not stated:
        return envelope
    return envelope.model_copy(update={"sampling": envelope.sampling.model_copy(update=dict(stated))})


def _check_stated(sampling: Sampling, unsupported: frozenset[str]) -> None:
    """Refuse stated fields that this engine does not support, and values that contradict themselves."""
    for name in sorted(unsupported):
        value = getattr(sampling, name)
        if value and value != ENGINE_DEFAULTS.get(name):
            raise BadInput(
                f"sampling.{name} is not supported by this engine",
                "replay on the engine that recorded it, or remove the field to replay without it",
            )
    if sampling.allowed_token_ids == []:
        raise BadInput(
            "sampling.allowed_token_ids is empty, so no token may follow",
            "name the allowed tokens, or remove the field",
        )
    for name in ("stop", "bad_words"):
        if "" in (_stated_value(sampling, name) or ()):
            raise BadInput(
                f"sampling.{name} holds an empty string, which every text contains",
                "remove the empty string",
            )


def is_repeatable(sampling: Mapping[str, Setting]) -> bool:
    """Whether the request, as it was recorded, fixes its tokens: greedy, or with a seed that was stated."""
    return sampling["temperature"].resolved == 0 or sampling["seed"].is_stated


def _answered_length(envelope: Envelope) -> tuple[int, str]:
    """Tokens of the longest recorded answer: where no limit was stated, the server allowed that many.

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
    """The sampling of a request to a server that returns only text: what the envelope leaves out is not sent.

    Above all no seed: one of rip's own would make every sample of a statistic the same.
    """
    unsent = [name for name in LEFT_TO_TEXT_SERVERS if not sampling[name].is_stated]
    return {**sampling, **dict.fromkeys(unsent, Setting(source=SERVER_DEFAULT))}


def silent_defaults(sampling: Mapping[str, Setting]) -> Finding | None:
    """Which fields that decide the tokens the envelope does not state, and what applied; None: none."""
    deciding = ["temperature", "max_tokens"]
    if sampling["temperature"].resolved != 0:
        deciding[1:1] = ["top_p", "top_k", "min_p", "seed"]
    applied: dict[str, dict[str, Any]] = {}
    for name in deciding:
        if not sampling[name].is_stated:
            applied.setdefault(sampling[name].source, {})[name] = sampling[name].resolved
    return finding("sampling-defaults", applied=applied) if applied else None


def redacted_sampling(envelope: Envelope) -> list[str]:
    """Sampling fields whose values were removed by redaction, so that nobody can apply them."""
    names = (name.partition(".") for name in envelope.redactions or {})
    return [field for part, _, field in names if part == "sampling"]


def check_prompt(prompt: Sequence[int], wanted: int, vocab_size: int, context_length: int) -> None:
    """Refuse what the model cannot run.

    Raises:
        BadInput: Empty prompt, a token id outside the vocabulary, or more tokens than the context holds.
    """
    if not prompt:
        raise BadInput("the prompt has no tokens", "give prompt_token_ids, prompt_text or messages")
    check_vocabulary("the prompt", prompt, vocab_size)
    if len(prompt) + wanted > context_length:
        raise BadInput(
            f"{len(prompt)} prompt tokens and {wanted} to generate exceed the context of {context_length}",
            "shorten the prompt or lower sampling.max_tokens",
        )


def refusals(envelope: Envelope, fingerprint: Fingerprint) -> list[Finding]:
    """What a replay in this process would refuse, as far as envelope and model files show."""
    vocab_size, context_length = (
        known.value if known is not None and isinstance(known.value, int) else 2**31
        for known in (fingerprint.get("model", name) for name in ("vocab_size", "context_length"))
    )
    prompt, wanted = envelope.prompt_token_ids or (0,), envelope.sampling.max_tokens or 0
    found: list[Finding] = []
    for check in (
        lambda: resolve_sampling(envelope, {}, PROGRAMS),
        lambda: check_honoured(envelope, grammars=False),
        lambda: check_prompt(prompt, wanted, vocab_size, context_length),
    ):
        try:
            check()
        except BadInput as error:
            found.append(finding("refused", error=error.message))
    return found


def check_vocabulary(holder: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Refuse token ids that the model does not have.

    Args:
        holder: Where the ids stand, for the message.

    Raises:
        BadInput: One of them is outside the vocabulary.
    """
    largest = max(tokens, default=0)
    if largest >= vocab_size:
        raise BadInput(
            f"token id {largest} in {holder} is outside the vocabulary of {vocab_size}",
            "it comes from a different tokenizer: give the model that it was recorded with (--model)",
        )


def check_constraints(
    sampling: Mapping[str, Setting], vocab_size: int, has_tokenizer: bool, forced: bool
) -> None:
    """Refuse, before anything runs, constraints that this model cannot be put under.

    Args:
        forced: Recorded tokens are forced, so that no stop string is searched for.

    Raises:
        BadInput: A token id outside the vocabulary, or text without a tokenizer to compare it with.
    """
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        check_vocabulary(f"sampling.{name}", [int(token) for token in sampling[name].resolved], vocab_size)
    for name, instead in (("stop", "stop_token_ids"), ("bad_words", "logit_bias")):
        unused = forced and name == "stop"
        if sampling[name].resolved and not has_tokenizer and not unused:
            raise BadInput(
                f"sampling.{name} needs a tokenizer, and the model folder has none",
                f"add tokenizer.json to the folder, or state {instead} in its place",
            )


def _stated_value(sampling: Sampling, name: str) -> Any:
    value = getattr(sampling, name)
    return sampling.stop_strings() if name == "stop" and value is not None else value


def _check_inherited(name: str, value: Any) -> None:
    try:
        Sampling.model_validate({name: value})
    except ValidationError as error:
        raise BadInput(
            f"generation_config.json of the model: {INHERITED[name]} cannot apply: "
            f"{describe_validation_error(error)}",
            f"correct it there, or state sampling.{name} in the envelope",
        ) from None
