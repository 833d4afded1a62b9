"""From steps to part files: which requests are recorded, where a step's rows go, when they are written.

It knows requests and rows, not vLLM: runners report what they do (`model_runners.py`), taps show it tensors
(`module_taps.py`). Nothing here may disturb serving: what fails ends the observation and is reported once.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...row_summaries.rows import SLOT_BYTES
from ..part_file import TappedRequest
from .module_taps import ModuleTaps
from .rank_writer import RankFolder
from .row_block import Columns, RowBlock, summarise_columns
from .sites import FoundSites
from .step import NOBODY, Step, StepInputs, segments_of

DEFAULT_MAX_MB = 4096
DEFAULT_TOPK = 20


@dataclass(frozen=True)
class TapSettings:
    """How a worker is observed.

    Attributes:
        folder: RIP_TAP: where every rank makes a folder of its own.
        sites: RIP_TAP_SITES: only sites whose label matches this pattern; None: all.
        most_bytes: RIP_TAP_MAX_MB: most that this rank's folder may hold; reaching it ends the observation.
        topk: RIP_TAP_TOPK: K of the distributions; 0: only the logits' hash.
        only_keyed: RIP_TAP_ONLY_ASKED=1: requests that do not carry `rip_tap` are not observed.
    """

    folder: Path
    sites: re.Pattern[str] | None = None
    most_bytes: int = DEFAULT_MAX_MB << 20
    topk: int = DEFAULT_TOPK
    only_keyed: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TapSettings:
        """Read the variables.

        Raises:
            ValueError: One of them does not say what it should, in a sentence.
        """
        pattern = environment.get("RIP_TAP_SITES", "")
        try:
            sites = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ValueError(f"RIP_TAP_SITES={pattern!r} is no regular expression: {error}") from None
        return cls(
            folder=Path(environment["RIP_TAP"]).absolute(),
            sites=sites,
            most_bytes=_whole(environment, "RIP_TAP_MAX_MB", DEFAULT_MAX_MB, 1) << 20,
            topk=_whole(environment, "RIP_TAP_TOPK", DEFAULT_TOPK, 0),
            only_keyed=environment.get("RIP_TAP_ONLY_ASKED", "") not in ("", "0"),
        )


def _whole(environment: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"{name}={text!r} must be a whole number of at least {least}")
    return value


PENDING_BYTES = 8 << 20
"""Summaries kept in memory before they are written."""
PENDING_LOGITS_BYTES = 64 << 20
"""Likewise, of logits whose distributions are still to be worked out."""
PENDING_SECONDS = 2.0
"""Longest time that rows wait while steps go on: what a killed server loses."""

LEAST_ROWS = 64
"""A block has room for at least so many rows."""

LOG = logging.getLogger("vllm.rip_tap")


class Recorder:
    """The observer of one rank.

    Args:
        output: Where the model's own output goes, for a model whose modules cannot be tapped; None: nowhere.
        has_logits: Whether this rank's logits are kept.
    """

    def __init__(
        self,
        folder: RankFolder,
        settings: TapSettings,
        found: FoundSites,
        taps: ModuleTaps,
        output: Columns | None,
        has_logits: bool,
    ) -> None:
        self._folder, self._settings, self._taps, self._output = folder, settings, taps, output
        self._has_logits = has_logits
        self._is_on = True
        self._lock = threading.Lock()
        self._requests: dict[int, TappedRequest] = {}
        self._numbers: dict[str, int] = {}
        self._next_number = 0
        self._ended: list[int] = []
        self._steps = 0
        self._sites = len(found.sites)
        self._twins = {
            number: (source.columns[0][0], found.sources[source.handed_on].columns[0][0])
            for number, source in enumerate(found.sources)
            if source.handed_on is not None
        }
        """Sources that hand on another's tensor → their site and the other's."""
        self._is_verified = not self._twins
        self._spare: deque[RowBlock] = deque()
        """Blocks that are written and can be filled again. The last comes first: caches know it best."""
        self._block = self._new_block(self._room())
        self._flushed_at = time.monotonic()
        self._step: Step | None = None

    # What a runner reports. None of it raises.

    def scheduled(self, scheduler_output: Any) -> None:
        """A step begins: requests are new, finished or scheduled."""
        if self._is_on:
            self._guarded(lambda: self._scheduled(scheduler_output))

    def forward(self, inputs: Callable[[], StepInputs]) -> None:
        """The model is about to run. `inputs` reads what on, and is only called where it is observed."""
        if self._is_on and self._numbers:
            self._guarded(lambda: self._forward(inputs()))

    def forwarded(self, output: object) -> None:
        """The model has run."""
        self._taps.show_to(None)
        if self._is_on and self._step is not None:
            step = self._step
            self._guarded(lambda: self._forwarded(step, output))

    def logits(self, hidden: torch.Tensor, logits: torch.Tensor | None) -> None:
        """Logits were computed from rows of the model's output."""
        if self._is_on and self._has_logits and self._step is not None and logits is not None:
            step = self._step
            self._guarded(lambda: self._logits(step, hidden, logits))

    def sampled(self) -> None:
        """The step is over: its tokens are chosen."""
        if self._is_on and self._step is not None:
            self._guarded(self._settle)

    def fail(self, why: str, cause: Exception | None = None) -> None:
        """End the observation, and say why, once. May be called from any thread."""
        with self._lock:
            if not self._is_on:
                return
            self._is_on = False
        self._taps.show_to(None)
        LOG.warning("rip observes nothing any more: %s. Serving goes on.", why)
        try:
            self._folder.write_state("failed", why, cause)
        except OSError as error:
            LOG.warning("rip could not write that to %s: %s", self._folder.path, error)

    def fail_with_error(self, error: Exception) -> None:
        """End the observation because of an error in it."""
        self.fail(f"{type(error).__name__}: {error}", error)

    def close(self) -> None:
        """The process ends in order: write what there is."""
        if self._is_on:
            self._guarded(self._settle)
            self._guarded(self._flush)
            self._folder.close()
            self._guarded(lambda: self._folder.write_state("closed", "the process has ended"))

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever it is, the request goes on
            self.fail_with_error(error)

    # What happens then.

    def _scheduled(self, scheduler_output: Any) -> None:
        self._settle()
        for name in scheduler_output.finished_req_ids:
            number = self._numbers.pop(name, None)
            if number is not None:
                self._ended.append(number)
        if self._ended:
            self._flush()
        for new in scheduler_output.scheduled_new_reqs:
            name, sampling = new.req_id, new.sampling_params
            extra = None if sampling is None else sampling.extra_args
            own_key = None if extra is None else extra.get("rip_tap")
            key = name if own_key is None and not self._settings.only_keyed else str(own_key or "")
            if key and name not in self._numbers:
                # A prompt need not be token ids.
                prefix = tuple((new.prompt_token_ids or ())[: new.num_computed_tokens])
                self._requests[self._next_number] = TappedRequest(name, key, prefix)
                self._numbers[name] = self._next_number
                self._next_number += 1

    def _forward(self, inputs: StepInputs) -> None:
        numbers = [self._numbers.get(name, NOBODY) for name in inputs.request_ids]
        if max(numbers) == NOBODY:
            return
        segments, owners = segments_of(inputs, numbers, self._block.used)
        count = len(owners)
        if not count:
            return
        if count > self._block.room - self._block.used:
            self._flush()
            segments, owners = segments_of(inputs, numbers, 0)
        if count > self._block.room:
            self._block = self._new_block(count)  # for this step alone
        self._steps += 1
        step = self._step = Step(self._steps, inputs, numbers, segments, owners)
        if len(segments) == 1 and count < self._block.room:
            self._block.repeated.begin(segments[0], inputs.padded)
            self._taps.show_to(self._block.repeated.see)
        else:
            self._taps.show_to(lambda _source, tensor, columns: self._summarise(step, tensor, columns))

    def _summarise(self, step: Step, tensor: torch.Tensor, columns: Columns) -> None:
        for segment in step.segments:
            summarise_columns(tensor, columns, segment, self._block.summaries, self._block.pending)

    def _forwarded(self, step: Step, output: object) -> None:
        if isinstance(output, torch.Tensor):
            step.output = output
            if self._output is not None:
                self._summarise(step, output, self._output)

    def _logits(self, step: Step, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        rows = step.rows_of_logits(hidden)
        if any(row is not None for row in rows):
            self._block.logits.keep(logits, rows)

    def _settle(self) -> None:
        """The step that ran has all its rows: they count now."""
        step, self._step = self._step, None
        if step is None:
            return
        block = self._block
        block.take(step)
        if not self._is_verified:
            self._verify_twins(block)
        if (
            block.used == block.room
            or time.monotonic() - self._flushed_at > PENDING_SECONDS
            or block.logits.nbytes() > PENDING_LOGITS_BYTES
        ):
            self._flush()

    def _flush(self) -> None:
        """Have everything so far written as a part, and go on with another block."""
        self._flushed_at = time.monotonic()
        block = self._block
        if not block.used and not self._ended:
            return
        block.copy_to_host()
        ended = tuple(self._ended)
        requests = {number: self._requests[number] for number in {*block.numbers, *ended} - {NOBODY}}
        for number in ended:
            del self._requests[number]
        self._ended = []

        def reuse() -> None:
            block.clear()
            if block.room == self._room():
                self._spare.append(block)

        part = functools.partial(block.part, requests, ended, self._settings.topk)
        self._folder.put(part, block.nbytes(), reuse)
        try:
            self._block = self._spare.pop()
        except IndexError:
            self._block = self._new_block(self._room())

    def _verify_twins(self, block: RowBlock) -> None:
        """After the first step: leave out, from now on, sites whose rows were those of the module within."""
        block.pending.settle()
        digests = block.summaries.row_hash[: block.used]
        same = {
            number
            for number, (site, other) in self._twins.items()
            if (digests[:, site] == digests[:, other]).all() and digests[:, site].any()
        }
        self._twins = {number: self._twins[number] for number in same}
        self._is_verified = True
        self._taps.skip_passed_on_tensors(frozenset(same))

    def _new_block(self, rows: int) -> RowBlock:
        twins = np.array(sorted(self._twins.values()), np.int64).reshape(-1, 2)
        return RowBlock(rows, self._sites, twins)

    def _room(self) -> int:
        """Rows of a usual block."""
        return max(LEAST_ROWS, PENDING_BYTES // (SLOT_BYTES * max(self._sites, 1)))
