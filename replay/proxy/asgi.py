"""The server's side of HTTP: reading a client's request, noticing that it left, sending an answer (ASGI)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade"}
)


class ClientGone(Exception):
    """The client closed the connection before its request was whole."""


class Incoming:
    """The request of a client, read as far as it must be."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read = b""
        self._all = asyncio.Event()

    @property
    def is_whole(self) -> bool:
        """Everything was read."""
        return self._all.is_set()

    async def read(self, most: int) -> bytes:
        """The body, or its beginning where it is longer.

        Raises:
            ClientGone: Before it was whole.
        """
        parts, size = [], 0
        while not self.is_whole and size <= most:
            parts.append(await self._next())
            size += len(parts[-1])
        self._read = b"".join(parts)
        return self._read

    def content(self, headers: Headers) -> bytes | AsyncIterator[bytes]:
        """What is left to be sent on; nothing is read for it beforehand."""
        if self.is_whole:
            return self._read
        has_body = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers)
        if not has_body:
            self._all.set()  # what receive() gives next is the empty body or the end
            return b""
        return self._stream()

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run until it is done or the client goes away, which cancels it.

        Returns:
            False if the client went away.
        """
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return True
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is not None:
                await task
            return False
        finally:
            task.cancel()
            watch.cancel()

    async def _stream(self) -> AsyncIterator[bytes]:
        if self._read:
            yield self._read
            self._read = b""
        while not self.is_whole:
            yield await self._next()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body"):
            self._all.set()
        body: bytes = message.get("body", b"")
        return body

    async def _gone(self) -> None:
        await self._all.wait()
        while (await self._receive())["type"] != "http.disconnect":
            continue


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are not for one connection only."""
    pairs = list(headers)
    named = {
        word.strip().lower()
        for name, value in pairs
        if name.lower() == b"connection"
        for word in value.split(b",")
    }
    return [pair for pair in pairs if pair[0].lower() not in _HOP_BY_HOP | named]


def leave_out(headers: Headers, *names: bytes) -> Headers:
    """The headers without those of these names."""
    return [pair for pair in headers if pair[0].lower() not in names]


async def send_start(send: Send, status: int, headers: Headers) -> None:
    """Begin an answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_body(send: Send, chunk: bytes) -> None:
    """The next bytes of an answer; waits while the client does not take them."""
    if chunk:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def send_end(send: Send) -> None:
    """The end of a whole answer."""
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_error(send: Send, status: int, why: str) -> None:
    """The proxy's own error, in the form of the OpenAI API."""
    error = {"message": why, "type": "upstream_error", "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send_start(send, status, headers)
    await send_body(send, body)
    await send_end(send)
