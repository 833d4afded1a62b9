"""Requests in the text logs of engines: vLLM's `--enable-log-requests`, and SGLang's JSON behind a time.

Nothing of a line is executed: its literals are read as literals.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from ...schemas.base import parse_json_object
from .exchange import Json

_LOG_LINE = re.compile(
    rb"(?:INFO|WARNING|DEBUG|ERROR) \d\d-\d\d \d\d:\d\d:\d\d |\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"
)
_MOST_PREFIX = 300
"""Bytes in which the time stands, behind what a container or journald puts before a line."""
_RECEIVED = re.compile(r"Received request (\S{1,200}): ")
_DETAILS = re.compile(r"Request (\S{1,200}) details: prompt: ")
_OBJECT = re.compile(r"<[^<>]{0,200}>")
_KEPT = frozenset(
    {
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "max_tokens",
        "min_tokens",
    }
    | {"presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "bad_words", "logit_bias"}
    | {"allowed_token_ids", "skip_special_tokens", "include_stop_str_in_output", "logprobs"}
)
"""Fields of SamplingParams that a client can state."""


class EngineLog:
    """The requests of one log, line by line."""

    def __init__(self) -> None:
        self._prompts: dict[str, Any] = {}

    @staticmethod
    def is_line(line: bytes) -> bool:
        """Whether a line is of an engine's text log."""
        return _LOG_LINE.search(line[:_MOST_PREFIX]) is not None

    def read(self, line: bytes, where: str) -> Json | None:
        """A line of an OpenAI batch, or of SGLang's log, that says the same; None of all other lines.

        Args:
            line: Of the log.
            where: What to call it in an error.
        """
        start = line.find(b' {"', 0, _MOST_PREFIX)
        if start >= 0 and line.rstrip().endswith(b"}"):
            found = parse_json_object(line[start:].strip(), where)
            return found if "event" in found or "obj" in found else None
        text = line.decode("utf-8", "replace")
        if (details := _DETAILS.search(text[:1000])) is not None:
            self._prompts[details[1]] = _prompt_of(text[details.end() :])
            return None
        received = _RECEIVED.search(text[:1000])
        return None if received is None else self._request(received[1], text[received.end() :])

    def _request(self, name: str, text: str) -> Json | None:
        head, sign, rest = text.rpartition("params: SamplingParams(")
        if not sign:
            return None
        prompt = self._prompts.pop(name, None)
        if head.startswith("prompt: "):
            ids = rest.rpartition(", prompt_token_ids: ")[2].partition(", lora_request")[0]
            prompt = _ids(ids) or _literal(head.removeprefix("prompt: ").rstrip().removesuffix(","))
        if not prompt:
            return None
        body = {"prompt": prompt, **_sampling(rest)}
        return {"custom_id": name, "body": body}


def _prompt_of(text: str) -> Any:
    """Token ids where a line states them, else the text."""
    written, _, rest = text.rpartition(", prompt_token_ids: ")
    return _ids(rest.partition(", prompt_embeds")[0]) or _literal(written)


def _ids(text: str) -> list[int] | None:
    found = _literal(text.strip().rstrip("."))
    return found if isinstance(found, list) and all(type(one) is int for one in found) else None


def _sampling(text: str) -> Json:
    """The stated fields of `…)` after `SamplingParams(`."""
    for end in (", prompt_token_ids: ", ", lora_request: ", ", prompt_embeds"):
        text = text.partition(end)[0]
    try:
        call = ast.parse(f"f({_OBJECT.sub('None', text.rstrip('. '))}", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return {}
    found = {}
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        if keyword.arg not in _KEPT:
            continue
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            continue
        if value is not None and value != [] and not (keyword.arg == "top_k" and value in (0, -1)):
            found[keyword.arg] = value
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
