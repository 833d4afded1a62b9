"""Joining what vLLM's taps wrote with its HTTP answers: the rows of one answer with their sites.

The folder and its parts are read by `vllm_tap.tap_folder`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....schemas.errors import EngineFailed
from ....schemas.trace import Site
from ...request.batches import PlannedSequence
from ...row_summaries.row_hash_and_sketch import ROW_HASH_NAME, SKETCH_NAME
from ...row_summaries.rows import ExecutionShape, Rows, RowSummaries, TopK
from ..base import Opening, no_such_site
from .answer_rows import Answer

if TYPE_CHECKING:
    from ...vllm_tap.tap_folder import TapFolder, TappedRows

READY_S = 60.0
"""Seconds that the taps of a server that rip started have, after it takes requests, to name their sites."""
SERVING_S = 3.0
"""Likewise, of a server that runs already: taps name their sites before their server takes requests."""
LAST_S = 1.5
"""Seconds that the taps have to write what they hold of a request that was given up."""
POLL_S = 0.02


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
            raise no_such_site(opening.sites)
        self.not_seen, self.channel = list(folder.not_seen), folder.channel
        self.row_hash, self.sketch = ROW_HASH_NAME, SKETCH_NAME

    @classmethod
    async def of(cls, path: Path | None, opening: Opening) -> VllmTaps:
        """Wait for the taps of a server that is up.

        Raises:
            EngineFailed: They failed, name no sites, or no server writes into the folder.
        """
        if path is None:
            return cls(None, opening)
        from ...vllm_tap.tap_folder import TapFolder

        folder = TapFolder(path)
        folder.check_alive()
        patience_s = (READY_S if opening.url is None else SERVING_S) if path.is_dir() else 0.0
        if opening.say is not None:
            opening.say(f"waiting for the taps of the server in {path}")
        await asyncio.to_thread(folder.wait_ready, patience_s)
        folder.check_alive()
        return cls(folder, opening)

    def key(self, plan: PlannedSequence) -> str:
        """A name for one execution, under which the taps file it."""
        key = f"{plan.sequence}-{secrets.token_hex(8)}"
        self._keys[id(plan)] = key
        return key

    async def joined(self, answer: Answer, timeout_s: float) -> tuple[Rows | None, list[str]]:
        """The rows of a whole answer that were not taken yet, with sites, logits hashes and execution shapes.

        Returns:
            The rows, and what a reader of the trace should know.

        Raises:
            EngineFailed: The taps wrote nothing, or different tokens from those of the answer.
        """
        tapped = await self._when_ended(answer, timeout_s, partial=False)
        # The taps may have seen tokens after the end of the answer.
        if not (self._arrived(answer, tapped) | (tapped.positions >= len(answer.tokens))).all():
            raise EngineFailed(
                f"{answer.plan.request_id}: the taps saw different tokens from those of the answer",
                "name the tap folder of this server with --tap",
            )
        rows = answer.take(whole=True)
        self._forget(answer)
        return rows and self._with(rows, tapped), list(tapped.findings)

    async def rows_of_running_answer(self, answer: Answer) -> Rows | None:
        """The next rows of an answer that goes on: those that have arrived and all ranks have written."""
        assert self._folder is not None
        key, first = self._keys[id(answer.plan)], answer.taken
        tapped = await asyncio.to_thread(self._folder.rows_of_running_request, key, first)
        if tapped is None:
            return None
        begin = max(first, len(tapped.prefix))  # a cached prefix was not computed
        later = tapped.positions >= begin
        in_turn = tapped.positions[later] == np.arange(begin, begin + later.sum())
        # There may be rows of drafts that are not accepted yet, and of tokens that have not arrived.
        ready = in_turn & self._arrived(answer, tapped)[later]
        until = begin + (len(ready) if ready.all() else int(np.argmin(ready)))
        rows = answer.take(until=until)
        return rows and self._with(rows, tapped)

    async def remaining_rows_after_break(self, answer: Answer) -> Rows | None:
        """The other rows of an answer that broke off. Those that the taps did not write have no sites."""
        tapped = None
        if id(answer.plan) in self._keys:
            with suppress(EngineFailed):
                tapped = await self._when_ended(answer, LAST_S, partial=True)
        rows = answer.take(whole=answer.end is not None)
        self._forget(answer)
        if rows is None or tapped is None:
            return rows
        return self._with(rows, tapped, self._arrived(answer, tapped))

    async def _when_ended(self, answer: Answer, timeout_s: float, partial: bool) -> TappedRows:
        """What was observed of a request, from the first row on that was not taken, when it has ended."""
        assert self._folder is not None
        key, started = self._keys[id(answer.plan)], time.monotonic()
        while True:
            late_s = timeout_s if time.monotonic() - started >= timeout_s else None
            tapped = await asyncio.to_thread(
                self._folder.rows_of_ended_request, key, answer.taken, late_s, partial
            )
            if tapped is not None:
                return tapped
            await asyncio.sleep(POLL_S)

    def _forget(self, answer: Answer) -> None:
        key = self._keys.pop(id(answer.plan), None)
        if key is not None and self._is_own and self._folder is not None:
            self._folder.forget(key)

    def _arrived(self, answer: Answer, tapped: TappedRows) -> npt.NDArray[np.bool_]:
        """bool[R]: the answer has this token at this position."""
        tokens = np.array(answer.tokens)
        inside = tapped.positions < len(tokens)
        expected = tokens[np.where(inside, tapped.positions, 0)]
        arrived: npt.NDArray[np.bool_] = inside & (expected == tapped.token_ids)
        return arrived

    def _with(self, rows: Rows, tapped: TappedRows, usable: npt.NDArray[np.bool_] | None = None) -> Rows:
        """Rows with what the taps wrote of them; `usable`, bool[R], leaves out some of that."""
        count = len(rows.token_ids)
        row_of = tapped.positions - rows.first_position
        inside = (row_of >= 0) & (row_of < count)
        if usable is not None:
            inside &= usable
        row_of = row_of[inside]
        summaries = RowSummaries.empty(count, len(self.sites))
        source = np.flatnonzero(inside)
        shapes: list[ExecutionShape | None] = [None] * count
        topk = list(rows.topk)
        for mine, theirs in zip(summaries.arrays(), tapped.summaries.arrays(), strict=True):
            mine[row_of] = theirs[source][:, self._columns]
        for row, index in zip(row_of.tolist(), source.tolist(), strict=True):
            shapes[row] = tapped.shapes[index]
            topk[row] = _with_logits(topk[row], tapped.topk[index])
        return replace(rows, summaries=summaries, shapes=shapes, topk=topk)


def _with_logits(served: TopK | None, tapped: TopK | None) -> TopK | None:
    """A distribution of the server, with logits, their sum and their hash as the taps saw them.

    Ids and log-probabilities stay those of the server, so that a run without taps can be compared. Of equal
    logits at the end of the top-K the two may list different ids; then the row has no logits.
    """
    if served is None or tapped is None:
        return tapped if served is None else served
    logits = None
    if tapped.logits is not None:
        seen = dict(zip(tapped.ids.tolist(), tapped.logits.tolist(), strict=True))
        if all(token in seen for token in served.ids.tolist()):
            logits = np.array([seen[token] for token in served.ids.tolist()], dtype=np.float32)
    return replace(served, logits=logits, logsumexp=tapped.logsumexp, logits_hash=tapped.logits_hash)
