"""Joining what vLLM's taps wrote with what its HTTP answers told: one answer's rows with their sites.

The folder and its parts are read by `vllm_tap.merge`.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Site
from ...capture.rowhash import ROW_HASH_NAME
from ...capture.sketch import SKETCH_NAME
from ...capture.summarise import RowSummaries
from ...plan import PlannedSequence
from ..base import Capabilities, ExecutionShape, Opening, Rows, TopK
from .answer import Answer

if TYPE_CHECKING:
    from ...vllm_tap.merge import TapFolder, TappedRows

READY_S = 60.0
"""Seconds that the taps have, after the server takes requests, to name their sites."""


class VllmTaps:
    """The tap folder of one server; without one, nothing is observed.

    Args:
        folder: The folder, opened; None: the server has no taps.
        opening: Which sites are wanted.

    Raises:
        BadInput: A pattern that no site matches.
    """

    def __init__(self, folder: TapFolder | None, opening: Opening) -> None:
        self._folder = folder
        self._is_own = opening.url is None
        """The folder is of a server that rip started: what was read in it is removed."""
        self.sites: list[Site] = []
        self.not_seen: list[str] = []
        self.channel = self.row_hash = self.sketch = ""
        self._columns: list[int] = []
        self._keys: dict[int, str] = {}
        """Of the executions under way, by the identity of their plan."""
        if folder is None or opening.sites is None:
            return
        self._columns = [
            index for index, site in enumerate(folder.sites) if opening.sites.search(site.label())
        ]
        self.sites = [folder.sites[index] for index in self._columns]
        if not self.sites:
            raise BadInput(
                f"--sites {opening.sites.pattern!r} matches no site",
                "see the labels with --sites '.' and rip query",
            )
        self.not_seen, self.channel = list(folder.not_seen), folder.channel
        self.row_hash, self.sketch = ROW_HASH_NAME, SKETCH_NAME

    @classmethod
    def of(cls, path: Path | None, opening: Opening) -> VllmTaps:
        """Wait for the taps of a server that is up.

        Raises:
            EngineFailed: They failed, or name no sites.
        """
        if path is None:
            return cls(None, opening)
        from ...vllm_tap.merge import TapFolder

        folder = TapFolder(path)
        folder.wait_ready(READY_S)
        folder.check_alive()
        return cls(folder, opening)

    def capabilities(self, most: Capabilities) -> Capabilities:
        """What this server can do, of what vLLM can."""
        return replace(most, sites=bool(self.sites), logits_hash=bool(self.sites))

    def key(self, plan: PlannedSequence) -> str:
        """A name for one execution, under which the taps file it."""
        key = f"{plan.sequence}-{secrets.token_hex(8)}"
        self._keys[id(plan)] = key
        return key

    async def joined(self, answer: Answer, timeout_s: float) -> tuple[list[Rows], list[str]]:
        """The rows of a whole answer, with sites, logits hashes and execution shapes.

        Returns:
            The rows, and what a reader of the trace should know.

        Raises:
            EngineFailed: The taps wrote nothing, or other tokens than the answer has.
        """
        assert self._folder is not None
        key = self._keys.pop(id(answer.plan))
        tapped = await asyncio.to_thread(self._folder.rows, key, timeout_s)
        if self._is_own:
            self._folder.forget(key)
        rows = answer.take(whole=True)
        assert rows is not None
        return [self._with(rows, tapped, answer.plan.request_id)], list(tapped.findings)

    def _with(self, rows: Rows, tapped: TappedRows, request_id: str) -> Rows:
        count = len(rows.token_ids)
        place = tapped.positions - rows.first_position
        inside = (place >= 0) & (place < count)
        place = place[inside]
        if not np.array_equal(rows.token_ids[place], tapped.token_ids[inside]):
            raise EngineFailed(
                f"{request_id}: the taps saw other tokens than the answer has",
                "is the tap folder that of this server? name it with --tap",
            )
        summaries = RowSummaries.empty(count, len(self.sites))
        source = np.flatnonzero(inside)
        shapes: list[ExecutionShape | None] = [None] * count
        topk = list(rows.topk)
        for name in ("row_hash", "l2", "absmax", "sketch"):
            getattr(summaries, name)[place] = getattr(tapped.summaries, name)[source][:, self._columns]
        for row, index in zip(place.tolist(), source.tolist(), strict=True):
            shapes[row] = tapped.shapes[index]
            topk[row] = _with_logits(topk[row], tapped.topk[index])
        return replace(rows, summaries=summaries, shapes=shapes, topk=topk)


def _with_logits(told: TopK | None, tapped: TopK | None) -> TopK | None:
    """What the server told of a distribution, with logits, their sum and their hash as the taps saw them.

    Ids and log-probabilities stay those that the server told, so that a run without taps can be compared. Of
    equal logits at the end of the top-K the two may list another one; then the row has no logits.
    """
    if told is None or tapped is None:
        return tapped if told is None else told
    logits = None
    if tapped.logits is not None:
        seen = dict(zip(tapped.ids.tolist(), tapped.logits.tolist(), strict=True))
        if all(token in seen for token in told.ids.tolist()):
            logits = np.array([seen[token] for token in told.ids.tolist()], dtype=np.float32)
    return replace(told, logits=logits, logsumexp=tapped.logsumexp, logits_hash=tapped.logits_hash)
