"""The envelope: the immutable record of one request, and request sets (JSONL of envelopes).

Field names follow vLLM's `SamplingParams` and the OpenAI API. It does not know how to make token ids
from text; that needs a tokenizer (see `replay/prompt.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .base import Document, JsonObject, Record
from .claim import Claim
from .errors import BadInput

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
SeedScope = Literal["request", "worker"]


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
    seed: int | None = None
    seed_scope: SeedScope | None = None
    """`request`: the seed restarts for every request. `worker`: one generator lives in the process."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
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
    logprobs: list[float] | None = None
    text: str | None = None
    finish_reason: str | None = None


class Context(Record):
    """Where and beside what the request ran."""

    replica_id: str | None = None
    batch_id: str | None = None
    cached_tokens: int | None = None
    arrival_ms: float | None = None
    neighbours: list[str] | None = None
    """Request ids that ran in the same batch."""
    system_fingerprint: str | None = None


class Envelope(Document):
    """One recorded request. Its identity is `sha256()`, over its canonical JSON."""

    KIND: ClassVar[str] = "envelope"
    SCHEMA_OPTIONAL: ClassVar[bool] = True  # the published example carries no schema field

    request_id: Annotated[str, Field(min_length=1)]
    model_artifact_sha256: str | None = None
    tokenizer_sha256: str | None = None
    chat_template_sha256: str | None = None
    prompt_token_ids: list[TokenId] | None = None
    prompt_text: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    sampling: Sampling = Sampling()
    logprobs: Annotated[int, Field(ge=0)] | None = None
    runtime: Runtime = Runtime()
    fingerprint_sha256: str | None = None
    expected: Expected | None = None
    claim: Claim | None = None
    context: Context | None = None

    @model_validator(mode="after")
    def _says_what_was_asked(self) -> Self:
        redacted = (self.model_extra or {}).get("redacted")
        if self.prompt_token_ids is None and self.prompt_text is None and not self.messages and not redacted:
            raise ValueError("one of prompt_token_ids, prompt_text or messages must be given")
        return self

    def redacted(self, keep_token_ids: bool) -> Envelope:
        """The same envelope with text replaced by SHA-256 digests.

        Args:
            keep_token_ids: Keep prompt and expected token ids (they can be decoded to text by anyone
                who has the tokenizer); otherwise their digests stand in.
        """
        raw = self.to_object()
        hidden: JsonObject = {}

        def hide(holder: JsonObject, key: str, name: str) -> None:
            if key in holder:
                value = holder.pop(key)
                text = value if isinstance(value, str) else repr(value)
                hidden[name] = hashlib.sha256(text.encode()).hexdigest()

        for key in ("prompt_text", "messages", "tools"):
            hide(raw, key, f"{key}_sha256")
        expected = raw.get("expected", {})
        hide(expected, "text", "expected_text_sha256")
        hide(raw.get("sampling", {}), "stop", "stop_sha256")
        hide(raw.get("sampling", {}), "bad_words", "bad_words_sha256")
        if not keep_token_ids:
            hide(raw, "prompt_token_ids", "prompt_token_ids_sha256")
            hide(expected, "token_ids", "expected_token_ids_sha256")
        return Envelope.from_object({**raw, "redacted": hidden}, self.request_id)


def is_placeholder(value: str | None) -> bool:
    """True for values that stand for "to be filled in", as in the published example."""
    return value is not None and (value.strip(". ") == "" or value.startswith("pinned-"))


def load_envelope(path: Path) -> Envelope:
    """Load one envelope.

    Raises:
        BadInput: Missing, unreadable or invalid file.
    """
    return Envelope.from_json(_read_bytes(path), str(path))


def iter_request_set(path: Path) -> Iterator[Envelope]:
    """Load a request set lazily: one envelope a line, empty lines skipped.

    A file that ends in `.json` holds a single envelope.

    Raises:
        BadInput: While iterating, at the first bad line, named by number.
    """
    if path.suffix == ".json":
        yield load_envelope(path)
        return
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield Envelope.from_json(line, f"{path}:{number}")
    except OSError as error:
        raise _unreadable(path, error) from None


def load_requests(path: Path) -> list[Envelope]:
    """All envelopes of a file, for callers that need them together.

    Raises:
        BadInput: A bad line, no envelope at all, or the same request id twice.
    """
    envelopes = list(iter_request_set(path))
    if not envelopes:
        raise BadInput(f"{path}: an empty request set", "write one envelope per line (rip envelope --help)")
    seen: set[str] = set()
    for envelope in envelopes:
        if envelope.request_id in seen:
            raise BadInput(
                f"{path}: the request id {envelope.request_id!r} stands twice",
                "give every envelope its own request_id: traces are aligned by it",
            )
        seen.add(envelope.request_id)
    return envelopes


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path}: cannot be read: {error.strerror}", "check the path and its permissions")
