"""What all fake inference servers have in common: routes, streams, and the ways in which they go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.upstream import in_thread

Json = dict[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


@dataclass
class FakeServer:
    """What all have in common. Subclasses answer `METHOD /path` with a method of their own.

    Attributes:
        fault: How generations go wrong. In the middle of an answer: `dies` (the connection breaks), `exits`
            (the process ends), `drips` (only comments come any more), `cut` (JSON breaks off, then the end),
            `ends` (the end comes too early, in order). At once: `status:N`, `html`, `shape` (other JSON).
        split: How streams are cut: `bytes`; empty: event by event.
        line_end: Of events.
        together: Generations begin only when so many were asked for.
    """

    fault: str = ""
    split: str = ""
    line_end: bytes = b"\n"
    together: int = 1
    url: str = ""
    requests: list[tuple[str, Json]] = field(default_factory=list)
    cancelled: int = 0
    retry_after: str = "7"

    def asked(self, path: str) -> list[Json]:
        """The bodies of all requests to a path."""
        return [body for where, body in self.requests if where == path]

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        asked = json.loads(body) if body else {}
        self.requests.append((path, asked))
        answer = getattr(self, f"{scope['method']}_{path.strip('/').replace('/', '_')}", None)
        if answer is None:
            await reply(send, {"error": "Not Found"}, 404)
            return
        work = asyncio.ensure_future(answer(asked, send))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        self.cancelled += not work.done()
        gone.cancel()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def generation(self, send: Send, path: str) -> bool:
        """Whether to go on with a generation; waits for those that belong together."""
        while len(self.asked(path)) < self.together:
            await asyncio.sleep(0.002)
        if self.fault.startswith("status:"):
            status = int(self.fault.removeprefix("status:"))
            await reply(send, self.error(f"error {status}"), status, {"retry-after": self.retry_after})
        elif self.fault == "html":
            await reply_raw(send, b"<html>Bad gateway</html>", "text/html")
        elif self.fault == "shape":
            await self.stream(send, [{"surprise": [1, 2]}])
        else:
            return True
        return False

    def error(self, message: str) -> Any:
        """An error as this server words it."""
        return {"error": {"message": message, "type": "server_error", "code": 500}}

    async def stream(self, send: Send, events: Sequence[Any], done: bool = False) -> None:
        """Server-sent events."""
        end = self.line_end * 2
        whole = [b"data: " + json.dumps(event).encode() + end for event in events]
        if done:
            whole.append(b"data: [DONE]" + end)
        await self.pieces(send, whole, "text/event-stream", b": still here" + end)

    async def pieces(self, send: Send, pieces: list[bytes], kind: str, idle: bytes) -> None:
        """A streamed body, with the fault of this server in it."""
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def more(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        for index, piece in enumerate(pieces):
            if index == 2 and self.fault == "dies":
                await more(piece[:9])
                return  # without an end: the connection is closed
            if index == 2 and self.fault == "exits":
                print("RuntimeError: the device is gone", flush=True)
                os._exit(9)
            if index == 2 and self.fault == "cut":
                await more(piece[:9])
                break
            if index == 2 and self.fault == "ends":
                break
            while index == 2 and self.fault == "drips":
                await more(idle)
                await asyncio.sleep(0.01)
            for byte in piece if self.split == "bytes" else ():
                await more(bytes([byte]))
            if self.split != "bytes":
                await more(piece)
        await send({"type": "http.response.body", "body": b""})


async def reply(send: Send, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
    await reply_raw(send, json.dumps(value).encode(), "application/json", status, headers)


async def reply_raw(
    send: Send, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None
) -> None:
    pairs = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def models(owner: str, *names: str, **more: Any) -> Json:
    entries = [{"id": name, "object": "model", "created": 1, "owned_by": owner, **more} for name in names]
    return {"object": "list", "data": entries}


@contextlib.contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serve until the context ends; `url` is where."""
    with in_thread(server) as server.url:
        yield server
