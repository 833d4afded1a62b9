"""Server-sent events, read incrementally: bytes in, whole events out (WHATWG HTML, section 9.2).

An event may arrive in any number of pieces; what is not whole yet waits here.
"""

from __future__ import annotations

MOST_EVENT_BYTES = 32 << 20
"""Longest event that is waited for: far more than a token with its distribution."""


class EventTooLong(Exception):
    """What arrives is no stream of events, or an event that nobody would send."""


class EventReader:
    """Splits a byte stream into the `data` of its events."""

    def __init__(self) -> None:
        self._pending = b""
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes → the data of the events that are whole with them.

        Lines may end in CR LF, LF or CR. Comments and other fields are left out; several `data` lines of one
        event are joined by LF.

        Raises:
            EventTooLong: No event ends within `MOST_EVENT_BYTES`.
        """
        if self._after_cr and piece:  # the LF of a CR LF that was cut in two
            piece, self._after_cr = piece.removeprefix(b"\n"), False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, self._pending = (self._pending + piece).split(b"\n\n")
        if len(self._pending) > MOST_EVENT_BYTES:
            raise EventTooLong
        found = [_data(block) for block in blocks]
        return [data for data in found if data is not None]

    def rest(self) -> bytes:
        """What arrived after the last whole event, comments aside: not empty where it broke off in one."""
        lines = [line for line in self._pending.split(b"\n") if not line.startswith(b":")]
        return b"\n".join(lines).strip()


def _data(block: bytes) -> bytes | None:
    lines = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
