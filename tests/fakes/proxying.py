"""The recording proxy in this process, in front of a server of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fakes.upstream import in_thread
from rip.replay.proxy.call import Upstream
from rip.replay.proxy.forward import Proxy
from rip.replay.proxy.recorder import Recorder
from rip.replay.proxy.store import RecordingFiles, Store, StoreOptions
from rip.schemas.envelope import Envelope, iter_request_set
from rip.schemas.redact import is_secret


@dataclass
class Recording:
    """A running proxy and what it wrote; `stop` ends it."""

    url: str
    folder: Path
    recorder: Recorder
    said: list[str] = field(default_factory=list)
    stopped: bool = False

    def envelopes(self) -> list[Envelope]:
        """Everything that was recorded; the recording is closed by it."""
        if not self.stopped:
            self.stopped = True
            pause = threading.Event()
            while self.recorder.running:  # an answer is with the client before it is with the recorder
                pause.wait(0.002)
            self.recorder.store.close()
        return [
            envelope for path in sorted(self.folder.glob("*.jsonl")) for envelope in iter_request_set(path)
        ]

    def kept_text(self) -> str:
        """Everything on disk, decompressed."""
        import gzip

        self.envelopes()
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        parts = [gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in files]
        return b"\n".join(parts).decode()


class _Hosted:
    """The proxy with a client that belongs to the loop it runs in."""

    def __init__(self, upstream: str, recorder: Recorder) -> None:
        self._upstream, self._recorder = upstream, recorder
        self._proxy: Proxy | None = None
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._proxy is None:
            self._client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=5), trust_env=False)
            self._proxy = Proxy(self._upstream, self._client, self._recorder)
        await self._proxy(scope, receive, send)


@contextmanager
def recording(
    upstream: str,
    folder: Path,
    engine: str | None = "vllm",
    rate: float = 1.0,
    seed: int = 0,
    limit: int = 64_000_000,
    passive: bool = False,
    **stored: Any,
) -> Iterator[Recording]:
    """A proxy that records into a folder. `stored`: arguments of `Store`."""
    said: list[str] = []
    store = Store(RecordingFiles.of(folder), StoreOptions({}, is_secret, **stored), said.append)
    runtime = {"engine": engine, "engine_version": "0.32.0"} if engine else {}
    recorder = Recorder(store, Upstream(upstream, engine, runtime), rate, seed, limit, passive, said.append)
    hosted = _Hosted(upstream, recorder)
    with in_thread(hosted, hosted.close) as url:
        running = Recording(url, folder, recorder, said)
        yield running
        running.envelopes()


def values(response: httpx.Response) -> Any:
    """What an answer says, so that two can be compared: JSON, or the events' JSON in order."""
    if "event-stream" not in response.headers.get("content-type", ""):
        return response.json()
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in data]
