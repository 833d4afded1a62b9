"""Engine `openai`: any server that speaks the OpenAI API. It takes and tells text, which is compared.

Messages go to `/v1/chat/completions`, a prompt text to `/v1/completions`. What the envelope does not state is
not sent, as a server may refuse what it does not know. Its log-probabilities come with the text of tokens,
without their ids, and are not asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...wire.tool_calls import with_calls
from .answer import End, Event, Piece
from .client import Refused
from .served_model import (
    COMMON_SAMPLING,
    TEXT_ENGINE,
    TEXT_ONLY,
    answered_by,
    check_went_well,
    chosen_model,
    is_unlimited,
    served_models,
    stated,
    text_request,
    unended,
    wanted_model,
)
from .server import ServerEngine
from .settings import CLIENT_SETTINGS

SAMPLING = (*COMMON_SAMPLING, "logit_bias")
"""Fields that are sent where the envelope states them. Not all are OpenAI's, but all are common."""

OURS = frozenset(
    {"model", "messages", "prompt", "tools", "stream", "stream_options", "n", "logprobs", "top_logprobs"}
)
"""Fields of a recorded request that rip states itself, or leaves out."""

UNLISTED = (404, 405, 501)
"""How a server answers that lists no models."""


class OpenAiEngine(ServerEngine):
    """A server that speaks the OpenAI API (see `server.ServerEngine`)."""

    name = "openai"
    capabilities = TEXT_ENGINE
    sampling = SAMPLING
    own_settings: Mapping[str, str] = {
        "served_model": "the model that is called, also one that the server does not list",
        "max_tokens_field": "the name of the limit: max_tokens, or max_completion_tokens for newer models",
    }

    def default_settings(self) -> Mapping[str, Any]:
        """What applies where `--set` says nothing."""
        return {**CLIENT_SETTINGS, "max_tokens_field": "max_tokens"}

    async def connect(self) -> None:
        """See what is served.

        Raises:
            EngineFailed, BadInput: It is no such server, or does not serve that model.
        """
        self._model = await self._served()
        self.not_seen.append(TEXT_ONLY)

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request (see `server.ServerEngine.answer`)."""
        return self._generated(plan)

    async def _served(self) -> str:
        forced = self.opening.given.get("served_model")
        if forced is not None:
            return str(forced)
        wanted = wanted_model(self.opening)
        try:
            served = await served_models(self.client)
        except Refused as refusal:
            if refusal.status not in UNLISTED or wanted is None:
                raise
            return wanted  # it lists none
        return chosen_model(wanted, [str(model["id"]) for model in served], first=False)

    async def _generated(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        path, body = self._request(plan)
        so_far = _SoFar()
        try:
            async for said in self.client.events(path, body):
                if came := so_far.take(said):
                    yield Piece(text=came)
        except Refused as refusal:
            raise self._about_limit(refusal) from refusal
        if not so_far.reason:
            raise unended()
        yield so_far.end()

    def _request(self, plan: PlannedSequence) -> tuple[str, dict[str, Any]]:
        """Path and body."""
        envelope = text_request(plan)
        limit = str(self.setting("max_tokens_field"))
        rest = {name: value for name, value in (envelope.request or {}).items() if name not in OURS}
        body = {
            **rest,
            "model": self._model,
            **stated(plan, SAMPLING),
            **({} if is_unlimited(plan) else {limit: plan.most_tokens}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if envelope.messages:
            tools = {"tools": envelope.tools} if envelope.tools else {}
            return "/v1/chat/completions", {**body, "messages": envelope.messages, **tools}
        return "/v1/completions", {**body, "prompt": envelope.prompt_text}

    def _about_limit(self, refusal: Refused) -> EngineFailed:
        """The refusal; of a model that calls the limit otherwise, with what to do."""
        if self.setting("max_tokens_field") == "max_tokens" and "max_completion_tokens" in refusal.message:
            return EngineFailed(refusal.message, "add --set max_tokens_field=max_completion_tokens")
        return refusal


@dataclass
class _SoFar:
    """What came of one answer."""

    text: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    reason: str = ""
    cached: int | None = None
    thinks: bool = False
    by: dict[str, str] = field(default_factory=dict)

    def take(self, said: Mapping[str, Any]) -> str:
        """Take one event → the text that it brings."""
        check_went_well(said)
        self.by |= answered_by(said)
        details = (said.get("usage") or {}).get("prompt_tokens_details") or {}
        self.cached = details.get("cached_tokens", self.cached)
        came = ""
        for choice in said["choices"]:
            delta = choice.get("delta") or {}
            came += choice.get("text") or delta.get("content") or delta.get("refusal") or ""
            self.thinks = self.thinks or bool(delta.get("reasoning_content") or delta.get("reasoning"))
            for position, call in enumerate(delta.get("tool_calls") or ()):
                self._take_call(call, position)
            self.reason = str(choice.get("finish_reason") or self.reason)
        self.text.append(came)
        return came

    def end(self) -> End:
        """The whole answer."""
        remarks = []
        if "system_fingerprint" not in self.by:
            remarks.append(
                "the server tells no system_fingerprint, so that a changed backend cannot be seen: "
                "judge by several samples (--repeat)"
            )
        if self.thinks:
            remarks.append("its reasoning is not part of the text that is compared")
        calls = [self.calls[index] for index in sorted(self.calls)]
        return End(self.reason, with_calls("".join(self.text), calls), self.cached, self.by, tuple(remarks))

    def _take_call(self, call: Mapping[str, Any], position: int) -> None:
        """A call of a tool comes in pieces: its name first, its arguments bit by bit."""
        whole = self.calls.setdefault(
            int(call.get("index", position)), {"function": {"name": "", "arguments": ""}}
        )
        for name, piece in (call.get("function") or {}).items():
            if name in whole["function"]:
                whole["function"][name] += piece or ""
