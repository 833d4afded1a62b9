"""From text or chat messages to token ids and back, through the model's own tokenizer and template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...schemas.errors import BadInput, first_line


def tokenize(
    tokenizer: Any | None,
    text: str | None,
    messages: list[dict[str, Any]] | None,
    tools: list[dict[str, Any]] | None,
) -> list[int]:
    """Token ids of a prompt.

    Args:
        tokenizer: A transformers tokenizer, or None where the model has none.
        text: A prompt text; special tokens are added as the tokenizer does by default.
        messages: Chat messages, rendered with the model's template and a generation prompt. They win over
            the text.
        tools: Tool descriptions for the template.

    Raises:
        BadInput: No tokenizer, no template, messages that the template refuses, or half a character.
    """
    if tokenizer is None:
        raise BadInput(
            "the model folder holds no tokenizer",
            "give prompt_token_ids, or add tokenizer.json to the folder",
        )
    if messages and not getattr(tokenizer, "chat_template", None):
        raise BadInput(
            "the model has no chat template", "give prompt_text or prompt_token_ids instead of messages"
        )
    rendered = _render(tokenizer, messages, tools) if messages else text or ""
    try:
        rendered.encode("utf-8")
    except UnicodeEncodeError:
        raise BadInput(
            "the prompt holds half a character (a lone surrogate), which no tokenizer takes",
            "correct the text",
        ) from None
    # A template writes its own special tokens.
    return list(tokenizer.encode(rendered, add_special_tokens=not messages))


def texts_of(tokenizer: Any | None, token_ids: Iterable[int]) -> dict[int, str]:
    """The text of each single token, for display; empty without a tokenizer."""
    return {} if tokenizer is None else {token: str(tokenizer.decode([token])) for token in token_ids}


def text_of(tokenizer: Any | None, token_ids: Sequence[int]) -> str | None:
    """Text of generated tokens as servers return it: without special ones, such as that of the end."""
    return None if tokenizer is None else str(tokenizer.decode(token_ids, skip_special_tokens=True))


def _render(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        )
    except Exception as error:  # a template is a program; whatever it raises is about the messages
        raise BadInput(
            f"the chat template refuses the messages: {first_line(error)}", "check roles and contents"
        ) from error
