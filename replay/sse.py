"""Server-sent events: an answer that comes in pieces is split into events, byte for byte."""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 64 << 20
"""An event without an end is given up beyond this: it is no event stream, or a hostile one."""


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
