"""Engine `tensorrt-llm`: a TensorRT-LLM server (`trtllm-serve`) by its URL.

Its completions take token ids and, asked not to detokenize, tell the generated ids in place of text.
Distributions it tells only with the text of tokens, so there are none here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from .answer import End, Event, Piece
from .served_model import (
    COMMON_SAMPLING,
    TEXT_ENGINE,
    answered_by,
    check_went_well,
    chosen_model,
    recognised,
    served_models,
    unended,
    wanted_model,
)
from .server import ServerEngine

SAMPLING = (*COMMON_SAMPLING, "min_tokens", "stop_token_ids", "ignore_eos", "logit_bias")
"""Fields that TensorRT-LLM calls as an envelope does."""


class TrtLlmEngine(ServerEngine):
    """A TensorRT-LLM server (see `server.ServerEngine`)."""

    name = "tensorrt-llm"
    capabilities = replace(TEXT_ENGINE, token_ids=True)
    sampling = SAMPLING
    own_settings: Mapping[str, str] = {"served_model": "which of the served models is called"}

    async def connect(self) -> None:
        """See what is served.

        Raises:
            EngineFailed, BadInput: No such server, or it does not serve that model.
        """
        said = await recognised(self.client, "TensorRT-LLM", {"/version": ("version",)})
        self._version = str(said["version"])
        served = await served_models(self.client)
        self._model = chosen_model(wanted_model(self.opening), [str(model["id"]) for model in served])
        self.not_seen.append("log-probabilities: this engine tells them without token ids")

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request (see `server.ServerEngine.answer`)."""
        return self._generated(plan)

    async def _generated(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        tokens: list[int] = []
        reason, cached = "", None
        by = {"version": self._version}
        async for said in self.client.events("/v1/completions", self._body(plan)):
            check_went_well(said)
            by |= answered_by(said)
            details = (said.get("usage") or {}).get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens", cached)
            for choice in said["choices"]:
                if choice.get("token_ids") is None:
                    raise EngineFailed(
                        "the server tells no token ids", "compare its texts instead, with --engine openai"
                    )
                got = [int(token) for token in choice["token_ids"]]
                tokens += got
                yield Piece(got, [None] * len(got), text=None)
                reason = str(choice.get("finish_reason") or reason)
        if not reason:
            raise unended()
        yield End(reason, self.text_of(tokens), cached, by)

    def _body(self, plan: PlannedSequence) -> dict[str, Any]:
        asked = {name: value for name in SAMPLING if (value := plan.value(name)) is not None}
        asked["seed"] = int(str(plan.value("seed"))) + plan.seed_offset
        for name in ("stop", "stop_token_ids", "logit_bias"):
            if not asked[name]:
                del asked[name]
        return {
            **asked,
            "model": self._model,
            "prompt": list(plan.prompt),
            "max_tokens": plan.most_tokens,
            "detokenize": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
