"""Engine `ollama`: an Ollama server by its URL. It takes and returns text, so only texts are compared.

A prompt text goes to `/api/generate` as it is (`raw`), messages go through the template that the server keeps
with the model. Its log-probabilities have the text of tokens, not their ids, and are not requested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....schemas.errors import BadInput
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...request.findings import finding
from ...wire import with_calls
from ..base import SettingSpec
from .answer_rows import End, Events, Piece, check_no_error, stream_unfinished_error
from .request_body import (
    COMMON_SAMPLING,
    TEXT_ENGINE,
    TEXT_ONLY,
    RequestFields,
    check_kind,
    chosen_model,
    is_unlimited,
    text_body,
    text_request,
    wanted_model,
)
from .server import ServerEngine
from .settings import SERVED_MODEL


class OllamaEngine(ServerEngine):
    """An Ollama server (see `server.ServerEngine`)."""

    name = "ollama"
    capabilities = TEXT_ENGINE
    fields = RequestFields(
        COMMON_SAMPLING,
        {"repetition_penalty": "repeat_penalty"},
        left_out={},
        special=("structured_outputs",),
    )
    own_settings: Mapping[str, SettingSpec] = {"served_model": SERVED_MODEL}

    async def connect(self) -> None:
        """Find out which model is called, and which weights that is.

        Raises:
            EngineFailed, BadInput: No Ollama server, or it does not have that model.
        """
        version = await check_kind(self.client, "Ollama", {"/api/version": ("version",)})
        listed = (await self.client.json("GET", "/api/tags"))["models"]
        digests = {str(model["name"]): str(model.get("digest", "")) for model in listed}
        wanted = wanted_model(self.opening)
        if wanted is not None and f"{wanted}:latest" in digests:  # this tag need not be stated
            wanted = f"{wanted}:latest"
        self._model = chosen_model(wanted, list(digests), first=False)
        self._by = {"model": self._model, "digest": digests[self._model], "version": str(version["version"])}
        self.not_seen.append(TEXT_ONLY)

    async def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request (see `server.ServerEngine.answer`)."""
        path, body = self._request(plan)
        text: list[str] = []
        calls: list[Mapping[str, Any]] = []
        reasons = False
        last: Mapping[str, Any] | None = None
        async for event in self.client.lines(path, body):
            check_no_error(event)
            message = event.get("message") or {}
            piece = event.get("response") or message.get("content") or ""
            calls += message.get("tool_calls") or []
            reasons = reasons or bool(event.get("thinking") or message.get("thinking"))
            text.append(piece)
            if piece:
                yield Piece(text=piece)
            if event.get("done"):
                last = event
        if last is None:
            raise stream_unfinished_error()
        findings = (finding("reasoning-not-compared"),) if reasons else ()
        reason = str(last.get("done_reason") or "stop")
        yield End(reason, with_calls("".join(text), calls), answered_by=self._by, findings=findings)

    def _request(self, plan: PlannedSequence) -> tuple[str, dict[str, Any]]:
        """Path and body."""
        is_chat, prompt = text_body(text_request(plan), raw=True)
        options = self.fields.stated(plan)
        if not is_unlimited(plan):
            options["num_predict"] = plan.most_tokens
        body = {"model": self._model, "stream": True, "options": options, **_format(plan), **prompt}
        return "/api/chat" if is_chat else "/api/generate", body


def _format(plan: PlannedSequence) -> dict[str, Any]:
    """The structured output that a request states, as Ollama names it.

    Raises:
        BadInput: It states one that Ollama does not have.
    """
    stated = (plan.envelope.sampling.structured_outputs if plan.envelope else None) or {}
    if not stated:
        return {}
    if stated.get("json_object"):
        return {"format": "json"}
    if "json" in stated:
        schema = stated["json"]
        return {"format": json.loads(schema) if isinstance(schema, str) else schema}
    raise BadInput(
        f"{plan.request_id}: Ollama constrains answers to JSON or a JSON schema, not to {', '.join(stated)}",
        "replay it on the engine that recorded it",
    )
