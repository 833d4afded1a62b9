"""Server-sent events as bytes: where an event ends, what data it carries, the same event with other data.

It does not know what the data means. Events are kept as the bytes they came in, so that what is not rewritten
is passed on unchanged.
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 64 << 20
"""An event without an end is given up beyond this: it is no event stream, or a hostile one."""
# Atomic groups, because "\r\n" is one line end and must never be taken for two.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
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
    lines = [value for name, value in _fields(event) if name == b"data"]
    return b"\n".join(lines) if lines else None


def with_data(event: bytes, data: bytes) -> bytes:
    """The same event with this data, one line of it, where its first data line stood."""
    written, done = [], False
    for line, end in _lines(event):
        if not _is_data(line):
            written.append(line + end)
        elif not done:
            mark = b"\xef\xbb\xbf" if line.startswith(b"\xef\xbb\xbf") else b""
            written.append(mark + b"data: " + data + end)
            done = True
    return b"".join(written)


def _lines(event: bytes) -> list[tuple[bytes, bytes]]:
    return [(found[1], found[2]) for found in _LINE.finditer(event) if found[0]]


def _fields(event: bytes) -> list[tuple[bytes, bytes]]:
    fields = []
    for line, _ in _lines(event):
        name, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        fields.append((name, value.removeprefix(b" ")))
    return fields


def _is_data(line: bytes) -> bool:
    return line.removeprefix(b"\xef\xbb\xbf").partition(b":")[0] == b"data"
