"""Replaying on fake servers in a test: from envelopes to traces that can be looked at."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from fakes.failing_server import FakeServer, running
from fakes.toy_model import MODEL, TOY
from rip.replay.engines.base import Opening
from rip.replay.engines.registry import engine_class
from rip.replay.run import OpenedLane, Options, Result, replay
from rip.schemas.envelope import Envelope, Runtime
from rip.schemas.fingerprint import Fingerprint, Section, fact
from rip.schemas.lane import Lane
from rip.schemas.trace import HEADER_KEY, PARTS_SUFFIX, TraceHeader

PROMPT = [0, 5, 6, 7]
TEXT = "w5 w6 w7 "
"""Becomes PROMPT where the server puts the first token before it."""
MESSAGES = [{"role": "user", "content": "w9 w8"}]
ENVIRONMENT = Fingerprint.build(
    "0.1.0", "2026-07-14T09:00:00Z", {"model": Section(facts={"sha256": fact("a" * 64, "test")})}
)
TELL_IDS = ("vllm", "llama.cpp", "sglang", "tgi", "tensorrt-llm")
TELL_TEXT = ("ollama", "openai")
TELL_TOPK = ("vllm", "llama.cpp", "sglang", "tgi")


def envelope(name: str = "r0", **fields: Any) -> Envelope:
    """Six greedy tokens after PROMPT, unless `fields` say otherwise; a field that is None is left out."""
    sampling = {"temperature": 0, "max_tokens": 6, **fields.pop("sampling", {})}
    base = {"prompt_token_ids": PROMPT, "prompt_text": TEXT, **fields}
    raw = {"request_id": name, "sampling": sampling, **base}
    return Envelope.from_object({key: value for key, value in raw.items() if value is not None}, "test")


class Replayed:
    """A trace, read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = TraceHeader.from_json(pq.read_metadata(path).metadata[HEADER_KEY], str(path))
        self.rows = pq.read_table(path).to_pylist()

    def tokens(self, request_id: str = "r0", sample: int = 0) -> list[int]:
        return [
            row["token_id"]
            for row in self.rows
            if (row["request_id"], row["sample"], row["phase"]) == (request_id, sample, "decode")
        ]

    def texts(self) -> list[str | None]:
        return [result.text for result in self.header.results]

    def about(self, words: str) -> list[str]:
        """The findings with these words in them."""
        return [finding for finding in self.header.findings if words in finding]


class Lab:
    """Starts servers, opens engines on them, replays into numbered traces."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.count = folder, stack, 0
        self.result: Result | None = None
        """Of the last replay that came to its end."""

    def start(self, server: FakeServer) -> FakeServer:
        return self.stack.enter_context(running(server))

    def __call__(
        self,
        engine: str,
        server: FakeServer,
        *envelopes: Envelope,
        topk: int = 3,
        model_name: str | None = MODEL,
        given: dict[str, Any] | None = None,
        opening: dict[str, Any] | None = None,
        environment: Fingerprint = ENVIRONMENT,
        **options: Any,
    ) -> Replayed:
        if not server.url:
            self.start(server)
        self.count += 1
        chosen = Options(**{"capture": "tokens", **options})
        streams = {"stream": "true"} if engine == "llama.cpp" else {}  # the others stream by themselves
        settings = {"timeout": 20, **streams, **(given or {})}
        asked = Opening(
            Runtime(),
            topk,
            model_name=model_name,
            url=server.url,
            settings=settings,
            mode=chosen.mode,
            **(opening or {}),
        )
        with closing(engine_class(engine)(asked)) as opened:
            self.result = replay(
                envelopes or [envelope()],
                OpenedLane(opened, Lane(name="default", engine=engine, model=MODEL), environment),
                chosen,
                self.last,
                lambda *_: None,
            )
        return Replayed(self.last)

    @property
    def last(self) -> Path:
        return self.folder / f"{self.count}.parquet"

    @property
    def left(self) -> TraceHeader:
        """The header of what the last replay left when it failed."""
        folder = self.last.with_name(self.last.name + PARTS_SUFFIX)
        return TraceHeader.from_json((folder / "header.json").read_text(), "left")


def greedy(prompt: list[int], count: int = 6) -> list[int]:
    return TOY.generate(prompt, count, 0, None)
