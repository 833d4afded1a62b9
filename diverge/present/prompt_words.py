"""The first words of a request's prompt, so that people know which one it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .format import plain

if TYPE_CHECKING:
    from ...schemas.trace import TraceHeader

LONGEST = 60
"""Characters, cut between words where there is a space."""


def prompt_words(header: TraceHeader | None) -> dict[str, str]:
    """Request id → first words of what was asked: the last message of the user, or the text of the prompt.

    Requests whose envelope holds no text (token ids only, or redacted) are not there.
    """
    if header is None:
        return {}
    found = {one.request_id: _prompt_of(one.envelope) for one in header.requests if one.envelope is not None}
    return {name: _first(text) for name, text in found.items() if text.strip()}


def _prompt_of(envelope: dict[str, Any]) -> str:
    messages = envelope.get("messages")
    if isinstance(messages, list):
        users = [one for one in messages if isinstance(one, dict) and one.get("role") == "user"]
        return _text(users[-1].get("content")) if users else ""
    text = envelope.get("prompt_text")
    return text if isinstance(text, str) else ""


def _text(content: object) -> str:
    """Of a message: a text, or the texts among its parts."""
    if isinstance(content, str):
        return content
    parts: Iterable[Any] = content if isinstance(content, list) else ()
    return " ".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


def _first(text: str) -> str:
    line = plain(" ".join(text[: 8 * LONGEST].split()))
    if len(line) <= LONGEST:
        return line
    cut = line[:LONGEST]
    return f"{cut.rsplit(' ', 1)[0] if ' ' in cut else cut}…"
