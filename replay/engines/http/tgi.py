"""Engine `tgi`: a server of Text Generation Inference by its URL. It takes text and tells token ids.

So that a trace claims no prompt token that the server did not read, its own `/tokenize` is asked what the
text becomes: unless these are the prompt's ids, nothing is generated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...row_summaries.trace_rows import TopK
from ..base import Capabilities
from .answer import End, Event, Piece, sorted_topk
from .served_model import check_went_well, recognised, text_request, unended
from .server import ServerEngine

SAMPLING = ("top_p", "top_k", "frequency_penalty", "repetition_penalty", "seed", "stop")
"""Fields of an envelope that TGI calls as it does; `temperature` is its own matter."""
NO_LIMIT: Mapping[str, Any] = {
    "top_p": 1,
    "top_k": 0,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "stop": [],
}
"""Values that TGI does not take, or that say nothing, because leaving the field out says them."""

MOST_TOP_TOKENS = 5
"""What its launcher allows unless --max-top-n-tokens says more."""


class TgiEngine(ServerEngine):
    """A TGI server (see `server.ServerEngine`)."""

    name = "tgi"
    capabilities = Capabilities(
        modes=("free",),
        sites=False,
        logits_hash=False,
        seed=True,
        most_topk=MOST_TOP_TOKENS,
        logprobs="processed",
        batch="concurrent",
        starts=False,
    )
    sampling = ("temperature", *SAMPLING)

    async def connect(self) -> None:
        """See what is served.

        Raises:
            EngineFailed: No TGI server.
        """
        info = await recognised(self.client, "TGI", {"/info": ("model_id",)})
        names = {"model": "model_id", "model_sha": "model_sha", "version": "version", "commit": "sha"}
        self._by = {name: str(info[told]) for name, told in names.items() if info.get(told)}
        self.context_length = int(info.get("max_total_tokens") or self.context_length)
        self._texts: dict[tuple[int, ...], str] = {}
        """What was found to become these ids: samples of a request ask only once."""

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request (see `server.ServerEngine.answer`)."""
        return self._generated(plan)

    async def tokenize_remotely(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids by the server's own tokenizer and template.

        Raises:
            BadInput: It makes none of this.
        """
        try:
            if not messages:
                return [token for token, _ in await self._read(text or "")]
            return [token for token, _ in (await self._rendered(messages, tools))[1]]
        except EngineFailed as error:
            raise BadInput(f"the server makes no token ids of it: {error.message}", error.fix) from error

    async def _generated(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        body = {"inputs": await self._text(plan), "parameters": self._parameters(plan)}
        end: Mapping[str, Any] | None = None
        async for said in self.client.events("/generate_stream", body):
            check_went_well(said)
            token = said["token"]
            topk = self._distribution(said.get("top_tokens") or (), float(token["logprob"]))
            yield Piece([int(token["id"])], [topk], token["text"])
            if said.get("details"):
                end = said
        if end is None:
            raise unended()
        reason = "length" if end["details"]["finish_reason"] == "length" else "stop"
        yield End(reason, end.get("generated_text"), answered_by=self._by)

    async def _text(self, plan: PlannedSequence) -> str:
        """The text that becomes the prompt's ids.

        Raises:
            BadInput: There is none.
        """
        if plan.prompt in self._texts:
            return self._texts[plan.prompt]
        envelope = text_request(plan)
        text = envelope.prompt_text or ""
        if envelope.messages:
            text, _ = await self._rendered(envelope.messages, envelope.tools)
        made = await self._read(text)
        if (
            len(made) > 1
            and made[0][0] == made[1][0]
            and plan.prompt == tuple(token for token, _ in made[1:])
        ):
            # A template writes its own first token, and TGI puts another one before every text.
            text = text.removeprefix(made[1][1])
            made = await self._read(text)
        place = next(_differences(plan.prompt, [token for token, _ in made]), None)
        if place is not None:
            raise BadInput(
                f"{plan.request_id}: this server reads the text as other tokens than the envelope has, "
                f"from position {place} on",
                "remove prompt_token_ids from the envelope to replay the text as this server reads it",
            )
        self._texts[plan.prompt] = text
        return text

    async def _rendered(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> tuple[str, list[tuple[int, str]]]:
        """What the server's template makes of messages: the text, and its tokens."""
        body = {"messages": messages, **({"tools": tools} if tools else {})}
        said = await self.client.json("POST", "/chat_tokenize", body)
        return str(said["templated_text"]), _tokens(said["tokenize_response"])

    async def _read(self, text: str) -> list[tuple[int, str]]:
        """What the server's tokenizer makes of a text."""
        return _tokens(await self.client.json("POST", "/tokenize", {"inputs": text}))

    def _parameters(self, plan: PlannedSequence) -> dict[str, Any]:
        """A field that says nothing is left out, as TGI refuses most of these values."""
        asked = {name: value for name in SAMPLING if (value := plan.value(name)) is not None}
        asked = {name: value for name, value in asked.items() if value != NO_LIMIT.get(name)}
        asked["seed"] = int(str(plan.value("seed"))) + plan.seed_offset
        temperature = plan.value("temperature")
        if temperature == 0:
            # It knows greedy only as the absence of everything that is for drawing.
            for name in ("top_p", "top_k", "seed"):
                asked.pop(name, None)
        elif temperature is not None:
            asked |= {"temperature": temperature, "do_sample": True}
        return {
            **asked,
            "max_new_tokens": plan.most_tokens,
            "details": True,
            **({"top_n_tokens": self.topk} if self.topk else {}),
        }

    def _distribution(self, told: Any, chosen: float) -> TopK | None:
        if not told:
            return None
        ids, logprobs = [int(one["id"]) for one in told], [float(one["logprob"]) for one in told]
        return sorted_topk(ids, logprobs, self.topk, chosen)


def _tokens(told: Any) -> list[tuple[int, str]]:
    """Ids and texts as `/tokenize` tells them."""
    return [(int(token["id"]), str(token["text"])) for token in told]


def _differences(wanted: tuple[int, ...], made: list[int]) -> Iterator[int]:
    """Positions at which they differ; where one of them ends, once."""
    for position, (one, other) in enumerate(zip(wanted, made, strict=False)):
        if one != other:
            yield position
    if len(wanted) != len(made):
        yield min(len(wanted), len(made))
