"""Engine `ollama`: an Ollama server by its URL. It takes and tells text, so only texts can be compared.

A prompt text goes to `/api/generate` as it is (`raw`), messages go through the template that the server keeps
with the model. Its log-probabilities come with the text of tokens, not with their ids, and are not asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...wire.tool_calls import with_calls
from .answer import End, Event, Piece
from .served_model import (
    COMMON_SAMPLING,
    TEXT_ENGINE,
    TEXT_ONLY,
    check_went_well,
    chosen_model,
    is_unlimited,
    recognised,
    stated,
    text_request,
    unended,
    wanted_model,
)
from .server import ServerEngine

RENAMED = {"repetition_penalty": "repeat_penalty"}
SAMPLING = COMMON_SAMPLING
"""Fields of an envelope that Ollama has as options, by their names or those of `RENAMED`."""


class OllamaEngine(ServerEngine):
    """An Ollama server (see `server.ServerEngine`)."""

    name = "ollama"
    capabilities = TEXT_ENGINE
    sampling = SAMPLING
    own_settings: Mapping[str, str] = {"served_model": "which of the models on the server is called"}

    async def connect(self) -> None:
        """See which model is meant, and which weights that is.

        Raises:
            EngineFailed, BadInput: No Ollama server, or it does not have that model.
        """
        version = await recognised(self.client, "Ollama", {"/api/version": ("version",)})
        listed = (await self.client.json("GET", "/api/tags"))["models"]
        digests = {str(model["name"]): str(model.get("digest", "")) for model in listed}
        self._model = self._chosen(list(digests))
        self._by = {"model": self._model, "digest": digests[self._model], "version": str(version["version"])}
        self.not_seen.append(TEXT_ONLY)

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request (see `server.ServerEngine.answer`)."""
        return self._generated(plan)

    async def _generated(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        path, asked = self._request(plan)
        text: list[str] = []
        calls: list[Mapping[str, Any]] = []
        thinks = False
        end: Mapping[str, Any] | None = None
        async for said in self.client.lines(path, asked):
            check_went_well(said)
            message = said.get("message") or {}
            came = said.get("response") or message.get("content") or ""
            calls += message.get("tool_calls") or []
            thinks = thinks or bool(said.get("thinking") or message.get("thinking"))
            text.append(came)
            if came:
                yield Piece(text=came)
            if said.get("done"):
                end = said
        if end is None:
            raise unended()
        remarks = ("its thinking is not part of the text that is compared",) if thinks else ()
        reason = str(end.get("done_reason") or "stop")
        yield End(reason, with_calls("".join(text), calls), answered_by=self._by, findings=remarks)

    def _request(self, plan: PlannedSequence) -> tuple[str, dict[str, Any]]:
        """Path and body."""
        envelope = text_request(plan)
        options = {RENAMED.get(name, name): value for name, value in stated(plan, SAMPLING).items()}
        if not is_unlimited(plan):
            options["num_predict"] = plan.most_tokens
        body: dict[str, Any] = {"model": self._model, "stream": True, "options": options}
        if envelope.messages:
            tools = {"tools": envelope.tools} if envelope.tools else {}
            return "/api/chat", {**body, "messages": envelope.messages, **tools}
        return "/api/generate", {**body, "prompt": envelope.prompt_text, "raw": True}

    def _chosen(self, served: list[str]) -> str:
        """The model that is meant; its tag `latest` need not be said.

        Raises:
            BadInput: It is not there.
        """
        wanted = wanted_model(self.opening)
        if wanted is not None and f"{wanted}:latest" in served:
            return f"{wanted}:latest"
        return chosen_model(wanted, served, first=False)
