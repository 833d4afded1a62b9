"""What a user asks on the command line, as an envelope holds it: prompt or messages, sampling fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..schemas.errors import BadInput


def asked_prompt(
    prompt: str | None, prompt_file: Path | None, chat: str | None, messages: Path | None
) -> tuple[str | None, list[dict[str, Any]] | None]:
    """The one prompt that the options give: its text, or chat messages.

    Raises:
        BadInput: None or several of them are given, or a file cannot be used.
    """
    if sum(given is not None for given in (prompt, prompt_file, chat, messages)) != 1:
        raise BadInput("say what was asked, once", "give one of --prompt, --prompt-file, --chat, --messages")
    if chat is not None:
        return None, [{"role": "user", "content": chat}]
    if prompt is not None:
        return prompt, None
    path = prompt_file or messages
    try:
        text = Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(
            f"{path}: cannot be read: {reason}", "check the path, its permissions and encoding"
        ) from None
    if prompt_file is not None:
        return text, None
    try:
        spoken = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{path}: not JSON: {error.msg} (line {error.lineno})", "correct the file there"
        ) from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply", "give a plain list of messages") from None
    if spoken == [] or not isinstance(spoken, list) or not all(isinstance(item, dict) for item in spoken):
        found = "the list of messages is empty" if spoken == [] else "a list of messages was expected"
        raise BadInput(f"{path}: {found}", 'for example [{"role": "user", "content": "Hi"}]')
    return None, spoken


def asked_sampling(pairs: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts: JSON where it is JSON, else the text itself.

    Raises:
        BadInput: No such field, or a value that does not fit it.
    """
    from pydantic import ValidationError

    from ..schemas.base import describe_validation_error
    from ..schemas.envelope import Sampling

    stated: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise BadInput(f"--sampling {pair}: not KEY=VALUE", "for example --sampling temperature=0")
        if key not in Sampling.model_fields:
            raise BadInput(
                f"--sampling {pair}: no such field", f"choose of: {', '.join(Sampling.model_fields)}"
            )
        try:
            stated[key] = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            stated[key] = text
        try:
            Sampling.model_validate({key: stated[key]})
        except ValidationError as error:
            said = describe_validation_error(error).removeprefix(f"{key}: ")
            raise BadInput(
                f"--sampling {pair}: {said}", "docs/formats.md describes the sampling fields"
            ) from None
    _check_runnable(stated)
    return stated


def _check_runnable(stated: dict[str, Any]) -> None:
    """Refuse what each field may hold, but no engine can run."""
    most, least = stated.get("max_tokens"), stated.get("min_tokens")
    for name, fault, mend in (
        ("max_tokens", most == 0, "there is nothing to generate; give at least 1"),
        (
            "min_tokens",
            most is not None and least is not None and least > most,
            "more than max_tokens; lower it",
        ),
        ("allowed_token_ids", stated.get("allowed_token_ids") == [], "so no token may follow; name some"),
        ("stop", "" in _listed(stated.get("stop")), "an empty string stands in every text; leave it out"),
        (
            "bad_words",
            "" in _listed(stated.get("bad_words")),
            "an empty string stands in every text; leave it out",
        ),
    ):
        if fault:
            wrong, _, fix = mend.partition("; ")
            value = json.dumps(stated[name], ensure_ascii=False)
            raise BadInput(f"--sampling {name}={value} cannot run: {wrong}", fix)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
