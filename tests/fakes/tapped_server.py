"""A vLLM server with taps, as its client sees both: answers over HTTP, parts in a folder."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from fakes.failing_server import Json, Send
from fakes.inference import Vllm
from fakes.tapping import ALONE
from fakes.toy_model import TOY
from rip.replay.row_summaries.row_hash_and_sketch import ROW_HASH_NAME, SKETCH_NAME
from rip.replay.row_summaries.rows import RowSummaries
from rip.replay.vllm_tap.part_file import ROW_FIELDS, Distributions, Part, TappedRequest, write_part
from rip.replay.vllm_tap.rank_folder import SITES, STATE, boot_id
from rip.schemas.trace import Site

LABELS = ("embed_tokens", "norm")


@dataclass
class TappedVllm(Vllm):
    """`kept_back`: rows of so many last tokens are written when the request ends, and lost with the worker.

    Attributes:
        folder: RIP_TAP.
        before_idle: Called once an answer goes silent (fault `drips`).
    """

    folder: Path = Path()
    kept_back: int = 0
    before_idle: Callable[[], object] | None = None
    parts: int = 0
    requests_seen: int = 0
    worker: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def begin(self) -> None:
        """A worker, as a process that may be killed, and its folder."""
        self.worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.rank = self.folder / "worker-rank0"
        self.rank.mkdir(parents=True)
        state = {**ALONE, "instance": "one", "started": 1.0, "channel": "eager", "state": "ready", "why": ""}
        state |= {"row_hash": ROW_HASH_NAME, "sketch": SKETCH_NAME}
        state |= {"pid": self.worker.pid, "boot_id": boot_id()}
        sites = [Site(name=name, module="Module", dtype="float32", width=8) for name in LABELS]
        (self.rank / STATE).write_text(json.dumps(state))
        (self.rank / SITES).write_text(
            json.dumps({"sites": [site.model_dump() for site in sites], "not_seen": []})
        )

    def end(self) -> None:
        """The worker is gone, without a word."""
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()

    async def POST_v1_completions(self, asked: Json, send: Send) -> None:
        key = (asked.get("vllm_xargs") or {}).get("rip_tap")
        if not key:
            await super().POST_v1_completions(asked, send)
            return
        number, self.requests_seen = self.requests_seen, self.requests_seen + 1
        made = TOY.generate(asked["prompt"], asked["max_tokens"], asked.get("temperature"), asked.get("seed"))
        fed = [*asked["prompt"], *made[:-1]]
        there = len(fed) - self.kept_back
        for first, last in ((0, len(asked["prompt"])), (len(asked["prompt"]), there)):
            self.write(number, key, fed, range(first, last))
        try:
            await super().POST_v1_completions(asked, send)
        finally:
            if self.fault == "dies":
                self.end()
            else:
                self.write(number, key, fed, range(there, len(fed)), ended=True)

    async def pieces(self, send: Send, pieces: list[bytes], kind: str, idle: bytes) -> None:
        if self.before_idle is not None:
            asyncio.get_running_loop().run_in_executor(None, self.before_idle)
        await super().pieces(send, pieces, kind, idle)

    def write(self, number: int, key: str, fed: Sequence[int], positions: range, ended: bool = False) -> None:
        """One part: rows whose bits depend on the tokens up to theirs."""
        rows = np.zeros((len(positions), len(ROW_FIELDS)), np.int32)
        rows[:, 0], rows[:, 1], rows[:, 3], rows[:, 4] = number, positions, positions, 1
        rows[:, 2] = [fed[position] for position in positions]
        summaries = RowSummaries.empty(len(positions), len(LABELS))
        for row, position in enumerate(positions):
            random = np.random.default_rng(fed[: position + 1])
            summaries.row_hash[row] = random.integers(1, 2**63, (len(LABELS), 2), np.uint64)
        request = {number: TappedRequest(f"cmpl-{number}", key)}
        part = Part(request, [number] if ended else [], rows, summaries, Distributions.none())
        write_part(self.rank, self.parts, part)
        self.parts += 1
