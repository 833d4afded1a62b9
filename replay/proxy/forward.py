"""The proxy itself, an ASGI application: every request is passed on, every answer is passed back.

Streams are never held back, bodies that are not recorded are not read, and a client that goes away cancels
its request upstream at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

from ...schemas.envelope import BROKE_OFF, DISCONNECTED, FAILED, STOPPED
from ..sse import EventTooLong, Splitter, data_of, with_data
from .asgi import (
    ClientGone,
    Headers,
    Incoming,
    Message,
    Receive,
    Send,
    end_to_end,
    leave_out,
    send_body,
    send_end,
    send_error,
    send_start,
)
from .call import Call, credentials
from .exchange import Json
from .recorder import NONE, Additions, Recorder, request_id_of, route_of, without

MOST_BODY_BYTES = 64 << 20
"""A larger request, or whole answer, is passed on unrecorded: it is never in memory at once."""
_REFUSALS = (400, 422)
"""How servers refuse a field that they do not know."""
_DECODED = ("gzip", "deflate")


class Proxy:
    """An ASGI application that passes everything on to one upstream.

    Args:
        upstream: Its address, without a final slash.
        client: Sends requests; must follow no redirects and set no time limit on reading.
        recorder: Gets every request that passes.
    """

    def __init__(self, upstream: str, client: httpx.AsyncClient, recorder: Recorder) -> None:
        self._upstream = httpx.URL(upstream)
        self._client = client
        self._recorder = recorder
        self.was_unreachable = False
        """The upstream did not answer since this was last set back."""
        self.until_known: Callable[[], Awaitable[None]] | None = None
        """Holds a request to be recorded until the upstream is identified, within bounds."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        headers: Headers = list(scope["headers"])
        chat = route_of(scope["method"], scope["path"])
        request_id = request_id_of(headers)
        chosen = self._recorder.chooses(chat, request_id)
        incoming = Incoming(receive)
        try:
            if not chosen or chat is None:
                await incoming.while_connected(self._pass_on(scope, headers, incoming, send))
                return
            body = await incoming.read(MOST_BODY_BYTES)
        except ClientGone:
            return
        request = _json_object(body) if incoming.is_whole else None
        if request is None:
            if not incoming.is_whole:
                self._recorder.counts.too_large += 1
            await incoming.while_connected(self._pass_on(scope, headers, incoming, send))
            return
        if self.until_known is not None:
            await self.until_known()
        secrets = credentials(headers, scope["query_string"])
        call = self._recorder.begin(chat, scope["path"], request, len(body), request_id, secrets)
        stayed = True
        try:
            stayed = await incoming.while_connected(self._record(scope, headers, body, call, send))
        except asyncio.CancelledError:
            call.end(STOPPED)
            raise
        except Exception as error:
            self._recorder.say(f"a request failed inside rip ({type(error).__name__}: {error})")
            raise
        finally:
            if call.ended is None:
                call.end(FAILED if stayed else DISCONNECTED)
                self._recorder.counts.disconnected += not stayed
            self._recorder.finish(call)

    async def _pass_on(self, scope: Message, headers: Headers, incoming: Incoming, send: Send) -> None:
        try:
            response = await self._sent(scope, headers, incoming.content(headers), send)
        except ClientGone:
            return
        if response is None:
            return
        try:
            await send_start(send, response.status_code, end_to_end(response.headers.raw))
            async for chunk in response.aiter_raw():
                await send_body(send, chunk)
        except httpx.RequestError:
            return  # without an end, so that the client sees the same break
        finally:
            await response.aclose()
        await send_end(send)

    async def _record(self, scope: Message, headers: Headers, body: bytes, call: Call, send: Send) -> None:
        # What is recorded must be read: an answer that is not compressed is the same answer.
        plain = [*leave_out(headers, b"accept-encoding"), (b"accept-encoding", b"identity")]
        added = self._recorder.additions(call)
        content = body if not added else json.dumps({**call.body, **added.fields}).encode()
        response = await self._sent(scope, plain, content, send)
        if added and response is not None and response.status_code in _REFUSALS:
            # Is it the client's request that is wrong, or what was added? Only the same without it shows.
            await response.aclose()
            response = await self._sent(scope, plain, body, send)
            if response is not None and response.status_code not in _REFUSALS:
                self._recorder.refuses(call, added)
            added = NONE
        if response is None:
            call.notes.append("the upstream did not answer")
            call.end(FAILED)
            return
        call.status = response.status_code
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        call.streamed = kind == "text/event-stream"
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        try:
            await self._answer(response, added, encoding in _DECODED, call, send)
        except httpx.RequestError:
            call.end(BROKE_OFF)
            self._recorder.counts.broken += 1
        finally:
            await response.aclose()

    async def _answer(
        self, response: httpx.Response, added: Additions, decode: bool, call: Call, send: Send
    ) -> None:
        """Pass a recorded answer back."""
        passed = end_to_end(response.headers.raw)
        source = response.aiter_bytes() if decode else response.aiter_raw()
        if decode:
            passed = leave_out(passed, b"content-encoding", b"content-length")
        if not added or call.status != 200:
            await send_start(send, response.status_code, passed)
            async for chunk in source:
                call.keep(chunk)
                await send_body(send, chunk)
        elif call.streamed:
            await send_start(send, response.status_code, leave_out(passed, b"content-length"))
            await _stripped_stream(source, added, call, send)
        else:
            await _stripped_body(source, response.status_code, passed, added, call, send)
        call.end()
        await send_end(send)

    async def _sent(
        self, scope: Message, headers: Headers, content: bytes | AsyncIterator[bytes], send: Send
    ) -> httpx.Response | None:
        """The beginning of the upstream's answer; None where there is none, and the client got an error."""
        try:
            return await self._client.send(self._request(scope, headers, content), stream=True)
        except (httpx.InvalidURL, UnicodeDecodeError):
            await send_error(send, 400, "rip record: the path of the request is not a URL")
        except httpx.RequestError as error:
            self._recorder.counts.unreachable += 1
            self.was_unreachable = True
            await send_error(send, 502, _reason(error))
        return None

    def _request(
        self, scope: Message, headers: Headers, content: bytes | AsyncIterator[bytes]
    ) -> httpx.Request:
        path = scope.get("raw_path") or scope["path"].encode()
        query = scope["query_string"]
        target = self._upstream.raw_path.rstrip(b"/") + path + (b"?" + query if query else b"")
        sent = leave_out(end_to_end(headers), b"host", b"expect")
        if isinstance(content, bytes):
            sent = leave_out(sent, b"content-length")
        return httpx.Request(
            scope["method"], self._upstream.copy_with(raw_path=target), headers=sent, content=content or None
        )


async def _stripped_stream(source: AsyncIterator[bytes], added: Additions, call: Call, send: Send) -> None:
    """Pass each event on as soon as it is whole, without what was added."""
    splitter = Splitter()
    is_stream = True
    try:
        async for chunk in source:
            call.keep(chunk)
            if not is_stream:
                await send_body(send, chunk)
                continue
            try:
                events = splitter.feed(chunk)
            except EventTooLong:
                is_stream = False
                await send_body(send, splitter.rest())
                continue
            await send_body(send, b"".join(_stripped_event(event, added) for event in events))
    finally:
        # A stream that breaks off inside an event breaks off there for the client as well.
        await send_body(send, splitter.rest())


def _stripped_event(event: bytes, added: Additions) -> bytes:
    data = data_of(event)
    payload = None if data is None else _json_object(data)
    if payload is None:
        return event
    rest = without(payload, added, chunk=True)
    return b"" if rest is None else with_data(event, _compact(rest))


async def _stripped_body(
    source: AsyncIterator[bytes], status: int, headers: Headers, added: Additions, call: Call, send: Send
) -> None:
    """Pass a whole answer on, without what was added."""
    parts: list[bytes] = []
    size = 0
    async for chunk in _or_error(source, send):
        call.keep(chunk)
        parts.append(chunk)
        size += len(chunk)
        if size > MOST_BODY_BYTES:  # the additions cannot be removed from it without holding it
            call.notes.append("the answer was too large to remove the additions from it")
            await send_start(send, status, headers)
            await send_body(send, b"".join(parts))
            async for more in source:
                call.keep(more)
                await send_body(send, more)
            return
    body = b"".join(parts)
    payload = _json_object(body)
    rest = None if payload is None else without(payload, added, chunk=False)
    if rest is not None:
        body = _compact(rest)
    length = (b"content-length", str(len(body)).encode())
    await send_start(send, status, [*leave_out(headers, b"content-length"), length])
    await send_body(send, body)


async def _or_error(source: AsyncIterator[bytes], send: Send) -> AsyncIterator[bytes]:
    """The same, but the client gets an error if it breaks off: nothing of it was passed on yet."""
    try:
        async for chunk in source:
            yield chunk
    except httpx.RequestError as error:
        await send_error(send, 502, _reason(error))
        raise


def _compact(payload: Json) -> bytes:
    try:
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a character, which JSON can only escape
        return json.dumps(payload, separators=(",", ":")).encode()


def _json_object(text: bytes) -> Json | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reason(error: httpx.RequestError) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "rip record: the upstream server cannot be reached"
    return f"rip record: the upstream server closed the connection without an answer ({type(error).__name__})"
