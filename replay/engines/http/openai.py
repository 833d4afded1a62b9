"""Engine `openai`: any server that speaks the OpenAI API. It takes and returns text, which is compared.

Messages go to `/v1/chat/completions`, a prompt text to `/v1/completions`. What the envelope does not state is
not sent, as a server may refuse what it does not know. Its log-probabilities have the text of tokens, not
their ids, and are not requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...request.findings import finding
from ...wire import with_calls
from ..base import SettingSpec
from .answer_rows import STREAMED, Completion, End, Events, Piece
from .client import Refused
from .request_body import (
    COMMON_SAMPLING,
    TEXT_ENGINE,
    TEXT_ONLY,
    RequestFields,
    chosen_model,
    is_unlimited,
    served_models,
    text_body,
    text_request,
    wanted_model,
)
from .server import ServerEngine
from .settings import SERVED_MODEL

OWN_FIELDS = frozenset(
    {"model", "messages", "prompt", "tools", "stream", "stream_options", "n", "logprobs", "top_logprobs"}
)
"""Fields of a recorded request that rip states itself, or leaves out."""

UNLISTED = (404, 405, 501)
"""Statuses of a server that lists no models."""


class OpenAiEngine(ServerEngine):
    """A server that speaks the OpenAI API (see `server.ServerEngine`)."""

    name = "openai"
    capabilities = TEXT_ENGINE
    sends_client_fields = True
    # Not all of them are OpenAI's, but all are common.
    fields = RequestFields((*COMMON_SAMPLING, "logit_bias"), left_out={})
    own_settings: Mapping[str, SettingSpec] = {
        "served_model": SERVED_MODEL,
        "max_tokens_field": SettingSpec(
            "choice",
            "the name of the limit; newer models have the second",
            ("max_tokens", "max_completion_tokens"),
            default="max_tokens",
        ),
    }

    async def connect(self) -> None:
        """Find out what is served.

        Raises:
            EngineFailed, BadInput: It is no such server, or does not serve that model.
        """
        self._model = await self._served()
        self.not_seen.append(TEXT_ONLY)

    async def _served(self) -> str:
        forced = self.opening.settings.get("served_model")
        if forced is not None:  # also a model that the server does not list
            return str(forced)
        wanted = wanted_model(self.opening)
        try:
            served = await served_models(self.client)
        except Refused as refusal:
            if refusal.status not in UNLISTED or wanted is None:
                raise
            return wanted
        return chosen_model(wanted, [str(model["id"]) for model in served], first=False)

    async def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request (see `server.ServerEngine.answer`)."""
        path, body = self._request(plan)
        text = _TextCompletion()
        try:
            async for event in self.client.events(path, body):
                if piece := text.piece(event):
                    yield Piece(text=piece)
        except Refused as refusal:
            raise self._about_limit(refusal) from refusal
        text.check_ended()
        yield text.end()

    def _request(self, plan: PlannedSequence) -> tuple[str, dict[str, Any]]:
        """Path and body."""
        is_chat, prompt = text_body(text_request(plan))
        recorded = (plan.envelope.request if plan.envelope else None) or {}
        limit = str(self.setting("max_tokens_field"))
        body = {
            **{name: value for name, value in recorded.items() if name not in OWN_FIELDS},
            "model": self._model,
            **self.fields.stated(plan),
            **({} if is_unlimited(plan) else {limit: plan.most_tokens}),
            **STREAMED,
            **prompt,
        }
        return "/v1/chat/completions" if is_chat else "/v1/completions", body

    def _about_limit(self, refusal: Refused) -> EngineFailed:
        """The refusal; of a model that names the limit differently, with how to fix it."""
        named, other = self.setting("max_tokens_field"), "max_completion_tokens"
        if named != other and other in refusal.server_message:
            return EngineFailed(refusal.message, f"add --set max_tokens_field={other}")
        return refusal


@dataclass
class _TextCompletion(Completion):
    """An answer of text, with its tool calls."""

    text: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    reasons: bool = False
    """There is reasoning beside the text."""

    def piece(self, event: Mapping[str, Any]) -> str:
        """Take one event → its text."""
        text = ""
        for choice in self.take(event):
            delta = choice.get("delta") or {}
            text += choice.get("text") or delta.get("content") or delta.get("refusal") or ""
            self.reasons = self.reasons or bool(delta.get("reasoning_content") or delta.get("reasoning"))
            for position, call in enumerate(delta.get("tool_calls") or ()):
                self._take_call(call, position)
        self.text.append(text)
        return text

    def end(self) -> End:
        """The whole answer."""
        findings = []
        if "system_fingerprint" not in self.answered_by:
            findings.append(finding("no-system-fingerprint"))
        if self.reasons:
            findings.append(finding("reasoning-not-compared"))
        text = with_calls("".join(self.text), [self.calls[index] for index in sorted(self.calls)])
        return End(self.reason, text, self.cached_tokens, self.answered_by, tuple(findings))

    def _take_call(self, call: Mapping[str, Any], position: int) -> None:
        """A tool call comes in pieces: its name first, its arguments bit by bit."""
        whole = self.calls.setdefault(
            int(call.get("index", position)), {"function": {"name": "", "arguments": ""}}
        )
        for name, piece in (call.get("function") or {}).items():
            if name in whole["function"]:
                whole["function"][name] += piece or ""
