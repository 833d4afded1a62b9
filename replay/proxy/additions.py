"""What the proxy adds to the requests of each engine, and how to remove exactly that from its answers.

Only engines whose answers with and without it were compared are known here. To any other nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


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


def listed(value: Any) -> list[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []
