"""Engine `tgi`: a server of Text Generation Inference by its URL. It takes text and returns token ids.

So that a trace claims no prompt token that the server did not read, its own `/tokenize` shows what the text
becomes: unless these are the prompt's ids, nothing is generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....schemas.envelope import Envelope
from ....schemas.errors import BadInput
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...request.expected_answer import first_difference
from ...request.resolve_request import Capabilities
from ...row_summaries.rows import TopK
from ..base import sorted_topk
from .answer_rows import End, Events, Piece, check_no_error, stream_unfinished_error
from .request_body import RequestFields, chat_body, check_kind, text_request
from .server import ServerEngine

LEFT_OUT: Mapping[str, Any] = {
    "top_p": 1,
    "top_k": 0,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "stop": [],
}
"""Values that TGI refuses, or that mean the same as leaving the field out."""

MOST_TOP_TOKENS = 5
"""What its launcher allows unless --max-top-n-tokens says more."""


class TgiEngine(ServerEngine):
    """A TGI server (see `server.ServerEngine`)."""

    name = "tgi"
    capabilities = Capabilities(
        most_topk=MOST_TOP_TOKENS, logprobs="processed", batch="concurrent", starts=False
    )
    fields = RequestFields(
        ("top_p", "top_k", "frequency_penalty", "repetition_penalty", "seed", "stop"),
        left_out=LEFT_OUT,
        special=("temperature",),
    )

    async def connect(self) -> None:
        """Find out what is served.

        Raises:
            EngineFailed: No TGI server.
        """
        info = await check_kind(self.client, "TGI", {"/info": ("model_id",)})
        names = {"model": "model_id", "model_sha": "model_sha", "version": "version", "commit": "sha"}
        self._by = {name: str(info[key]) for name, key in names.items() if info.get(key)}
        self.context_length = int(info.get("max_total_tokens") or self.context_length)
        self._texts: dict[tuple[int, ...], str] = {}
        """What was found to become these ids: samples of a request share it."""

    async def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request (see `server.ServerEngine.answer`)."""
        body = {"inputs": await self._text(plan), "parameters": self._parameters(plan)}
        last: Mapping[str, Any] | None = None
        async for event in self.client.events("/generate_stream", body):
            check_no_error(event)
            token = event["token"]
            topk = self._distribution(event.get("top_tokens") or (), float(token["logprob"]))
            yield Piece([int(token["id"])], [topk], token["text"])
            if event.get("details"):
                last = event
        if last is None:
            raise stream_unfinished_error()
        reason = "length" if last["details"]["finish_reason"] == "length" else "stop"
        yield End(reason, last.get("generated_text"), answered_by=self._by)

    async def tokenize_remotely(self, envelope: Envelope) -> list[int]:
        """Token ids by the server's own tokenizer and template."""
        if envelope.messages:
            _, tokens = await self._rendered(envelope)
        else:
            tokens = await self._tokens_of(envelope.prompt_text or "")
        return [token for token, _ in tokens]

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
            text, _ = await self._rendered(envelope)
        made = await self._tokens_of(text)
        if (
            len(made) > 1
            and made[0][0] == made[1][0]
            and plan.prompt == tuple(token for token, _ in made[1:])
        ):
            # A template writes its own first token, and TGI puts another one before every text.
            text = text.removeprefix(made[1][1])
            made = await self._tokens_of(text)
        position = first_difference(plan.prompt, [token for token, _ in made])
        if position is not None:
            raise BadInput(
                f"{plan.request_id}: this server tokenizes the text differently from the envelope, "
                f"from position {position} on",
                "remove prompt_token_ids from the envelope to replay the text as this server reads it",
            )
        self._texts[plan.prompt] = text
        return text

    async def _rendered(self, envelope: Envelope) -> tuple[str, list[tuple[int, str]]]:
        """What the server's template makes of messages: the text, and its tokens."""
        rendered = await self.client.json("POST", "/chat_tokenize", chat_body(envelope))
        return str(rendered["templated_text"]), _tokens(rendered["tokenize_response"])

    async def _tokens_of(self, text: str) -> list[tuple[int, str]]:
        """What the server's tokenizer makes of a text."""
        return _tokens(await self.client.json("POST", "/tokenize", {"inputs": text}))

    def _parameters(self, plan: PlannedSequence) -> dict[str, Any]:
        values = self.fields.applying(plan)
        temperature = plan.value("temperature")
        if temperature == 0:
            # Greedy is the absence of everything that is for drawing.
            for name in ("top_p", "top_k", "seed"):
                values.pop(name, None)
        elif temperature is not None:
            values |= {"temperature": temperature, "do_sample": True}
        return {
            **values,
            "max_new_tokens": plan.most_tokens,
            "details": True,
            **({"top_n_tokens": self.topk} if self.topk else {}),
        }

    def _distribution(self, top: Any, chosen: float) -> TopK | None:
        if not top:
            return None
        return sorted_topk({int(one["id"]): float(one["logprob"]) for one in top}, self.topk, chosen)


def _tokens(found: Any) -> list[tuple[int, str]]:
    """Ids and texts as `/tokenize` returns them."""
    return [(int(token["id"]), str(token["text"])) for token in found]
