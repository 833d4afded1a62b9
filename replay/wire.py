"""What HTTP carries, as bytes and text: names of sampling fields, tool calls, server-sent events.

It does not know what the data means. Events are kept as the bytes they came in, so that what is not rewritten
is passed on unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..schemas.base import canonical_json, exactly_representable
from ..schemas.envelope import Sampling

OTHER_NAMES = {"max_completion_tokens": "max_tokens", "n_predict": "max_tokens"}
"""Other names of a sampling field; where both are stated, these count, as they do in the engines."""
SGLANG_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""Likewise, as SGLang's own API calls them."""
HIDDEN = "[redacted]"
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
            name: HIDDEN if is_secret(name) and isinstance(item, str) else without_secrets(item, is_secret)
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


MAX_EVENT_BYTES = 64 << 20
"""An event without an end is given up beyond this: it is no event stream, or a hostile one."""
# Atomic groups, because "\r\n" is one line end and must never be taken for two.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OVERLAP = 3
"""Bytes of a blank line ("\\r\\n\\r\\n") that can stand before the end of a chunk."""


class EventTooLong(Exception):
    """An event has no end within `MAX_EVENT_BYTES`."""


class Splitter:
    """Cuts a stream of bytes, in whatever chunks it comes, into whole events."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes, each with the blank line that ends it.

        Raises:
            EventTooLong: See there; `rest` has what was held.
        """
        searched = max(0, len(self._held) - _OVERLAP)
        self._held += chunk
        events, start = [], 0
        for found in _BLANK_LINE.finditer(self._held, searched):
            events.append(bytes(self._held[start : found.end()]))
            start = found.end()
        del self._held[:start]
        if len(self._held) > MAX_EVENT_BYTES:
            raise EventTooLong
        return events

    def rest(self) -> bytes:
        """What came after the last whole event; nothing is held afterwards."""
        rest = bytes(self._held)
        self._held.clear()
        return rest


def data_of(event: bytes) -> bytes | None:
    """The data of an event, its lines joined by newlines; None where it carries none (a comment, a ping)."""
    lines = [value.removeprefix(b" ") for line, _ in _lines(event) if (value := _data_of(line)) is not None]
    return b"\n".join(lines) if lines else None


def with_data(event: bytes, data: bytes) -> bytes:
    """The same event with this data, one line of it, where its first data line stood."""
    written, done = [], False
    for line, end in _lines(event):
        if _data_of(line) is None:
            written.append(line + end)
        elif not done:
            mark = _BYTE_ORDER_MARK if line.startswith(_BYTE_ORDER_MARK) else b""
            written.append(mark + b"data: " + data + end)
            done = True
    return b"".join(written)


def _lines(event: bytes) -> list[tuple[bytes, bytes]]:
    return [(found[1], found[2]) for found in _LINE.finditer(event) if found[0]]


def _data_of(line: bytes) -> bytes | None:
    """What follows the name of a data line; None for any other line."""
    name, _, value = line.removeprefix(_BYTE_ORDER_MARK).partition(b":")
    return value if name == b"data" else None
