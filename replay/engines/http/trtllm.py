"""Engine `tensorrt-llm`: a TensorRT-LLM server (`trtllm-serve`) by its URL.

Its completions take token ids and, with `detokenize: false`, return the generated ids in place of text. It
returns distributions only with the text of tokens, so there are none here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ..base import SettingSpec
from .answer_rows import STREAMED, Completion, End, Events, Piece
from .request_body import COMMON_SAMPLING, TEXT_ENGINE, RequestFields, check_kind, chosen_entry
from .server import ServerEngine
from .settings import SERVED_MODEL


class TrtLlmEngine(ServerEngine):
    """A TensorRT-LLM server (see `server.ServerEngine`)."""

    name = "tensorrt-llm"
    capabilities = replace(TEXT_ENGINE, token_ids=True)
    fields = RequestFields((*COMMON_SAMPLING, "min_tokens", "stop_token_ids", "ignore_eos", "logit_bias"))
    own_settings: Mapping[str, SettingSpec] = {"served_model": SERVED_MODEL}

    async def connect(self) -> None:
        """Find out what is served.

        Raises:
            EngineFailed, BadInput: No such server, or it does not serve that model.
        """
        version = await check_kind(self.client, "TensorRT-LLM", {"/version": ("version",)})
        self._version = str(version["version"])
        self._model = str((await chosen_entry(self.client, self.opening))["id"])
        self.not_seen.append("log-probabilities: this engine returns them without token ids")

    async def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request (see `server.ServerEngine.answer`)."""
        body = {
            **self.fields.applying(plan),
            "model": self._model,
            "prompt": list(plan.prompt),
            "max_tokens": plan.most_tokens,
            "detokenize": False,
            **STREAMED,
        }
        tokens: list[int] = []
        completion = Completion({"version": self._version})
        async for event in self.client.events("/v1/completions", body):
            for choice in completion.take(event):
                if choice.get("token_ids") is None:
                    raise EngineFailed(
                        "the server does not return token ids",
                        "compare its texts instead, with --engine openai",
                    )
                new = [int(token) for token in choice["token_ids"]]
                tokens += new
                yield Piece(new, [None] * len(new), text=None)
        completion.check_ended()
        yield End(completion.reason, self.text_of(tokens), completion.cached_tokens, completion.answered_by)
