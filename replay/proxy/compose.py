"""Envelopes out of a request and its answer, whoever recorded them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from ...schemas.envelope import FAILED
from .additions import Json
from .answer import Answer, Choice
from .request import ClientRequest, Prompt


@dataclass(frozen=True)
class Circumstances:
    """What is known beside request and answer.

    Attributes:
        complete: Nothing is known that makes the answer less than whole.
        ending: Why it is not, should it not be.
        context: Fields of the envelope's context.
        identity: Hashes of model, tokenizer and template.
        runtime: Fields of the envelope's runtime.
    """

    complete: bool
    ending: str | None = None
    context: Json = field(default_factory=dict)
    identity: Json = field(default_factory=dict)
    runtime: Json = field(default_factory=dict)
    fingerprint_sha256: str | None = None


def compose(request: ClientRequest, answer: Answer, base: str, known: Circumstances) -> Iterator[Json]:
    """One envelope a prompt, as JSON that `Envelope.from_object` reads.

    Args:
        request: The request.
        answer: What arrived; may be empty.
        base: Request id; of several prompts it gets the prompt's index and becomes their batch id.
        known: Everything else.
    """
    several = len(request.prompts) > 1
    for index, prompt in enumerate(request.prompts):
        raw = _envelope(request, answer, index, prompt, known)
        if several:
            raw["context"]["batch_id"] = base
        yield {"request_id": f"{base}-{index}" if several else base, **raw}


def _envelope(
    request: ClientRequest, answer: Answer, index: int, prompt: Prompt, known: Circumstances
) -> Json:
    first = index * request.samples
    samples = [answer.choices[first + i] for i in range(request.samples) if first + i in answer.choices]
    returned = next((choice.prompt_token_ids for choice in samples if choice.prompt_token_ids), None)
    ids = prompt.token_ids or returned or (answer.prompt_token_ids if len(request.prompts) == 1 else None)
    found = [choice.expected((prompt.text or "") if request.echo else None) for choice in samples]
    whole = known.complete and not answer.error and _are_whole(samples, request.samples)
    context = dict(known.context)
    if not whole and (known.ending or answer.error):
        context["finish_reason"] = known.ending or FAILED
    if found and not whole:
        context["partial"] = _of_samples(found)
    return stated(
        {
            **known.identity,
            "prompt_token_ids": ids or None,
            "prompt_text": prompt.text,
            "messages": request.messages,
            "tools": request.tools,
            "request": request.rest or None,
            "sampling": request.sampling,
            "logprobs": request.logprobs,
            "runtime": known.runtime,
            "fingerprint_sha256": known.fingerprint_sha256,
            "expected": _of_samples(found) if found and whole else None,
            "context": context,
        }
    )


def context_of(answer: Answer, status: int | None) -> Json:
    """What an answer adds to the envelope's context."""
    return stated(
        {
            "cached_tokens": answer.cached_tokens,
            "system_fingerprint": answer.system_fingerprint,
            "status": status,
            "served_model": answer.model,
            "response_id": answer.response_id,
            # What refuses a key may quote it.
            "error": answer.error if status not in (401, 403) else None,
        }
    )


def iso(moment: datetime) -> str:
    """ISO 8601 with milliseconds."""
    return moment.isoformat(timespec="milliseconds")


def stated(fields: Json) -> Json:
    """Without what is None."""
    return {name: value for name, value in fields.items() if value is not None}


def _are_whole(samples: list[Choice], wanted: int) -> bool:
    return len(samples) == wanted and all(choice.finish_reason for choice in samples)


def _of_samples(samples: list[Json]) -> Json:
    """The first sample, with those after it beside it."""
    return samples[0] if len(samples) == 1 else {**samples[0], "samples": samples[1:]}
