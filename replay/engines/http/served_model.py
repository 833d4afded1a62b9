"""What the adapters share: which served model is meant, what is asked where text is taken, who answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....schemas.envelope import Envelope
from ....schemas.errors import BadInput, EngineFailed
from ...request.batches import PlannedSequence
from ...request.contract import ANSWERED_TEXT
from ..base import Capabilities, Opening
from .client import HttpClient, Refused

TEXT_ONLY = "token ids and log-probabilities: of this engine only the text is compared"

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
"""Fields of an envelope that nearly every server has a word for."""

TEXT_ENGINE = Capabilities(
    modes=("free",),
    sites=False,
    logits_hash=False,
    seed=True,
    token_ids=False,
    most_topk=0,
    logprobs="none",
    batch="concurrent",
    starts=False,
)
"""What a server can do that is called with text and answers with text."""

MOST_SHOWN = 20
"""Models that an error names: a provider serves hundreds."""


async def recognised(client: HttpClient, kind: str, signs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What a server says of itself.

    Args:
        client: Asks it.
        kind: What it should be, in words.
        signs: Paths that it may answer, each with the names that its answer then has; the first one counts.

    Raises:
        EngineFailed: It is something else, or cannot be asked.
    """
    for path, names in signs.items():
        try:
            said = await client.json("GET", path)
        except Refused as refusal:
            if refusal.status != 404:
                raise
            continue
        if isinstance(said, dict) and all(name in said for name in names):
            return said
    raise EngineFailed(
        f"{client.url} is no {kind} server: its {next(iter(signs))} does not say so",
        "choose the engine that serves there with --engine",
    )


async def served_models(client: HttpClient) -> list[Mapping[str, Any]]:
    """What `/v1/models` lists; every entry has an `id`.

    Raises:
        EngineFailed: It cannot be asked.
    """
    said = await client.json("GET", "/v1/models")
    return [model for model in said.get("data") or () if isinstance(model, dict) and model.get("id")]


def wanted_model(opening: Opening) -> str | None:
    """The name that the user gave: `--set served_model`, else `--model` if it names no files, else None."""
    named = opening.given.get("served_model")
    if named is None and opening.model is None:
        named = opening.model_name
    return None if named is None else str(named)


def chosen_model(wanted: str | None, served: Sequence[str], first: bool = True) -> str:
    """The served model that is meant.

    Args:
        wanted: As `wanted_model` gives it.
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


def stated(plan: PlannedSequence, names: Iterable[str]) -> dict[str, Any]:
    """The sampling values that the envelope states, by name. To the others the server's defaults apply."""
    said = {name: plan.value(name) for name in names if plan.sampling[name].source == "envelope"}
    if "seed" in said:
        said["seed"] = int(str(said["seed"])) + plan.seed_offset
    return said


def is_unlimited(plan: PlannedSequence) -> bool:
    """Whether the server is left to its own limit, as it was when the answer was recorded."""
    return plan.sampling["max_tokens"].source == ANSWERED_TEXT


def answered_by(said: Mapping[str, Any]) -> dict[str, str]:
    """What a piece of an answer tells of the one who gave it."""
    return {name: str(said[name]) for name in ("model", "system_fingerprint") if said.get(name)}


def check_went_well(said: Mapping[str, Any]) -> None:
    """Refuse an error that stands where a piece of an answer should.

    Raises:
        EngineFailed: It is one.
    """
    if not said.get("error"):
        return
    error = said["error"]
    message = error.get("message", error) if isinstance(error, dict) else error
    raise EngineFailed(
        f"the server gave up: {str(message)[:300]}", "ask for what it allows, or see the log of the server"
    )


def unended() -> EngineFailed:
    """The error for a stream that ends before its answer does."""
    return EngineFailed("the stream ended before the answer did", "see the log of the server")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_SHOWN])
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"
