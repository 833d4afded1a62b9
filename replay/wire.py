"""What HTTP carries, as bytes and text: names of sampling fields, tool calls, server-sent events.

It does not know what the data means. Events are kept as the bytes they came in, so that what is not rewritten
is passed on unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..schemas.base import canonical_json, exactly_representable
from ..schemas.envelope import Sampling
from ..schemas.redact import HIDDEN as HIDDEN
from ..schemas.redact import hides

OTHER_NAMES = {"max_completion_tokens": "max_tokens", "n_predict": "max_tokens"}
"""Other names of a sampling field; where both are stated, these count, as they do in the engines."""
SGLANG_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""Likewise, as SGLang's own API calls them."""
SGLANG_GRAMMARS = {
    "json": "json_schema",
    "regex": "regex",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
}
"""Kind of an envelope's structured outputs → field of SGLang's sampling parameters, which is a text."""
_SHOWN_VALUE = 60
"""Characters of a stated value that a sentence shows."""


def split_sampling(
    stated: dict[str, Any], renamed: Mapping[str, str], is_secret: Callable[[str], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sampling fields, and everything else that was stated; null counts as silence.

    Args:
        stated: Fields as the client named them.
        renamed: The client's names of sampling fields that an envelope calls otherwise. Where both names are
            stated, the client's counts.
        is_secret: Whether a field of that name holds a secret.
    """
    sampling: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in stated.items():
        known = renamed.get(name, name)
        if value is None:
            continue
        if known in Sampling.model_fields and _fits(known, value):
            if known not in sampling or name != known:
                sampling[known] = value
        else:
            rest[name] = without_secrets({name: value}, is_secret)[name]
    return sampling, rest


def invalid_sampling(rest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Sampling fields among what else was stated: their values are none that such a field can have.

    Returns:
        Field of the envelope's sampling → value as it was stated.
    """
    others = {**OTHER_NAMES, **SGLANG_NAMES}
    named = {others.get(name, name): value for name, value in (rest or {}).items()}
    return {
        name: value
        for name, value in named.items()
        if name in Sampling.model_fields and not _fits(name, value)
    }


def _fits(name: str, value: Any) -> bool:
    try:
        Sampling.model_validate_json(json.dumps({name: exactly_representable(value)}))
    except ValidationError:
        return False
    return True


def shortened(value: Any) -> str:
    """A stated value as JSON, cut to what a sentence holds."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"


def without_secrets(value: Any, is_secret: Callable[[str], bool]) -> Any:
    """The same JSON with what stands under the name of a secret replaced."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if hides(name, item, is_secret) else without_secrets(item, is_secret)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item, is_secret) for item in value]
    return value


def with_calls(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """The text of an answer, followed by one line of canonical JSON a call.

    Args:
        text: The text beside the calls.
        calls: As the OpenAI API returns them. Their ids are left out: they are drawn anew for every answer.
    """
    lines = [text] if text else []
    for call in calls:
        function = call.get("function") or {}
        call_text = canonical_json({name: function.get(name) for name in ("name", "arguments")})
        lines.append(call_text.decode())
    return "\n".join(lines)


# Atomic groups, because "\r\n" is one line end and must never be taken for two.
