"""One asynchronous HTTP client for all server engines: JSON, event streams, errors; and its event loop.

No request is ever repeated silently: a second try would be a different execution. What the answers mean
is the engines' business.

The loop runs in a thread of its own. anyio's portal does not fit: its cancellation repeats at every await,
and what is interrupted still has to hand over what it received.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx

from ....schemas import redact
from ....schemas.errors import EngineFailed, first_line
from ...sse import MAX_EVENT_BYTES, EventTooLong, Splitter, data_of

T = TypeVar("T")

LAST_S = 5.0
"""Longest time that what was interrupted has to hand over what it has, and to close its connections."""


class BackgroundLoop:
    """Runs coroutines for a thread that has no loop. It ends with `close`, and with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rip-http", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine and wait for it; it is cancelled where the waiting is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items as they come. Leaving the iteration early cancels what produces them.

        Where the waiting is interrupted, so is what produces them, and the items that it still has come
        before the interruption goes on.
        """
        handed: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for item in items:
                    handed.put(("item", item))
            except Exception as error:  # raised again where it is waited for
                handed.put(("error", error))
            finally:
                handed.put(("end", None))
                stopped.set()

        stopped = threading.Event()
        future = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                kind, value = handed.get()
                if kind == "error":
                    raise value
                if kind == "end":
                    return
                yield value
        except KeyboardInterrupt:
            future.cancel()
            yield from _last(handed)
            raise
        finally:
            if not stopped.is_set():
                future.cancel()
                stopped.wait(LAST_S)  # until its connections are closed

    def close(self) -> None:
        """End the loop. May be called twice."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()


def _last(handed: queue.SimpleQueue[tuple[str, Any]]) -> Iterator[Any]:
    """The items that still come of something that was interrupted, until it ends or takes too long."""
    until = time.monotonic() + LAST_S
    while True:
        try:
            kind, value = handed.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return
        if kind != "item":
            return
        yield value


MOST_BYTES = 1 << 30
"""Of one whole answer; a long prompt with its log-probabilities has some hundred megabytes."""
MOST_MESSAGE = 300
"""Characters of a server's own error message that are shown."""
CONNECT_S = 10.0
_UP = "check that the server is up, and its log"


UNEXPECTED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading an answer of an unexpected form raises."""


class ServerError(EngineFailed):
    """The server reported an error; `server_message` is its own text."""

    server_message = ""


class Refused(ServerError):
    """The server answered with an error status."""

    status = 0


def unexpected(engine: str, error: Exception) -> EngineFailed:
    """The error for an answer of a form that the engine's servers do not have."""
    return EngineFailed(
        f"the answer does not have the form of {engine}: {type(error).__name__}: {shown(str(error))}",
        "check that --engine is what serves there, in a version of docs/engines.md; --debug shows where",
    )


class HttpClient:
    """Calls one server. Every method runs in the event loop that made it.

    Args:
        url: Scheme, host, port and path prefix, without `/v1`.
        api_key: Sent as a bearer token, to this server only.
        timeout_s: Seconds until an answer that has not ended is given up.
    """

    def __init__(self, url: str, api_key: str | None, timeout_s: float) -> None:
        self.url = url
        self._secrets = () if api_key is None else (api_key,)
        self._timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # a proxy of the environment would be used for 127.0.0.1 too
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and wait for the whole answer.

        Raises:
            EngineFailed: No answer, an error status, or no JSON.
        """
        async with self._answer(method, path, body) as response:
            content = bytearray()
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise EngineFailed(f"{self._at(path)} answers without an end", _UP)
        return self._parsed(bytes(content), path)

    async def events(self, path: str, body: Any) -> AsyncIterator[Any]:
        """Send a request and yield the JSON of every event as it arrives, until `[DONE]` or the stream's end.

        Raises:
            EngineFailed: No answer, an error status, or a stream that breaks off, stalls or is no stream.
        """
        splitter = Splitter()
        async with self._answer("POST", path, body) as response:
            self._check_kind(path, response, "text/event-stream")
            async for piece in response.aiter_bytes():
                try:
                    found = splitter.feed(piece)
                except EventTooLong:
                    raise EngineFailed(f"{self._at(path)} does not stream events", _UP) from None
                for data in map(data_of, found):
                    if data == b"[DONE]":
                        return
                    if data is not None:
                        yield self._parsed(data, path)
        if data_of(splitter.rest()) not in (None, b"[DONE]"):
            raise EngineFailed(f"{self._at(path)}: the stream broke off inside an event", _UP)

    async def answers(self, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        """The events of a stream, or the one answer where `body` requests none.

        Raises:
            EngineFailed: As `events` and `json`.
        """
        if body["stream"]:
            async for event in self.events(path, body):
                yield event
        else:
            yield await self.json("POST", path, body)

    async def lines(self, path: str, body: Any) -> AsyncIterator[Any]:
        """Like `events`, for a stream of JSON lines.

        Raises:
            EngineFailed: As `events`.
        """
        pending = b""
        async with self._answer("POST", path, body) as response:
            self._check_kind(path, response, "application/")
            async for piece in response.aiter_bytes():
                *whole, pending = (pending + piece).split(b"\n")
                if len(pending) > MAX_EVENT_BYTES:
                    raise EngineFailed(f"{self._at(path)} does not stream lines", _UP)
                for line in whole:
                    if line.strip():
                        yield self._parsed(line, path)
        if pending.strip():
            if not pending.rstrip().endswith(b"}"):
                raise EngineFailed(f"{self._at(path)}: the stream broke off inside a line", _UP)
            yield self._parsed(pending, path)

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: Any) -> AsyncIterator[httpx.Response]:
        """An answer with status 200, its body still to come."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream(method, path, content=content, headers=headers) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise self._refusal(path, response, await _some(response))
                yield response
        except (TimeoutError, httpx.TimeoutException) as error:
            raise self._late(path, error) from None
        except httpx.ConnectError as error:
            raise EngineFailed(
                f"{self.url} cannot be reached: {first_line(error)}",
                "start the server, or correct the address of --url",
            ) from None
        except httpx.HTTPError as error:
            raise EngineFailed(f"{self._at(path)}: the connection broke: {first_line(error)}", _UP) from None

    def _check_kind(self, path: str, response: httpx.Response, wanted: str) -> None:
        kind = shown(response.headers.get("content-type", ""), self._secrets)
        if not kind.startswith(wanted):
            raise EngineFailed(
                f"{self._at(path)} answers with {kind or 'an untyped body'} where a stream was requested",
                "check that --url is the inference server itself",
            )

    def _late(self, path: str, error: Exception) -> EngineFailed:
        if isinstance(error, httpx.ConnectTimeout):
            return EngineFailed(f"{self.url} does not accept a connection", _UP)
        return EngineFailed(
            f"{self._at(path)}: no whole answer within {self._timeout_s:g} s",
            "check whether the server is stuck, or allow more with --set timeout=SECONDS",
        )

    def _refusal(self, path: str, response: httpx.Response, content: bytes) -> Refused:
        status = response.status_code
        message = shown(_server_message(content), self._secrets)
        fixes = {
            401: "put the key into a variable and name that one with --api-key-env NAME",
            403: "give a key that may do this with --api-key-env NAME",
            404: "check --url, and the model's name against those that the server lists",
            429: "the server is busy: lower --set batch_size, or try again later",
            503: "wait until the server is ready",
        }
        fix = fixes.get(
            status, _UP if status >= 500 else "check the request against what the server supports"
        )
        if after := response.headers.get("retry-after"):
            fix += f"; the server says to wait {_wait(shown(after, self._secrets))}"
        refused = Refused(f"{self._at(path)} answers {status}{f': {message}' if message else ''}", fix)
        refused.status, refused.server_message = status, message
        return refused

    def _at(self, path: str) -> str:
        return f"{self.url}{path}"

    def _parsed(self, content: bytes, path: str) -> Any:
        for secret in self._secrets:  # a server may echo it anywhere
            content = content.replace(secret.encode(), redact.HIDDEN.encode())
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise EngineFailed(
                f"{self._at(path)} does not answer with JSON",
                "check that --url is the inference server itself",
            ) from None


async def _some(response: httpx.Response) -> bytes:
    """The beginning of an error's body."""
    content = b""
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > 1 << 16:
            break
    return content


def shown(text: str, secrets: tuple[str, ...] = ()) -> str:
    """What a server said, fit for a message: without secrets, cut short."""
    text = redact.text(text, secrets)
    return text if len(text) <= MOST_MESSAGE else f"{text[:MOST_MESSAGE]}…"


def _server_message(content: bytes) -> str:
    """A server's own text about an error."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    message = value.get("message") if isinstance(value, dict) else value
    text = message if isinstance(message, str) else json.dumps(message) if message else ""
    return text


def _wait(after: str) -> str:
    """A Retry-After header for people: seconds, or a date."""
    return f"{after} s" if after.isdecimal() else f"until {after}"
