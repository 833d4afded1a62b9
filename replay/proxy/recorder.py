"""Which calls are recorded and what is added to them; counts for the summary.

It does not know HTTP: `forward.py` passes it every request.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .additions import NONE, Additions, Json, additions_for, is_known
from .call import Call, Upstream
from .store import Store

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


@dataclass(frozen=True)
class Shape:
    """Requests alike in what an upstream may refuse about additions."""

    chat: bool
    stream: bool
    tools: bool


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
    _refused_shapes: set[Shape] = field(default_factory=set)

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
        if shape_of(call) in self._refused_shapes:
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
        self._refused_shapes.add(shape_of(call))
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


def shape_of(call: Call) -> Shape:
    """What an upstream may refuse about additions depends on this."""
    return Shape(call.chat, bool(call.body.get("stream")), bool(call.body.get("tools")))


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
