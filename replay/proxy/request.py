"""The request of a client to an OpenAI-compatible API, in the envelope's terms.

What the client left out stays left out: silence is a fact about the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..wire import OTHER_NAMES, split_sampling
from .additions import Json, listed

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
    if items and _are_ids(items):
        return (Prompt(token_ids=items),)
    if items and all(isinstance(item, str) for item in items):
        return tuple(Prompt(text=item) for item in items)
    if items and all(isinstance(item, list) and item and _are_ids(item) for item in items):
        return tuple(Prompt(token_ids=item) for item in items)
    return ()


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int and 0 <= item < 2**31 for item in items)


def _logprobs(body: Json, chat: bool) -> int | None:
    if chat:
        if not body.get("logprobs"):
            return None
        top = body.get("top_logprobs")
        return top if type(top) is int and top >= 0 else 0
    value = body.get("logprobs")
    return value if type(value) is int and value >= 0 else None


def _unread_logprobs(body: Json, chat: bool) -> Iterator[str]:
    """What was stated about log-probabilities and an envelope's `logprobs` does not hold."""
    chosen, top = body.get("logprobs"), body.get("top_logprobs")
    if chosen is not None and not (isinstance(chosen, bool) if chat else type(chosen) is int and chosen >= 0):
        yield "logprobs"
    if top is not None and not (chat and chosen and type(top) is int and top >= 0):
        yield "top_logprobs"
