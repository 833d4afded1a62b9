"""The envelope: the immutable record of one request, and request sets (JSONL of envelopes).

Field names follow vLLM's `SamplingParams` and the OpenAI API. It does not know how to make token ids
from text; that needs a tokenizer (see `replay/engines/model_files.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .base import BigInteger, Document, JsonObject, Real, Record, sha256_of
from .claim import Claim
from .errors import BadInput
from .jsontext import list_of_lines, whole_document
from .open_files import open_stream

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIdKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
Seed = Annotated[BigInteger, Field(ge=-(2**63), le=2**64 - 1)]
"""What a 64-bit generator takes, signed or unsigned."""
SeedScope = Literal["request", "worker"]

SET_SUFFIX = ".jsonl"
"""What the name of a request set ends with."""

MAX_ENVELOPE_BYTES = 64 << 20
"""Longest envelope read: five million token ids. A larger file is a model or a capture given by mistake."""

FAILED = "error"
"""`context.finish_reason` of a request that was answered with an error."""
DISCONNECTED = "client disconnected"
BROKE_OFF = "upstream broke off"
STOPPED = "recording ended"
"""Likewise, of an answer that was not complete."""

# Part of the envelope (empty: its top), fields there that hold text, fields there that hold token ids.
_PRIVATE_FIELDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("prompt_text", "messages", "tools", "request"), ("prompt_token_ids",)),
    (
        "sampling",
        ("stop", "bad_words", "structured_outputs", "logits_processors"),
        ("stop_token_ids", "logit_bias", "allowed_token_ids"),
    ),
    ("expected", ("text", "reasoning", "tool_calls", "samples"), ("token_ids",)),
    ("runtime", (), ()),
    ("claim", (), ()),
    ("context", ("error", "partial"), ()),
)


class Sampling(Record):
    """How tokens were chosen. A field left out was silent in the request: the engine's default applied."""

    n: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1 both mean: no limit."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    seed: Seed | None = None
    seed_scope: SeedScope | None = None
    """`request`: the seed restarts for every request. `worker`: one generator lives in the process."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[TokenIdKey, float] | None = None
    """Token id (as a JSON key) to the value added to its logit."""
    bad_words: list[str] | None = None
    allowed_token_ids: list[TokenId] | None = None
    structured_outputs: dict[str, Any] | None = None
    logits_processors: list[Any] | None = None

    def stop_strings(self) -> list[str]:
        """The stop strings as a list, whatever form the request used."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


class Runtime(Record):
    """The environment in which the request was answered, as the recorder knew it."""

    engine: str | None = None
    engine_version: str | None = None
    torch_version: str | None = None
    cuda_version: str | None = None
    gpu_model: str | None = None
    tensor_parallel_size: int | None = None
    attention_backend: str | None = None
    quantization: str | None = None
    dtype: str | None = None


class Expected(Record):
    """What the request was answered with when it was recorded."""

    token_ids: list[TokenId] | None = None
    logprobs: list[Real] | None = None
    """Of the chosen tokens, in nats; -Infinity is possible."""
    text: str | None = None
    finish_reason: str | None = None
    reasoning: str | None = None
    """What the engine told apart from the text as the model's reasoning."""
    tool_calls: list[dict[str, Any]] | None = None
    samples: list[Expected] | None = None
    """Of n > 1: the samples after the first, which is this record itself."""


class Context(Record):
    """Where and beside what the request ran."""

    replica_id: str | None = None
    batch_id: str | None = None
    cached_tokens: int | None = None
    arrival_ms: float | None = None
    neighbours: list[str] | None = None
    """Request ids that ran in the same batch."""
    system_fingerprint: str | None = None
    received: str | None = None
    """When the recorder received the request: UTC, ISO 8601."""
    route: str | None = None
    """The endpoint that was asked, for example /v1/chat/completions."""
    stream: bool | None = None
    in_flight: int | None = None
    """Other recorded requests that were being answered when this one came."""
    status: int | None = None
    """HTTP status of the answer."""
    ttft_ms: float | None = None
    """From sending the request on to the first byte of the answer's body."""
    latency_ms: float | None = None
    """From sending the request on to the end of the answer."""
    served_model: str | None = None
    """What the answer calls its model: an alias, no identity."""
    response_id: str | None = None
    raw: str | None = None
    """File with the bytes of the answer, relative to the folder of the request set."""
    finish_reason: str | None = None
    """Why no whole answer came: `client disconnected`, `upstream broke off`, `recording ended`, `error`."""
    error: str | None = None
    partial: Expected | None = None
    """What had come when an answer broke off."""
    notes: list[str] | None = None


class Envelope(Document):
    """One recorded request. Its identity is `sha256()`, over its canonical JSON."""

    KIND: ClassVar[str] = "envelope"
    SCHEMA_OPTIONAL: ClassVar[bool] = True  # the published example carries no schema field

    request_id: Annotated[str, Field(min_length=1)]
    model_artifact_sha256: str | None = None
    tokenizer_sha256: str | None = None
    chat_template_sha256: str | None = None
    prompt_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    prompt_text: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    request: dict[str, Any] | None = None
    """Whatever else the client stated, under its own names: `model`, `tool_choice`, `response_format`, …"""
    sampling: Sampling = Sampling()
    logprobs: Annotated[int, Field(ge=0)] | None = None
    runtime: Runtime = Runtime()
    fingerprint_sha256: str | None = None
    expected: Expected | None = None
    claim: Claim | None = None
    context: Context | None = None
    redactions: dict[str, str] | None = None
    """Dotted name of each field that was removed, to the SHA-256 of what stood there (see `redacted()`)."""

    @model_validator(mode="after")
    def _says_what_was_asked(self) -> Self:
        if (
            self.prompt_token_ids is None
            and self.prompt_text is None
            and not self.messages
            and not self.redactions
        ):
            raise ValueError("one of prompt_token_ids, prompt_text or messages must be given")
        return self

    def redacted(self, keep_token_ids: bool) -> Envelope:
        """The same envelope without text: text fields, and fields unknown to rip, become digests.

        A digest is the SHA-256 of the UTF-8 text, or of the canonical JSON of anything else. It is no
        secret: who can guess a short text can confirm the guess.

        Args:
            keep_token_ids: Keep token ids, which anyone who has the tokenizer can decode to the text;
                otherwise prompt, expected and constraint token ids become digests too.
        """
        raw = self.to_object()
        digests = dict(self.redactions or {})
        for part, always, token_ids in _PRIVATE_FIELDS:
            record = getattr(self, part) if part else self
            holder: JsonObject = raw.get(part, {}) if part else raw
            unknown = tuple((record and record.model_extra) or {})
            for name in (*always, *unknown, *(() if keep_token_ids else token_ids)):
                if name in holder:
                    digests[f"{part}.{name}" if part else name] = _digest(holder.pop(name))
        return Envelope.from_object({**raw, "redactions": digests}, self.request_id)


def _digest(value: Any) -> str:
    return hashlib.sha256(value.encode()).hexdigest() if isinstance(value, str) else sha256_of(value)


def is_placeholder(value: str | None) -> bool:
    """True for values that stand for "to be filled in", as in the published example."""
    return value is not None and (value.strip(". ") == "" or value.startswith("pinned-"))


def load_envelope(path: Path) -> Envelope:
    """Load one envelope.

    Raises:
        BadInput: Missing, unreadable or invalid file.
    """
    try:
        with BufferedReader(open_stream(path)) as file:
            return Envelope.from_json(_bounded(file.read(MAX_ENVELOPE_BYTES + 1), str(path)), str(path))
    except OSError as error:
        raise _unreadable(path, error) from None


def iter_request_set(path: Path) -> Iterator[Envelope]:
    """Load a request set lazily: one envelope a line, empty lines skipped.

    A file that ends in `.json` holds a single envelope.

    Raises:
        BadInput: While iterating, at the first bad line, named by number.
    """
    if path.suffix.lower() == ".json":
        yield load_envelope(path)
        return
    try:
        with BufferedReader(open_stream(path)) as lines:
            for number in count(1):
                where = f"{path}:{number}"
                line = _bounded(lines.readline(MAX_ENVELOPE_BYTES + 1), where)
                if not line:
                    return
                if not line.strip():
                    continue
                try:
                    found = Envelope.from_json(line, where)
                except BadInput:
                    document = whole_document(path, line, MAX_ENVELOPE_BYTES)
                    if document is None:
                        raise
                    raise _one_document(path, document) from None
                yield found
    except OSError as error:
        raise _unreadable(path, error) from None


def load_requests(path: Path) -> list[Envelope]:
    """All envelopes of a file, for callers that need them together.

    Raises:
        BadInput: A bad line, no envelope at all, or the same request id twice.
    """
    envelopes = list(iter_request_set(path))
    if not envelopes:
        raise BadInput(
            f"{path}: an empty request set", "write one envelope a line (rip envelope create --help)"
        )
    seen: set[str] = set()
    for envelope in envelopes:
        if envelope.request_id in seen:
            raise BadInput(
                f"{path}: the request id {envelope.request_id!r} stands twice",
                "give every envelope its own request_id: traces are aligned by it",
            )
        seen.add(envelope.request_id)
    return envelopes


def _bounded(text: bytes, where: str) -> bytes:
    if len(text) > MAX_ENVELOPE_BYTES:
        raise BadInput(
            f"{where}: longer than {MAX_ENVELOPE_BYTES >> 20} MiB, so not an envelope",
            "give an envelope (.json) or a request set, one envelope a line (.jsonl)",
        )
    return text


def _one_document(path: Path, document: JsonObject | list[Any]) -> BadInput:
    if isinstance(document, list):
        return list_of_lines(path)
    return BadInput(
        f"{path}: one JSON document over several lines; a request set has one envelope a line",
        "if it is an envelope, end its name with .json, or write it in one line (jq -c .)",
    )


def _unreadable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path}: cannot be read: {error.strerror}", "check the path and its permissions")
