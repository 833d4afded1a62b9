"""Calls of tools as text, so that answers which are compared as text differ where their calls do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...schemas.base import canonical_json


def with_calls(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """The text of an answer, followed by one line of canonical JSON a call.

    Args:
        text: What was said beside the calls.
        calls: As the OpenAI API tells them. Their ids are left out: they are drawn anew for every answer.
    """
    lines = [text] if text else []
    for call in calls:
        function = call.get("function") or {}
        said = {"name": function.get("name"), "arguments": function.get("arguments")}
        lines.append(canonical_json(said).decode())
    return "\n".join(lines)
