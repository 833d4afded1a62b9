"""Which calls are recorded and what is added to them and taken out of their answers; counts for the summary.

Only engines whose answers with and without it were compared are known here. To any other nothing is added.

It does not know HTTP: `forward.py` passes it every request.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .call import Call, Upstream
from .exchange import Json, listed
from .store import Store


@dataclass(frozen=True)
class Additions:
    """Fields added to one request, and what they add to its answer."""

    fields: Mapping[str, Any]
    """Put into the request; a field the client stated as false or null is replaced."""
    ids: bool = False
    """Token ids are in the answer because of them."""
    logprobs: bool = False
    """Log-probabilities are in the answer because of them."""
    chunks: bool = False
    """Whole chunks of a stream are there because of them: those that carry token ids and no text yet."""
    absent: bool = False
    """Without them the answer has no `logprobs` key at all; otherwise it is null."""

    def __bool__(self) -> bool:
        return bool(self.fields)


NONE = Additions({})


def additions_for(engine: str | None, chat: bool, body: Json) -> Additions:
    """What to add to a request so that its answer carries token ids and log-probabilities.

    Nothing where an addition would change more of the answer than what `without` removes, or hide an error
    from the client.

    Args:
        engine: As `rip fingerprint` names it; None where it is not known.
        chat: The request goes to chat completions, not to completions.
        body: The request as the client sent it.
    """
    known = _KNOWN.get(engine or "")
    return NONE if known is None else known(chat, body)


def is_known(engine: str | None) -> bool:
    """Whether it is known what to add to requests of an engine."""
    return engine in _KNOWN


def _for_vllm(chat: bool, body: Json) -> Additions:
    # echo: with token ids vLLM leaves the prompt's text out, with logprobs it scores the whole prompt.
    if body.get("echo") or body.get("use_beam_search"):
        return NONE
    fields: Json = {}
    if not body.get("return_token_ids"):
        fields["return_token_ids"] = True
    # Stated without logprobs, these are errors of the client that must stay errors.
    depends = body.get("logprob_token_ids") or (chat and body.get("top_logprobs"))
    states = body.get("logprobs") if chat else body.get("logprobs") is not None
    if not states and not depends:
        fields["logprobs"] = True if chat else 0
    ids = "return_token_ids" in fields
    return Additions(fields, ids, "logprobs" in fields, chunks=chat and ids and not states)


def _for_llama(chat: bool, body: Json) -> Additions:
    states = body.get("logprobs") if chat else body.get("logprobs") is not None
    if states or body.get("top_logprobs") or body.get("n_probs"):
        return NONE
    if body.get("tools") and body.get("stream"):  # it refuses logprobs there
        return NONE
    fields: Json = {"logprobs": True, "top_logprobs": 1} if chat else {"logprobs": 1}
    return Additions(fields, logprobs=True, absent=chat)


_KNOWN: Mapping[str, Callable[[bool, Json], Additions]] = {"vllm": _for_vllm, "llama.cpp": _for_llama}


def without(payload: Json, added: Additions, chunk: bool) -> Json | None:
    """An answer, or one chunk of a streamed answer, as it would be without the additions.

    Args:
        payload: Is changed.
        added: What was added to the request.
        chunk: It is one of a stream.

    Returns:
        None for a chunk that would not have been sent: one that carries token ids and nothing else.
    """
    choices = [choice for choice in listed(payload.get("choices")) if isinstance(choice, dict)]
    if chunk and added.chunks and len(choices) == 1 and _is_empty(choices[0]):
        return None
    if added.ids:
        for holder in (payload, *choices):
            for name in ("token_ids", "prompt_token_ids"):
                if name in holder:
                    holder[name] = None
    if added.logprobs:
        for choice in choices:
            if "logprobs" in choice and added.absent:
                del choice["logprobs"]
            elif "logprobs" in choice:
                choice["logprobs"] = None
    return payload


def _is_empty(choice: Json) -> bool:
    return choice.get("delta") == {} and choice.get("finish_reason") is None


_ROUTES = {"/completions": False, "/chat/completions": True}
MOST_HELD_BYTES = 512 << 20
"""Requests and answers in memory, running or waiting for the disk; beyond it calls pass unrecorded."""
REFUSED_BY_UPSTREAM = "the upstream refuses requests for them"
_MOST_NAME = 200
"""Characters of a client's request id that are kept."""


@dataclass
class Counts:
    """What passed."""

    passed: int = 0
    """Requests of any kind."""
    generating: int = 0
    """Requests to completions and chat completions."""
    taken: int = 0
    """Those chosen for recording."""
    refused: int = 0
    """Answers other than 200 among those taken."""
    disconnected: int = 0
    broken: int = 0
    """Answers that the upstream broke off."""
    unreachable: int = 0
    too_large: int = 0
    """Requests or waiting answers too large to record."""


@dataclass
class Recorder:
    """Decides and counts.

    Attributes:
        store: Where ended calls go.
        upstream: What is known of the server; replaced when more becomes known.
        rate: Share of the requests that is recorded, 0 to 1.
        seed: Which ones: a request is chosen by a hash of this and its id, or its number without one.
        limit: Bytes of an answer that are kept.
        passive: Add nothing to requests.
        say: Called with a sentence when the user should know something.
    """

    store: Store
    upstream: Upstream
    rate: float
    seed: int
    limit: int
    passive: bool
    say: Callable[[str], None]
    counts: Counts = field(default_factory=Counts)
    started: float = field(default_factory=time.perf_counter)
    _number: int = 0
    _running: dict[int, Call] = field(default_factory=dict)
    _refused: set[tuple[bool, ...]] = field(default_factory=set)
    """Kinds of requests that the upstream refuses with additions (see `kind_of`)."""

    @property
    def running(self) -> int:
        """Calls that are being recorded right now."""
        return len(self._running)

    def chooses(self, chat: bool | None, request_id: str | None) -> bool:
        """Count a request; True if it is to be recorded.

        Args:
            chat: None for any other route.
            request_id: The client's, if it gave one.
        """
        self.counts.passed += 1
        if chat is None:
            return False
        self.counts.generating += 1
        self._number += 1
        if self.store.stopped:
            return False
        if self.store.held_bytes + sum(c.held_bytes for c in self._running.values()) > MOST_HELD_BYTES:
            self.counts.too_large += 1
            return False
        if self.rate >= 1:
            return True
        digest = hashlib.sha256(f"{self.seed}:{request_id or self._number}".encode()).digest()
        return int.from_bytes(digest[:8]) < self.rate * 2**64

    def begin(
        self,
        chat: bool,
        route: str,
        body: Json,
        body_bytes: int,
        request_id: str | None,
        secrets: tuple[str, ...],
    ) -> Call:
        """A chosen request, as it is sent on."""
        self.counts.taken += 1
        call = Call(
            number=self.counts.taken,
            chat=chat,
            route=route,
            body=body,
            request_id=request_id,
            secrets=secrets,
            upstream=self.upstream,
            arrival_ms=(time.perf_counter() - self.started) * 1000,
            in_flight=self.running,
            limit=self.limit,
            held_bytes=body_bytes,
        )
        self._running[call.number] = call
        return call

    def finish(self, call: Call) -> None:
        """A call that has ended, however it did."""
        del self._running[call.number]
        self.counts.refused += call.status is not None and call.status != 200
        self.store.add(call)

    def additions(self, call: Call) -> Additions:
        """What is added to this request."""
        if self.passive:
            call.why_plain = "--passive does not request them"
            return NONE
        if kind_of(call) in self._refused:
            call.why_plain = REFUSED_BY_UPSTREAM
            return NONE
        added = additions_for(call.upstream.engine, call.chat, call.body)
        if not added:
            call.why_plain = _why_nothing_added(call.upstream)
        return added

    def refuses(self, call: Call, added: Additions) -> None:
        """The upstream refused this request with the additions and took it without."""
        call.notes.append("the upstream refused what was added to the request; it was sent once more without")
        call.why_plain = REFUSED_BY_UPSTREAM
        self._refused.add(kind_of(call))
        kind = "chat completions" if call.chat else "completions"
        self.say(
            f"the upstream refuses {', '.join(added.fields)} in such requests to {kind}: no longer added"
        )


def _why_nothing_added(upstream: Upstream) -> str:
    if upstream.fingerprint_sha256 is None and upstream.engine is None:
        return "the upstream was not identified yet"
    if upstream.engine is None:
        return "the upstream does not report what it is"
    if not is_known(upstream.engine):
        return f"how to request them from {upstream.engine} is not known"
    return "the requests' own fields leave no room to request them"


def kind_of(call: Call) -> tuple[bool, ...]:
    """(chat, streamed, with tools): what an upstream may refuse about additions depends on this."""
    return call.chat, bool(call.body.get("stream")), bool(call.body.get("tools"))


def route_of(method: str, path: str) -> bool | None:
    """Whether a request goes to chat completions (True), completions (False) or elsewhere (None)."""
    return _ROUTES.get(path.rstrip("/").removeprefix("/v1")) if method == "POST" else None


def request_id_of(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The client's X-Request-Id, cut to what a name needs."""
    for name, value in headers:
        if name.lower() == b"x-request-id":
            text = "".join(c for c in value.decode("latin-1") if c.isprintable())
            return text[:_MOST_NAME].strip() or None
    return None
