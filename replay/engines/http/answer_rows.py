"""From what arrives of one answer to rows of a trace: which distribution belongs to which position, and when.

A server returns the distribution that a token was chosen from together with that token. In a trace it stands
one row earlier, at the position that predicted it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....schemas.errors import EngineFailed
from ....schemas.trace import Finding
from ...request.batches import PlannedSequence
from ...request.findings import finding
from ...row_summaries.rows import Rows, TopK
from ..base import Finished, Timing
from .client import ServerError, shown

STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""How an API like OpenAI's is requested to stream, and to say at the end how many tokens were cached."""
HANDED_OVER_ROWS = 64
HANDED_OVER_S = 1.0
"""Rows are handed over when so many wait, or the oldest so long: one at a time would be slow."""
BROKEN_OFF = "broken off"
"""The reason of an answer that has no end."""


@dataclass(frozen=True)
class Piece:
    """What arrived together.

    Attributes:
        token_ids: Generated tokens.
        topk: For each of them, the distribution that it was chosen from, None where it was not returned.
        text: Generated text; None where the server returns none.
        timed: It arrived when it was made, so that its time means something; False for an answer at once.
    """

    token_ids: Sequence[int] = ()
    topk: Sequence[TopK | None] = ()
    text: str | None = ""
    timed: bool = True


@dataclass(frozen=True)
class Scored:
    """The distributions after every token of the input, in golden-prefill.

    Attributes:
        topk: One for each position of prompt and golden tokens but the last, which was not fed.
    """

    topk: Sequence[TopK | None]


@dataclass(frozen=True)
class End:
    """The answer is whole.

    Attributes:
        reason: As the server calls it.
        text: The whole text, where it did not arrive in pieces.
        cached_tokens: Prompt tokens that came from a prefix cache; None where it was not returned.
        answered_by: `model`, `system_fingerprint`.
        findings: What a reader of the trace should know.
    """

    reason: str
    text: str | None = None
    cached_tokens: int | None = None
    answered_by: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


Event = Piece | Scored | End
Events = AsyncGenerator[Event, None]
"""Those of one answer; the last is the `End`."""


class Answer:
    """One answer as it arrives. The clock starts when it is made."""

    def __init__(self, plan: PlannedSequence, forced: bool) -> None:
        self.plan = plan
        self._forced = forced
        self._sent = self._taken_at = time.perf_counter()
        self._arrivals: list[float] = []
        self._text: list[str] | None = []
        self._tokens: list[int] = list(plan.prompt)
        self._topk: list[TopK | None] = [None] * max(0, len(plan.prompt) - 1)
        """Of every token but the last: that one's arrives with the next token."""
        self._elapsed: list[float | None] = [None] * len(plan.prompt)
        self.taken = 0
        """The first position whose row was not taken yet."""
        self.end: End | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and generated tokens so far."""
        return list(self._tokens)

    @property
    def generated(self) -> list[int]:
        """The generated tokens so far."""
        return self._tokens[len(self.plan.prompt) :]

    def add(self, event: Event) -> None:
        """Add what arrived."""
        now = time.perf_counter() - self._sent
        if isinstance(event, End):
            self.end = event
            self._latency = now
            return
        if isinstance(event, Scored):
            golden = list(self.plan.golden or ())
            self._tokens += golden
            self._elapsed += [None] * len(golden)
            self._topk = list(event.topk)
            return
        if event.timed and (event.token_ids or event.text):
            self._arrivals += [now] * max(1, len(event.token_ids))
        if event.text is None:
            self._text = None
        elif self._text is not None:
            self._text.append(event.text)
        for token, topk in zip(event.token_ids, event.topk, strict=True):
            self._topk.append(topk)
            self._tokens.append(token)
            self._elapsed.append(round(now, 6) if event.timed else None)

    def is_due(self) -> bool:
        """Whether rows should be handed over by now."""
        waiting = len(self._topk) - self.taken
        late = time.perf_counter() - self._taken_at >= HANDED_OVER_S
        return waiting >= HANDED_OVER_ROWS or (waiting > 0 and late)

    def take(self, whole: bool = False, until: int | None = None) -> Rows | None:
        """The rows that were not handed over yet and whose distribution is known; if `whole`, the last.

        Args:
            whole: The answer has its end.
            until: Only rows before this position.
        """
        if not self.plan.prompt:
            return None
        end = len(self._tokens) if whole else len(self._topk)
        end = end if until is None else min(end, until)
        if end <= self.taken:
            return None
        first, self.taken = self.taken, end
        self._taken_at = time.perf_counter()
        topk: list[TopK | None] = self._topk[first:end]
        topk += [None] * (end - first - len(topk))
        return Rows(
            sequence=self.plan.sequence,
            first_position=first,
            token_ids=np.array(self._tokens[first:end], dtype=np.int32),
            forced=self._forced,
            topk=topk,
            samplers=[None] * (end - first),
            shapes=[None] * (end - first),
            elapsed_s=self._elapsed[first:end],
        )

    def finished(self) -> Finished:
        """How it ended."""
        assert self.end is not None
        arrivals, count = self._arrivals, len(self._arrivals)
        return Finished(
            sequence=self.plan.sequence,
            reason="golden" if self._forced else self.end.reason,
            text=self.end.text if self.end.text is not None else self._text_so_far(),
            timing=Timing(
                ttft_s=round(arrivals[0], 6) if arrivals else None,
                itl_s=round((arrivals[-1] - arrivals[0]) / (count - 1), 6) if count > 1 else None,
                latency_s=round(self._latency, 6),
            ),
            answered_by=self.end.answered_by,
            findings=self._findings(self.end),
        )

    def broken_off(self) -> Finished | None:
        """What arrived of an answer that has no end; None where rows keep it, or nothing arrived."""
        if self.plan.prompt or not self._text_so_far():
            return None
        self.add(End(BROKEN_OFF))
        return self.finished()

    def _text_so_far(self) -> str | None:
        return None if self._text is None else "".join(self._text)

    def _findings(self, end: End) -> tuple[Finding, ...]:
        if not end.cached_tokens:
            return end.findings
        return (*end.findings, finding("prefix-cached", tokens=end.cached_tokens))


@dataclass
class Completion:
    """What a stream of the OpenAI API has carried so far of one answer."""

    answered_by: dict[str, str] = field(default_factory=dict)
    """`model`, `system_fingerprint`."""
    cached_tokens: int | None = None
    reason: str = ""

    def take(self, event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Take one event → its choices.

        Raises:
            EngineFailed: It is an error.
        """
        check_no_error(event)
        self.answered_by |= {
            name: str(event[name]) for name in ("model", "system_fingerprint") if event.get(name)
        }
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        self.cached_tokens = details.get("cached_tokens", self.cached_tokens)
        choices: list[Mapping[str, Any]] = event["choices"]
        for choice in choices:
            self.reason = str(choice.get("finish_reason") or self.reason)
        return choices

    def check_ended(self) -> None:
        """Refuse an answer without its end.

        Raises:
            EngineFailed: It has none.
        """
        if not self.reason:
            raise stream_unfinished_error()


def check_no_error(event: Mapping[str, Any]) -> None:
    """Refuse an error that stands where a piece of an answer should.

    Raises:
        ServerError: It is one.
    """
    if not event.get("error"):
        return
    error = event["error"]
    raise server_ended_error(error.get("message", error) if isinstance(error, dict) else error)


def server_ended_error(message: Any) -> ServerError:
    """The error for an answer that the server ended with an error of its own."""
    text = shown(str(message))
    failed = ServerError(
        f"the server gave up: {text}", "request what it allows, or see the log of the server"
    )
    failed.server_message = text
    return failed


def stream_unfinished_error() -> EngineFailed:
    """The error for a stream that ends before its answer does."""
    return EngineFailed("the stream ended before the answer did", "see the log of the server")
