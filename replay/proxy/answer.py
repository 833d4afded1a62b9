"""What an OpenAI-compatible API answered, whole or in chunks, put together choice by choice.

Answers come from outside: whatever does not have the expected type is skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .additions import Json, listed

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
        self.response_id = self.response_id or _short_text(payload.get("id"))
        self.model = self.model or _short_text(payload.get("model"))
        self.system_fingerprint = _short_text(payload.get("system_fingerprint")) or self.system_fingerprint
        self.prompt_token_ids = self.prompt_token_ids or _ids(payload.get("prompt_token_ids"))
        usage = payload.get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is int and cached >= 0:
            self.cached_tokens = cached
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
    choice.token_ids += _ids(part.get("token_ids")) or []
    choice.prompt_token_ids = choice.prompt_token_ids or _ids(part.get("prompt_token_ids"))
    choice.finish_reason = _short_text(part.get("finish_reason")) or choice.finish_reason
    if isinstance(part.get("logprobs"), dict):
        _take_scores(choice, part["logprobs"])


def _take_call(calls: dict[int, Json], part: Json, position: int) -> None:
    index = part.get("index", position)
    call = calls.setdefault(index if type(index) is int else position, {})
    for name in ("id", "type"):
        if isinstance(part.get(name), str):
            call[name] = part[name]
    function = part.get("function")
    if isinstance(function, dict):
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


def _ids(value: Any) -> list[int] | None:
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
