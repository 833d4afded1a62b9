"""What the events of an answer carry beside its tokens: errors, usage, who answered, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....schemas.errors import EngineFailed
from .client import MOST_SAID, ServerError


@dataclass
class Completion:
    """What a stream of the OpenAI API has carried so far of one answer."""

    answered_by: dict[str, str] = field(default_factory=dict)
    """`model`, `system_fingerprint`."""
    cached_tokens: int | None = None
    reason: str = ""

    def take(self, event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Take one event → its choices.

        Raises:
            EngineFailed: It is an error.
        """
        check_no_error(event)
        self.answered_by |= {
            name: str(event[name]) for name in ("model", "system_fingerprint") if event.get(name)
        }
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        self.cached_tokens = details.get("cached_tokens", self.cached_tokens)
        choices: list[Mapping[str, Any]] = event["choices"]
        for choice in choices:
            self.reason = str(choice.get("finish_reason") or self.reason)
        return choices

    def check_ended(self) -> None:
        """Refuse an answer without its end.

        Raises:
            EngineFailed: It has none.
        """
        if not self.reason:
            raise unended()


def check_no_error(event: Mapping[str, Any]) -> None:
    """Refuse an error that stands where a piece of an answer should.

    Raises:
        ServerError: It is one.
    """
    if not event.get("error"):
        return
    error = event["error"]
    raise gave_up(error.get("message", error) if isinstance(error, dict) else error)


def gave_up(message: Any) -> ServerError:
    """The error for an answer that the server ended with an error of its own."""
    said = str(message)
    failed = ServerError(
        f"the server gave up: {said[:MOST_SAID]}", "request what it allows, or see the log of the server"
    )
    failed.said = said
    return failed


def unended() -> EngineFailed:
    """The error for a stream that ends before its answer does."""
    return EngineFailed("the stream ended before the answer did", "see the log of the server")
