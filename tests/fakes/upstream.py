"""An inference server on this machine that answers as vLLM 0.32 does, and misbehaves on request.

The shapes of its answers, null fields included, are those that a real vLLM 0.32 gave. What it generates is a
function of the prompt: token i of an answer is `word_of(i)`. Run as a program it serves until it is killed:
`python upstream.py PORT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from rip.replay.proxy.serve import listening_socket

Json = dict[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

FINGERPRINT = "vllm-0.32.0-5e6272be"
WORDS = (" a", " canvas", " of", " endless", " possibilities", ".", " 東京", " 🦙")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def word_of(step: int) -> str:
    return WORDS[step % len(WORDS)]


def id_of(step: int) -> int:
    return 100 + step % len(WORDS)


def logprob_of(step: int) -> float:
    return -0.1 - step / 7


def ids_of_prompt(prompt: Any) -> list[int]:
    return prompt if isinstance(prompt, list) else [1000 + ord(letter) % 50 for letter in str(prompt)]


@dataclass
class FakeUpstream:
    """The application; `model` in a request chooses how it behaves.

    `plain`: as vLLM. `refuses`: 400 where `return_token_ids` or `logprobs` is in the request. `fails`: 500.
    `breaks`: a stream that ends after two events and half a third. `waits`: the second event comes only
    when `go_on` is set. `told`: the stream is `stream`, as it is. `zips`: compressed though not asked for.
    """

    url: str = ""
    requests: list[tuple[str, str, Json | bytes]] = field(default_factory=list)
    """(method, path with query, body) of everything that came."""
    headers: list[dict[str, str]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    """A client went away while its answer was being made."""
    stream: tuple[bytes, ...] = ()
    delay_s: float = 0.0
    """Before the first token, and as much before each other."""

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = scope["query_string"].decode()
        path = scope["raw_path"].decode() + (f"?{query}" if query else "")
        asked = json.loads(body) if body.startswith(b"{") else body
        self.requests.append((scope["method"], path, asked))
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        work = asyncio.ensure_future(self._answer(scope, path, asked, send))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self.cancelled.set()
        gone.cancel()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def _answer(self, scope: Message, path: str, asked: Any, send: Send) -> None:
        if path == "/version":
            await reply(send, {"version": "0.32.0"})
        elif path == "/v1/models":
            await reply(send, {"object": "list", "data": [{"id": "plain", "owned_by": "vllm"}]})
        elif path in (COMPLETIONS, CHAT) and isinstance(asked, dict):
            await self._generate(path == CHAT, asked, send)
        elif path.startswith("/echo"):
            content = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
            pairs = [
                (b"x-method", scope["method"].encode()),
                (b"set-cookie", b"a=1"),
                (b"set-cookie", b"b=2"),
            ]
            await send({"type": "http.response.start", "status": 207, "headers": pairs})
            await send({"type": "http.response.body", "body": content})
        else:
            await reply(send, {"detail": "Not Found"}, 404)

    async def _generate(self, chat: bool, asked: Json, send: Send) -> None:
        behaviour = asked.get("model", "plain")
        wants = {"return_token_ids", "logprobs"} & {
            name for name, value in asked.items() if value is not None
        }
        if behaviour == "fails":
            await reply(
                send, {"error": {"message": "out of memory", "type": "server_error", "code": 500}}, 500
            )
        elif behaviour == "refuses" and wants:
            await reply(send, {"error": {"message": f"unknown field {min(wants)}", "code": 400}}, 400)
        elif (asked.get("temperature") or 0) < 0:
            await reply(send, {"error": {"message": "temperature must be non-negative", "code": 400}}, 400)
        elif asked.get("stream"):
            await self._stream(chat, asked, behaviour, send)
        else:
            await asyncio.sleep(self.delay_s)
            if behaviour == "waits":
                await self._wait()
            await reply(send, whole_answer(chat, asked), zipped=behaviour == "zips")

    async def _stream(self, chat: bool, asked: Json, behaviour: str, send: Send) -> None:
        kind = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        events = self.stream if behaviour == "told" else tuple(stream_of(chat, asked))
        for index, event in enumerate(events):
            if behaviour == "breaks" and index == 2:
                await send({"type": "http.response.body", "body": event[:20], "more_body": True})
                return  # without an end: uvicorn closes the connection
            if behaviour == "waits" and index == 1:
                await self._wait()
            await asyncio.sleep(self.delay_s)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self) -> None:
        while not self.go_on.is_set():
            await asyncio.sleep(0.005)


async def reply(send: Send, value: Any, status: int = 200, zipped: bool = False) -> None:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    body = gzip.compress(body) if zipped else body
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"content-encoding", b"gzip")] * zipped
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def prompts_of(chat: bool, asked: Json) -> list[Any]:
    if chat:
        return [json.dumps(asked["messages"])]
    prompt = asked["prompt"]
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return prompt if many else [prompt]


def scores(chat: bool, asked: Json, steps: list[int]) -> Json | None:
    if chat:
        if not asked.get("logprobs"):
            return None
        return {
            "content": [
                {
                    "token": word_of(i),
                    "logprob": logprob_of(i),
                    "bytes": list(word_of(i).encode()),
                    "top_logprobs": [],
                }
                for i in steps
            ]
        }
    if asked.get("logprobs") is None:
        return None
    return {
        "text_offset": steps,
        "token_logprobs": [logprob_of(i) for i in steps],
        "tokens": [word_of(i) for i in steps],
        "top_logprobs": [{word_of(i): logprob_of(i)} for i in steps],
    }


def whole_answer(chat: bool, asked: Json) -> Json:
    ids = asked.get("return_token_ids")
    choices = []
    for prompt in prompts_of(chat, asked):
        for sample in range(asked.get("n") or 1):
            steps = list(range(sample, sample + (asked.get("max_tokens") or 4)))
            text = "".join(map(word_of, steps))
            said = (
                {"message": {"role": "assistant", "content": text, "reasoning": None}}
                if chat
                else {"text": text}
            )
            choice = {
                "index": len(choices),
                **said,
                "logprobs": scores(chat, asked, steps),
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": [id_of(i) for i in steps] if ids else None,
            }
            if not chat:
                choice |= {
                    "prompt_logprobs": None,
                    "prompt_token_ids": ids_of_prompt(prompt) if ids else None,
                }
            choices.append(choice)
    answer = {
        "id": "chatcmpl-1" if chat else "cmpl-1",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1796000000,
        "model": asked.get("model", "plain"),
        "choices": choices,
        "system_fingerprint": FINGERPRINT,
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    }
    if chat:
        answer["prompt_token_ids"] = ids_of_prompt(prompts_of(chat, asked)[0]) if ids else None
    return answer


def stream_of(chat: bool, asked: Json) -> Iterator[bytes]:
    """The events of a streamed answer; the samples take turns."""
    ids = asked.get("return_token_ids")
    last = (asked.get("max_tokens") or 4) - 1
    prompts = prompts_of(chat, asked)
    samples = asked.get("n") or 1
    if chat:
        for sample in range(samples):
            first: Json = (
                {"prompt_token_ids": ids_of_prompt(prompts[0]) if ids else None} if sample == 0 else {}
            )
            delta = {"role": "assistant", "content": ""}
            choice = {"index": sample, "delta": delta, "logprobs": None, "finish_reason": None}
            yield chunk(chat, asked, choice, **first)
    for step in range(last + 1):
        for position, prompt in enumerate(prompts):
            for sample in range(samples):
                steps = [step + sample]
                end = step == last
                said: Json = (
                    {"delta": {"content": word_of(steps[0])}} if chat else {"text": word_of(steps[0])}
                )
                choice = {
                    "index": position * samples + sample,
                    **said,
                    "logprobs": scores(chat, asked, steps),
                }
                choice["finish_reason"] = "length" if end else None
                if end or not chat:
                    choice["stop_reason"] = None
                if not chat:
                    choice["prompt_token_ids"] = ids_of_prompt(prompt) if ids and step == 0 else None
                choice["token_ids"] = [id_of(steps[0])] if ids else None
                if chat and step == 1 and (ids or asked.get("logprobs")):
                    # A token that the parser of tool calls holds back: sent only for its id and logprob.
                    yield chunk(chat, asked, {**choice, "delta": {}})
                    choice |= {
                        "logprobs": scores(chat, asked, []),
                        "token_ids": [] if ids else None,
                    }
                yield chunk(chat, asked, choice, **({"system_fingerprint": FINGERPRINT} if end else {}))
    yield b"data: [DONE]\n\n"


def chunk(chat: bool, asked: Json, choice: Json, **more: Any) -> bytes:
    value = {
        "id": "chatcmpl-1" if chat else "cmpl-1",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1796000000,
        "model": asked.get("model", "plain"),
        "choices": [choice],
        **more,
    }
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


@contextlib.contextmanager
def in_thread(app: Any, ending: Callable[[], Awaitable[None]] | None = None, port: int = 0) -> Iterator[str]:
    """Serve an ASGI application on a port of this machine, until the end of the block. Gives its URL.

    `ending` runs in its loop afterwards.
    """
    listener = listening_socket("127.0.0.1", port)
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, log_level="critical")
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        # As Server.serve does, without its clock that looks ten times a second whether it should end.
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        await ended.wait()
        server.force_exit = True
        await server.shutdown(sockets=[listener])
        if ending is not None:
            await ending()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@contextlib.contextmanager
def fake_upstream(port: int = 0) -> Iterator[FakeUpstream]:
    app = FakeUpstream()
    with in_thread(app, port=port) as app.url:
        yield app


if __name__ == "__main__":
    uvicorn.run(FakeUpstream(delay_s=0.005), port=int(sys.argv[1]), log_level="critical", lifespan="off")
