"""From text or chat messages to token ids, through the model's own tokenizer and template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...schemas.errors import BadInput


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


def load_local_tokenizer(path: Path, model_sha256: str) -> Any | None:
    """The tokenizer of a model folder or GGUF file; None where the folder holds none.

    Raises:
        EngineFailed: It cannot be read.
    """
    from ..engines.hf.load import folder_of, load_tokenizer

    return load_tokenizer(folder_of(path, model_sha256))


def _render(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        )
    except Exception as error:  # a template is a program; whatever it raises is about the messages
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadInput(
            f"the chat template refuses the messages: {reason}", "check roles and contents"
        ) from error
