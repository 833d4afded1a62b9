"""A request to an OpenAI-compatible API and its answer, and the envelopes that they become.

What the client left out stays left out: silence is a fact about the request. Answers come from outside:
whatever does not have the expected type is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ...schemas.envelope import FAILED
from ..wire import OTHER_NAMES, split_sampling

Json = dict[str, Any]

_PROMPT_FIELDS = frozenset({"prompt", "messages", "tools", "logprobs", "top_logprobs"})


@dataclass(frozen=True)
class Prompt:
    """One prompt of a completions request, as text or as token ids. Of a chat neither."""

    text: str | None = None
    token_ids: list[int] | None = None


@dataclass(frozen=True)
class ClientRequest:
    """One request to completions or chat completions."""

    chat: bool
    prompts: tuple[Prompt, ...]
    """Empty where the request has none that an envelope can hold."""
    messages: list[Json] | None = None
    tools: list[Json] | None = None
    sampling: Json = field(default_factory=dict)
    logprobs: int | None = None
    """How many the client requested; 0: of the chosen tokens only."""
    rest: Json = field(default_factory=dict)
    """Whatever else the client stated."""
    samples: int = 1
    """n"""
    echo: bool = False


def read_request(body: Json, chat: bool, is_secret: Callable[[str], bool]) -> ClientRequest:
    """Read the body of a request.

    Args:
        body: As the client sent it.
        chat: It went to chat completions.
        is_secret: Whether a field of that name holds a secret; such values are not kept.
    """
    sampling, rest = split_sampling(
        {name: value for name, value in body.items() if name not in _PROMPT_FIELDS}, OTHER_NAMES, is_secret
    )
    rest |= {name: body[name] for name in _unread_logprobs(body, chat)}
    samples = sampling.get("n", 1)
    messages = [message for message in listed(body.get("messages")) if isinstance(message, dict)]
    tools = [tool for tool in listed(body.get("tools")) if isinstance(tool, dict)]
    return ClientRequest(
        chat=chat,
        prompts=((Prompt(),) if messages else ()) if chat else _prompts(body.get("prompt")),
        messages=messages if chat and messages else None,
        tools=tools or None,
        sampling=sampling,
        logprobs=_logprobs(body, chat),
        rest=rest,
        samples=samples,
        echo=bool(body.get("echo")),
    )


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (Prompt(text=value),)
    items = listed(value)
    if as_token_ids(items):
        return (Prompt(token_ids=items),)
    if all(isinstance(item, str) for item in items):
        return tuple(Prompt(text=item) for item in items)
    if all(map(as_token_ids, items)):
        return tuple(Prompt(token_ids=item) for item in items)
    return ()


def _logprobs(body: Json, chat: bool) -> int | None:
    if not chat:
        return count_in(body, "logprobs")
    return (count_in(body, "top_logprobs") or 0) if body.get("logprobs") else None


def _unread_logprobs(body: Json, chat: bool) -> Iterator[str]:
    """What was stated about log-probabilities and an envelope's `logprobs` does not hold."""
    chosen = body.get("logprobs")
    is_read = isinstance(chosen, bool) if chat else count_in(body, "logprobs") is not None
    if chosen is not None and not is_read:
        yield "logprobs"
    if body.get("top_logprobs") is not None and not (
        chat and chosen and count_in(body, "top_logprobs") is not None
    ):
        yield "top_logprobs"


def listed(value: Any) -> list[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def count_in(holder: Json, name: str) -> int | None:
    """A field that holds a whole number from 0 on; None where it holds anything else."""
    value = holder.get(name)
    return value if type(value) is int and value >= 0 else None


def object_in(holder: Json, name: str) -> Json:
    """A field that holds an object, else an empty one."""
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def text_in(holder: Json, name: str) -> str | None:
    """A field that holds a text that is not empty, cut to what a name needs; None for anything else."""
    return _short_text(holder.get(name))


_TOKEN_ID = "token_id:"
MAX_CHOICES = 4096
"""Choices of one answer that are put together."""


@dataclass
class Choice:
    """One sample of one prompt."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scored_ids: list[int] = field(default_factory=list)
    """Token ids as the log-probabilities name them, for engines that give ids only there."""
    tool_calls: dict[int, Json] = field(default_factory=dict)
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    unscored: bool = False
    """Some token has no log-probability."""

    def expected(self, echoed: str | None) -> Json:
        """As the `expected` of an envelope.

        Args:
            echoed: The prompt that the text begins with, None where it does not.
        """
        ids = self.token_ids
        if not ids and echoed is None and len(self.scored_ids) == len(self.logprobs):
            ids = self.scored_ids
        scores = self.logprobs[-len(ids) :] if ids and echoed is not None else self.logprobs
        text = "".join(self.text)
        found: Json = {
            "token_ids": ids,
            # More tokens than scores, or the prompt's scores among them: no pairing that could be trusted.
            "logprobs": scores if not self.unscored and len(scores) == len(ids or scores) else None,
            "text": text.removeprefix(echoed) if echoed else text,
            "finish_reason": self.finish_reason,
            "reasoning": "".join(self.reasoning),
            "tool_calls": [self.tool_calls[index] for index in sorted(self.tool_calls)],
        }
        return {name: value for name, value in found.items() if value or (name == "text" and ids)}


@dataclass
class Answer:
    """Everything that one request was answered with."""

    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_token_ids: list[int] | None = None
    response_id: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    cached_tokens: int | None = None
    error: str | None = None
    """The error in the answer, which may have status 200."""

    def add(self, payload: Any) -> None:
        """Add a whole answer, or the next chunk of one."""
        if not isinstance(payload, dict):
            return
        if payload.get("error") is not None:
            self.error = error_text(payload)
        self.response_id = self.response_id or text_in(payload, "id")
        self.model = self.model or text_in(payload, "model")
        self.system_fingerprint = text_in(payload, "system_fingerprint") or self.system_fingerprint
        self.prompt_token_ids = self.prompt_token_ids or as_token_ids(payload.get("prompt_token_ids"))
        cached = count_in(object_in(object_in(payload, "usage"), "prompt_tokens_details"), "cached_tokens")
        self.cached_tokens = self.cached_tokens if cached is None else cached
        for position, choice in enumerate(listed(payload.get("choices"))):
            if isinstance(choice, dict):
                index = choice.get("index", position)
                if type(index) is int and 0 <= index < MAX_CHOICES:
                    _take(self.choices.setdefault(index, Choice()), choice)


def _take(choice: Choice, part: Json) -> None:
    message = part.get("message") or part.get("delta")
    message = message if isinstance(message, dict) else part
    for into, names in (
        (choice.text, ("content", "text")),
        (choice.reasoning, ("reasoning_content", "reasoning")),
    ):
        text = next((message[name] for name in names if isinstance(message.get(name), str)), None)
        if text:
            into.append(text)
    for position, call in enumerate(listed(message.get("tool_calls"))):
        if isinstance(call, dict):
            _take_call(choice.tool_calls, call, position)
    choice.token_ids += as_token_ids(part.get("token_ids")) or []
    choice.prompt_token_ids = choice.prompt_token_ids or as_token_ids(part.get("prompt_token_ids"))
    choice.finish_reason = text_in(part, "finish_reason") or choice.finish_reason
    _take_scores(choice, object_in(part, "logprobs"))


def _take_call(calls: dict[int, Json], part: Json, position: int) -> None:
    index = part.get("index", position)
    call = calls.setdefault(index if type(index) is int else position, {})
    call |= {name: part[name] for name in ("id", "type") if isinstance(part.get(name), str)}
    if isinstance(function := part.get("function"), dict):
        so_far = call.setdefault("function", {})
        for name in ("name", "arguments"):
            if isinstance(function.get(name), str):
                so_far[name] = so_far.get(name, "") + function[name]


def _take_scores(choice: Choice, logprobs: Json) -> None:
    if isinstance(logprobs.get("content"), list):  # chat, and llama.cpp everywhere
        entries = [entry for entry in logprobs["content"] if isinstance(entry, dict)]
        scores: list[Any] = [entry.get("logprob") for entry in entries]
        names: list[Any] = [entry.get("id", entry.get("token")) for entry in entries]
    else:
        scores, names = listed(logprobs.get("token_logprobs")), listed(logprobs.get("tokens"))
    for score in scores:
        if isinstance(score, int | float) and not isinstance(score, bool) and not math.isnan(score):
            choice.logprobs.append(float(score))
        else:
            choice.unscored = True
    ids = [_named_id(name) for name in names]
    choice.scored_ids += [token for token in ids if token is not None] if None not in ids else []


def _named_id(name: Any) -> int | None:
    if isinstance(name, str) and name.startswith(_TOKEN_ID) and name[len(_TOKEN_ID) :].isdecimal():
        return int(name[len(_TOKEN_ID) :])
    return name if type(name) is int and name >= 0 else None


def as_token_ids(value: Any) -> list[int] | None:
    """The value where it is a list of token ids, perhaps empty; else None."""
    fits = isinstance(value, list) and all(type(item) is int and 0 <= item < 2**31 for item in value)
    return value if fits else None


def _short_text(value: Any) -> str | None:
    return value[:500] if isinstance(value, str) and value else None


def error_text(payload: Any) -> str | None:
    """The message of an error as the OpenAI API writes it."""
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return _short_text(error)


@dataclass(frozen=True)
class Circumstances:
    """What is known beside request and answer.

    Attributes:
        complete: Nothing is known that makes the answer less than whole.
        ending: Why it is not, should it not be.
        context: Fields of the envelope's context.
        identity: Hashes of model, tokenizer and template.
        runtime: Fields of the envelope's runtime.
    """

    complete: bool
    ending: str | None = None
    context: Json = field(default_factory=dict)
    identity: Json = field(default_factory=dict)
    runtime: Json = field(default_factory=dict)
    fingerprint_sha256: str | None = None


def compose(request: ClientRequest, answer: Answer, base: str, known: Circumstances) -> Iterator[Json]:
    """One envelope a prompt, as JSON that `Envelope.from_object` reads.

    Args:
        answer: What arrived; may be empty.
        base: Request id; of several prompts it gets the prompt's index and becomes their batch id.
    """
    several = len(request.prompts) > 1
    for index, prompt in enumerate(request.prompts):
        raw = _envelope(request, answer, index, prompt, known)
        if several:
            raw["context"]["batch_id"] = base
        yield {"request_id": f"{base}-{index}" if several else base, **raw}


def _envelope(
    request: ClientRequest, answer: Answer, index: int, prompt: Prompt, known: Circumstances
) -> Json:
    first = index * request.samples
    samples = [answer.choices[first + i] for i in range(request.samples) if first + i in answer.choices]
    returned = next((choice.prompt_token_ids for choice in samples if choice.prompt_token_ids), None)
    ids = prompt.token_ids or returned or (answer.prompt_token_ids if len(request.prompts) == 1 else None)
    found = [choice.expected((prompt.text or "") if request.echo else None) for choice in samples]
    whole = known.complete and not answer.error and _are_whole(samples, request.samples)
    context = dict(known.context)
    if not whole and (known.ending or answer.error):
        context["finish_reason"] = known.ending or FAILED
    if found and not whole:
        context["partial"] = _of_samples(found)
    return stated(
        {
            **known.identity,
            "prompt_token_ids": ids or None,
            "prompt_text": prompt.text,
            "messages": request.messages,
            "tools": request.tools,
            "request": request.rest or None,
            "sampling": request.sampling,
            "logprobs": request.logprobs,
            "runtime": known.runtime,
            "fingerprint_sha256": known.fingerprint_sha256,
            "expected": _of_samples(found) if found and whole else None,
            "context": context,
        }
    )


def context_of(answer: Answer, status: int | None) -> Json:
    """What an answer adds to the envelope's context."""
    return stated(
        {
            "cached_tokens": answer.cached_tokens,
            "system_fingerprint": answer.system_fingerprint,
            "status": status,
            "served_model": answer.model,
            "response_id": answer.response_id,
            # What refuses a key may quote it.
            "error": answer.error if status not in (401, 403) else None,
        }
    )


def iso(moment: datetime) -> str:
    """ISO 8601 with milliseconds."""
    return moment.isoformat(timespec="milliseconds")


def stated(fields: Json) -> Json:
    """Without what is None."""
    return {name: value for name, value in fields.items() if value is not None}


def _are_whole(samples: list[Choice], wanted: int) -> bool:
    return len(samples) == wanted and all(choice.finish_reason for choice in samples)


def _of_samples(samples: list[Json]) -> Json:
    """The first sample, with those after it beside it."""
    return samples[0] if len(samples) == 1 else {**samples[0], "samples": samples[1:]}
