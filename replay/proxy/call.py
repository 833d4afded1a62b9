"""One recorded call: its request and answer, when and how it ended, and the envelopes it becomes."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus

from ...schemas.envelope import FAILED, Envelope
from ...schemas.errors import BadInput
from ..sse import EventTooLong, Splitter, data_of
from ..wire import HIDDEN
from .exchange import Answer, Circumstances, Json, compose, context_of, error_text, iso, read_request, stated

_GZIP = 16 + 13
"""zlib's number for a gzip file with a window of 8 KiB: a stream repeats itself within one event."""
_MEMORY_LEVEL = 6
_SHORTEST_SECRET = 8
_SHORTEST_COOKIE = 16
"""Shorter credentials are not searched for: they would be found in any text."""
_SECRET_HEADERS = ("-key", "-token", "-secret", "-password")
_SECRET_PARAMETERS = ("key", "token", "secret", "password")


@dataclass(frozen=True)
class Upstream:
    """What is known of the server behind the proxy."""

    url: str
    """Without credentials."""
    engine: str | None = None
    runtime: Json = field(default_factory=dict)
    """Fields of the envelope's `runtime`."""
    fingerprint_sha256: str | None = None


@dataclass
class Call:
    """A call while it runs. The bytes of its answer are kept compressed: so thousands fit into memory."""

    number: int
    chat: bool
    route: str
    body: Json
    request_id: str | None
    secrets: tuple[str, ...] = field(repr=False)
    """Credentials the client sent: to be taken out of whatever is kept, and to be forgotten with the call."""
    upstream: Upstream
    arrival_ms: float
    in_flight: int
    limit: int
    """Bytes of an answer that are kept."""
    held_bytes: int
    """Memory that this call takes: the request, and its answer as far as it has arrived."""
    received: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: float = field(default_factory=time.perf_counter)
    first_byte: float | None = None
    ended: float | None = None
    status: int | None = None
    streamed: bool = False
    """The answer is an event stream."""
    ending: str | None = None
    """Why there is no whole answer; None where there is one."""
    answer_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    why_plain: str | None = None
    """Why token ids were not requested; None: they were."""
    raw_name: str | None = None
    """File of the answer's bytes, once it is written."""
    _packed: list[bytes] = field(default_factory=list, repr=False)
    _packer: Any = field(default=None, repr=False)

    def keep(self, chunk: bytes) -> None:
        """Keep bytes of the answer as the upstream sent them."""
        if self.first_byte is None and chunk:
            self.first_byte = time.perf_counter()
        self.answer_bytes += len(chunk)
        if self.is_cut:
            return
        if self._packer is None:
            self._packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP, _MEMORY_LEVEL)
        self._pack(self._packer.compress(chunk))

    @property
    def is_cut(self) -> bool:
        """The answer is longer than what is kept."""
        return self.answer_bytes > self.limit

    def end(self, ending: str | None = None) -> None:
        """The call is over."""
        self.ended = time.perf_counter()
        self.ending = ending
        if self._packer is not None:
            self._pack(self._packer.flush())
            self._packer = None

    def _pack(self, packed: bytes) -> None:
        if packed:
            self._packed.append(packed)
            self.held_bytes += len(packed)

    def packed(self) -> bytes:
        """The answer as a gzip file, without the client's credentials, should the upstream echo them."""
        packed = b"".join(self._packed)
        raw = self._unpacked()
        clean = raw
        for secret in self.secrets:
            clean = clean.replace(secret.encode(), HIDDEN.encode())
        if clean == raw:
            return packed
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP, _MEMORY_LEVEL)
        return packer.compress(clean) + packer.flush()

    def envelopes(
        self, unique: Callable[[str], str], identity: Json, is_secret: Callable[[str], bool]
    ) -> Iterator[Envelope]:
        """One envelope a prompt.

        Args:
            unique: Makes a request id one that no other envelope of the recording has.
            identity: Hashes of model, tokenizer and template, where they are known.
            is_secret: Whether a field of that name holds a secret.

        Raises:
            BadInput: The request or the answer holds what an envelope cannot.
        """
        request = read_request(self.body, self.chat, is_secret)
        answer = self._answer()
        if not request.prompts:
            raise BadInput("a request without a prompt that an envelope can hold", "nothing to do")
        known = Circumstances(
            complete=self.status == 200 and not self.is_cut,
            ending=self.ending or FAILED,
            context={**self._context(), **context_of(answer, self.status)},
            identity=identity,
            runtime=self.upstream.runtime,
            fingerprint_sha256=self.upstream.fingerprint_sha256,
        )
        base = self.request_id or answer.response_id or f"req-{self.received:%Y%m%dT%H%M%S}-{self.number}"
        for raw in compose(request, answer, base, known):
            raw["request_id"] = unique(raw["request_id"])
            yield Envelope.from_object(self._scrubbed(raw), raw["request_id"])

    def _context(self) -> Json:
        notes = list(self.notes)
        if self.is_cut:
            notes.append(
                f"of the answer's {self.answer_bytes} bytes the first {self.limit} or fewer were kept"
            )
        return stated(
            {
                "replica_id": self.upstream.url,
                "arrival_ms": round(self.arrival_ms, 3),
                "received": iso(self.received),
                "route": self.route,
                "stream": self.streamed,
                "in_flight": self.in_flight,
                "ttft_ms": self._since(self.first_byte),
                "latency_ms": self._since(self.ended),
                "raw": self.raw_name,
                "notes": notes or None,
            }
        )

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else round((moment - self.started) * 1000, 3)

    def _answer(self) -> Answer:
        """Put together from the bytes that were kept."""
        answer, raw = Answer(), self._unpacked()
        if not self.streamed:
            try:
                payload = json.loads(raw)
            except (ValueError, RecursionError):
                return answer
            answer.add(payload)
            if self.status != 200 and answer.error is None:
                answer.error = error_text(payload)
            return answer
        splitter = Splitter()
        try:
            for event in splitter.feed(raw):
                data = data_of(event)
                if data is not None and data.strip() != b"[DONE]":
                    answer.add(json.loads(data))
        except (ValueError, RecursionError, EventTooLong):
            answer.error = answer.error or "an event of the answer is not JSON: what follows it was not read"
        return answer

    def _unpacked(self) -> bytes:
        unpacker = zlib.decompressobj(_GZIP)
        return unpacker.decompress(b"".join(self._packed)) if self._packed else b""

    def _scrubbed(self, raw: Json) -> Json:
        text = json.dumps(raw)
        for secret in self.secrets:
            text = text.replace(json.dumps(secret)[1:-1], HIDDEN)
        cleaned: Json = json.loads(text)
        return cleaned


def credentials(headers: list[tuple[bytes, bytes]], query: bytes) -> tuple[str, ...]:
    """The secrets of a request, as they must not be found in what is kept."""
    found: list[str] = []
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        if name == "cookie":
            parts = [part.partition("=")[2].strip() for part in value.split(";")]
            found += [part for part in parts if len(part) >= _SHORTEST_COOKIE]
        elif name.endswith("authorization"):
            found += [value, value.partition(" ")[2].strip()]
        elif name.endswith(_SECRET_HEADERS):
            found.append(value)
    for pair in query.decode("latin-1").split("&"):
        parameter, _, value = pair.partition("=")
        if parameter.lower().endswith(_SECRET_PARAMETERS):
            found += [value, unquote_plus(value)]
    # Digits alone would be found among token ids.
    secrets = {text for text in found if len(text) >= _SHORTEST_SECRET and not text.isdecimal()}
    return tuple(sorted(secrets, key=len, reverse=True))
