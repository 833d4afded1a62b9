"""What a request to a server contains: the name of its model, the prompt, the sampling fields of its API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....schemas.envelope import Envelope, Sampling
from ....schemas.errors import BadInput, EngineFailed
from ...request.batches import PlannedSequence
from ...request.client_fields import template_arguments
from ...request.contract import ANSWERED_TEXT
from ...request.resolve_request import Capabilities
from ..base import Opening
from .client import HttpClient, Refused

COMMON_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
)
"""Fields of an envelope that nearly every server supports."""

EMPTY: Mapping[str, Any] = {
    "stop": [],
    "stop_token_ids": [],
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": [],
}
"""Values that are the same as leaving the field out."""


@dataclass(frozen=True)
class RequestFields:
    """The sampling fields of one API.

    Attributes:
        names: Fields that are sent, by the envelope's names.
        renamed: The API's names of those that it names differently.
        left_out: Values that are not sent, because leaving the field out means the same.
        seed: From a seed to the number that the API takes.
        special: Fields that it supports in a form of their own.
    """

    names: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    seed: Callable[[int], int] = int
    special: tuple[str, ...] = ()

    @property
    def unsupported(self) -> frozenset[str]:
        """Fields that it does not support. A worker's seed is out of a client's reach."""
        return frozenset(Sampling.model_fields) - {"n", "max_tokens", *self.names, *self.special}

    def applying(self, plan: PlannedSequence) -> dict[str, Any]:
        """Every value that applies to a sequence; a field that is left to the server is not among them."""
        return self._named(plan, [name for name in self.names if plan.value(name) is not None])

    def stated(self, plan: PlannedSequence) -> dict[str, Any]:
        """The values that the envelope states. To the others the server's defaults apply."""
        return self._named(plan, [name for name in self.names if plan.sampling[name].is_stated])

    def _named(self, plan: PlannedSequence, names: list[str]) -> dict[str, Any]:
        values = {name: self.seed(plan.seed) if name == "seed" else plan.value(name) for name in names}
        return {
            self.renamed.get(name, name): value
            for name, value in values.items()
            if name not in self.left_out or value != self.left_out[name]
        }


def is_unlimited(plan: PlannedSequence) -> bool:
    """Whether the limit of tokens is left to the server, as it was when the answer was recorded."""
    return plan.sampling["max_tokens"].source == ANSWERED_TEXT


TEXT_ONLY = "token ids and log-probabilities: this engine returns only text"

TEXT_ENGINE = Capabilities(token_ids=False, most_topk=0, logprobs="none", batch="concurrent", starts=False)
"""What a server supports that is called with text and answers with text."""

MOST_SHOWN = 20
"""Models that an error names: a provider serves hundreds."""


async def check_kind(client: HttpClient, kind: str, signs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What a server reports of itself, if it is of the expected kind.

    Args:
        kind: What it should be, for messages.
        signs: Paths that it may answer, each with the names that its answer then has; the first one counts.

    Raises:
        EngineFailed: It is something else, or cannot be called.
    """
    for path, names in signs.items():
        try:
            found = await client.json("GET", path)
        except Refused as refusal:
            if refusal.status != 404:
                raise
            continue
        if isinstance(found, dict) and all(name in found for name in names):
            return found
    raise EngineFailed(
        f"{client.url} is not a {kind} server: its {next(iter(signs))} does not say so",
        "choose the engine that serves there with --engine",
    )


async def served_models(client: HttpClient) -> list[Mapping[str, Any]]:
    """What `/v1/models` lists; every entry has an `id`.

    Raises:
        EngineFailed: It cannot be called.
    """
    found = await client.json("GET", "/v1/models")
    return [model for model in found.get("data") or () if isinstance(model, dict) and model.get("id")]


def wanted_model(opening: Opening) -> str | None:
    """The name that the user stated: `--set served_model`, else `--model` if it names no files, else None."""
    named = opening.settings.get("served_model")
    if named is None and opening.model is None:
        named = opening.model_name
    return None if named is None else str(named)


def chosen_model(wanted: str | None, served: Sequence[str], first: bool = True) -> str:
    """The served model that is meant.

    Args:
        wanted: As `wanted_model` returns it.
        served: What the server lists.
        first: Where none was named, take the first one; else there must be only one.

    Raises:
        BadInput: It is not served, or which one is meant is not clear.
    """
    if wanted is None and served and (first or len(served) == 1):
        return served[0]
    if wanted is not None and wanted in served:
        return wanted
    if wanted is None and served:
        raise BadInput(f"the server has {len(served)} models", f"name one with --model: {_listed(served)}")
    raise BadInput(
        f"the server does not serve {wanted!r}" if wanted else "the server lists no model",
        f"it serves: {_listed(served)}" if served else "see the log of the server",
    )


async def chosen_entry(client: HttpClient, opening: Opening) -> Mapping[str, Any]:
    """The entry of `/v1/models` of the model that is called; the first one where none was named.

    Raises:
        BadInput: It is not served.
        EngineFailed: The server cannot be called.
    """
    served = {str(model["id"]): model for model in await served_models(client)}
    return served[chosen_model(wanted_model(opening), list(served))]


def chat_body(envelope: Envelope) -> dict[str, Any]:
    """Messages, tools and what else the template gets, as all APIs take them."""
    tools = {"tools": envelope.tools} if envelope.tools else {}
    return {"messages": envelope.messages, **tools, **template_arguments(envelope)}


def text_body(envelope: Envelope, **prompt: Any) -> tuple[bool, dict[str, Any]]:
    """Whether a request is a chat, and its part of the body: messages and tools, or the prompt text.

    Args:
        prompt: What else stands beside a prompt text.
    """
    if envelope.messages:
        return True, chat_body(envelope)
    return False, {"prompt": envelope.prompt_text, **prompt}


async def server_tokens(client: HttpClient, body: dict[str, Any]) -> list[int]:
    """Token ids as a server's `/tokenize` returns them."""
    found = await client.json("POST", "/tokenize", body)
    return [int(token) for token in found["tokens"]]


async def server_text(client: HttpClient, body: dict[str, Any], field: str) -> str | None:
    """The text that a server's `/detokenize` returns in a field; None where it is none."""
    text = (await client.json("POST", "/detokenize", body)).get(field)
    return text if isinstance(text, str) else None


def text_request(plan: PlannedSequence) -> Envelope:
    """The request of a sequence, for an engine that takes text.

    Raises:
        BadInput: There is no text: a synthetic neighbour, or an envelope with token ids only.
    """
    envelope = plan.envelope
    if envelope is None or (not envelope.messages and envelope.prompt_text is None):
        raise BadInput(
            f"{plan.request_id} has no text, and this engine takes nothing else",
            "give prompt_text or messages in the envelope, and --neighbours a request set, not a number",
        )
    return envelope


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_SHOWN])
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"
