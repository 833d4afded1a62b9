"""Engine `vllm`: a vLLM server, by its URL or started from its own interpreter; layers through its taps.

Requests go to `/v1/completions` with token ids, so that neither tokenizer nor template of the server matter.
What happens inside the server is in `vllm_tap`; how its tap folder is joined here is in vllm_sites.py.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...row_summaries.trace_rows import Rows, TopK
from ..base import Capabilities
from .answer import Answer, End, Event, Piece, Scored, lacks_tokens, sorted_topk
from .served_model import (
    COMMON_SAMPLING,
    answered_by,
    check_went_well,
    chosen_model,
    recognised,
    served_models,
    unended,
    wanted_model,
)
from .server import ServerEngine
from .settings import CLIENT_SETTINGS
from .started import StartedServer
from .vllm_sites import VllmTaps
from .vllm_start import check_arguments, check_vllm, start_vllm

SAMPLING = (
    *COMMON_SAMPLING,
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
)
"""Fields that vLLM calls as an envelope does."""


class VllmEngine(ServerEngine):
    """A vLLM server (see `server.ServerEngine`)."""

    name = "vllm"
    capabilities = Capabilities(
        modes=("free", "golden-decode", "golden-prefill"),
        sites=True,
        logits_hash=True,
        seed=True,
        batch="concurrent",
        taps=True,
    )
    sampling = (*SAMPLING, "structured_outputs")
    own_settings: Mapping[str, str] = {
        "cache": "cold: no prefix cached for another request is used; warm: the server's prefix cache is",
        "served_model": "which of the served models is called",
    }

    def default_settings(self) -> Mapping[str, Any]:
        """What applies where `--set` says nothing."""
        return {**CLIENT_SETTINGS, "cache": "cold"}

    @classmethod
    def check_start(cls, model: Path | str | None, python: str | None, given: Mapping[str, Any]) -> None:
        """Ask the interpreter whether it has vLLM, and vLLM whether it takes the arguments.

        Raises:
            BadInput, EngineFailed: It does not, or cannot be run.
        """
        check_vllm(model, python or sys.executable)
        check_arguments(python or sys.executable, given)

    def start(self) -> StartedServer:
        """Start a server in the interpreter that was named.

        Raises:
            BadInput, EngineFailed: No model, or it cannot be started.
        """
        started = start_vllm(self.opening, self.settings)
        self.findings += started.findings
        self._tap_folder = started.tap
        return started.server

    async def connect(self) -> None:
        """See what is served, and what can be observed in it.

        Raises:
            EngineFailed, BadInput: No vLLM server, or it does not serve that model.
        """
        await recognised(self.client, "vLLM", {"/version": ("version",)})
        served = await served_models(self.client)
        self._model = chosen_model(wanted_model(self.opening), [str(model["id"]) for model in served])
        length = next((model.get("max_model_len") for model in served if model["id"] == self._model), None)
        if isinstance(length, int):
            self.context_length = length
        self.sampling_defaults = self._generation_config()
        tap = self._tap_folder if self.started is not None else self.opening.tap
        self._taps = await VllmTaps.of(tap, self.opening)
        self.sites, self.channel = self._taps.sites, self._taps.channel
        self.row_hash, self.sketch = self._taps.row_hash, self._taps.sketch
        self.not_seen += self._taps.not_seen
        self.capabilities = self._taps.capabilities(type(self).capabilities)
        if self.opening.mode == "golden-decode":
            await self._check_forcing()

    def close(self) -> None:
        """Stop the server that was started and remove its tap folder. May be called twice."""
        super().close()
        if self.started is not None and self._tap_folder is not None:
            shutil.rmtree(self._tap_folder, ignore_errors=True)

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request (see `server.ServerEngine.answer`)."""
        return (
            self._scored(plan, observe) if mode == "golden-prefill" else self._generated(plan, mode, observe)
        )

    async def observed(self, answer: Answer) -> Rows | None:
        """The rows of a whole answer that were not taken yet, with what the taps wrote."""
        rows, findings = await self._taps.joined(answer, float(self.setting("timeout")))
        self.findings += [sentence for sentence in findings if sentence not in self.findings]
        return rows

    async def observed_so_far(self, answer: Answer) -> Rows | None:
        """The next rows of an answer that goes on, as far as the taps wrote them by now."""
        return await self._taps.joined_so_far(answer)

    async def observed_at_last(self, answer: Answer) -> Rows | None:
        """The other rows of an answer that broke off: with sites where the taps wrote them."""
        return await self._taps.joined_at_last(answer)

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token."""
        said = await self.client.json("POST", "/detokenize", {"model": self._model, "tokens": [token_id]})
        text = said.get("prompt")
        return text if isinstance(text, str) else None

    async def tokenize_remotely(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids by the server's own tokenizer and template.

        Raises:
            BadInput: It makes none of this.
        """
        body: dict[str, Any] = {"model": self._model, "prompt": text}
        if messages:
            body = {"model": self._model, "messages": messages, "add_generation_prompt": True}
            body |= {"tools": tools} if tools else {}
        try:
            said = await self.client.json("POST", "/tokenize", body)
        except EngineFailed as error:
            raise BadInput(f"the server makes no token ids of it: {error.message}", error.fix) from error
        return [int(token) for token in said["tokens"]]

    def explained(self, error: Exception, plan: PlannedSequence) -> Exception:
        """As every server's; of one that tells fewer likely tokens than are wanted, with both ways out."""
        told = super().explained(error, plan)
        most = _TOO_MANY.search(error.message) if isinstance(error, EngineFailed) else None
        if most is None or not isinstance(told, EngineFailed):
            return told
        known = EngineFailed(
            f"{plan.request_id}: {self.topk} likely tokens are wanted (--topk), and this server tells at "
            f"most {most[1]}",
            f"use --topk {most[1]}, or start the server with --max-logprobs {self.topk}",
        )
        known.__cause__ = error
        return known

    async def _generated(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        forced = mode == "golden-decode"
        tapped = self._taps.key(plan) if observe else ""
        body = {
            **self._asked(plan, forced),
            "prompt": list(plan.prompt),
            "max_tokens": plan.most_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "vllm_xargs": {
                "rip_tap": tapped,
                **({"rip_force": list(plan.golden or ())} if forced else {}),
            },
        }
        tokens: list[int] = []
        reason, cached = "", None
        by: dict[str, str] = {}
        async for said in self.client.events("/v1/completions", body):
            check_went_well(said)
            by |= answered_by(said)
            details = (said.get("usage") or {}).get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens", cached)
            for choice in said.get("choices", ()):
                got = [int(token) for token in choice.get("token_ids") or ()]
                tokens += got
                yield Piece(
                    got, self._distributions(choice.get("logprobs"), len(got)), choice.get("text", "")
                )
                reason = choice.get("finish_reason") or reason
        if not reason:
            raise unended()
        if forced and (lack := lacks_tokens(plan, tokens)):
            raise EngineFailed(f"the server did not force the recorded tokens: {lack}", _INSTALL)
        yield End(reason, cached_tokens=cached, answered_by=by)

    async def _scored(self, plan: PlannedSequence, observe: bool) -> AsyncIterator[Event]:
        fed = [*plan.prompt, *(plan.golden or ())[:-1]]
        body = {
            **self._asked(plan, forced=True),
            "prompt": fed,
            "max_tokens": 1,
            "prompt_logprobs": self.topk,
            "vllm_xargs": {"rip_tap": self._taps.key(plan) if observe else ""},
        }
        said = await self.client.json("POST", "/v1/completions", body)
        choice = said["choices"][0]
        told = choice.get("prompt_logprobs")
        if not isinstance(told, list) or len(told) != len(fed):
            raise EngineFailed(
                "the server scored no prompt: prompt_logprobs are missing", "use --mode golden-decode"
            )
        last = self._distributions(choice.get("logprobs"), 1)
        scored = [self._of_prompt(row, token) for row, token in zip(told[1:], fed[1:], strict=True)]
        # The one token that was generated after them is not the recorded one.
        last = [topk and replace(topk, next_logprob=_of(topk, (plan.golden or (None,))[-1])) for topk in last]
        yield Scored([*scored, *last])
        yield End("golden", text="", answered_by=answered_by(said))

    async def _check_forcing(self) -> None:
        """Ask for one token that nobody would choose, before any work.

        Raises:
            EngineFailed: It does not come.
        """
        for prompt, wanted in (([1], 2), ([1], 3)):  # no model chooses both by itself
            body = {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": 1,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
                "vllm_xargs": {"rip_tap": "", "rip_force": [wanted]},
            }
            said = await self.client.json("POST", "/v1/completions", body)
            if said["choices"][0].get("token_ids") != [wanted]:
                raise EngineFailed("this server cannot be made to repeat recorded tokens", _INSTALL)

    def _asked(self, plan: PlannedSequence, forced: bool) -> dict[str, Any]:
        """The body without the prompt: every sampling field is stated, but for those left to the server."""
        asked = {name: plan.value(name) for name in SAMPLING if plan.value(name) is not None}
        if asked.get("seed") is not None:
            asked["seed"] = int(str(asked["seed"])) + plan.seed_offset
        for name in ("stop", "stop_token_ids", "logit_bias", "bad_words", "allowed_token_ids"):
            if not asked.get(name):
                asked.pop(name, None)
        if forced:
            asked |= {"ignore_eos": True, "min_tokens": 0, "temperature": 0}
            for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "seed"):
                asked.pop(name, None)
        grammar = plan.envelope.sampling.structured_outputs if plan.envelope and not forced else None
        return {
            **asked,
            **({"structured_outputs": grammar} if grammar else {}),
            **({"cache_salt": _salt(plan)} if self.setting("cache") == "cold" else {}),
            "model": self._model,
            "logprobs": self.topk,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }

    def _distributions(self, told: Any, count: int) -> list[TopK | None]:
        """The top-K of `count` generated tokens."""
        rows = (told or {}).get("top_logprobs") or [None] * count
        if len(rows) != count:
            raise EngineFailed(
                f"the server told {len(rows)} distributions with {count} tokens", "see the log of the server"
            )
        chosen = (told or {}).get("token_logprobs") or [None] * count
        return [self._of_generated(row, logprob) for row, logprob in zip(rows, chosen, strict=True)]

    def _of_generated(self, row: Mapping[str, float] | None, next_logprob: float | None) -> TopK | None:
        if not row:
            return None
        ids = [int(key.removeprefix("token_id:")) for key in row]
        return sorted_topk(ids, list(row.values()), self.topk, next_logprob)

    def _of_prompt(self, row: Mapping[str, Mapping[str, Any]] | None, following: int) -> TopK | None:
        if not row:
            return None
        logprobs = {int(key): float(entry["logprob"]) for key, entry in row.items()}
        return sorted_topk(list(logprobs), list(logprobs.values()), self.topk, logprobs.get(following))

    def _generation_config(self) -> Mapping[str, Any] | None:
        """What vLLM inherits from the model's files, where these are at hand."""
        if self.opening.model is None or not self.opening.model.is_dir():
            return None
        from ....schemas.base import parse_json_object

        path = self.opening.model / "generation_config.json"
        return parse_json_object(path.read_bytes(), str(path)) if path.is_file() else {}


_TOO_MANY = re.compile(r"logprobs\b.* greater than max allowed: ([0-9]+)")
"""How vLLM refuses more log-probabilities than its `--max-logprobs`."""
_INSTALL = "install rip in the environment of the server (pip install rip-forensics) and start it again"


def _salt(plan: PlannedSequence) -> str:
    """Another one for every execution, so that no prefix of an earlier one is found in the cache."""
    import secrets

    return f"rip-{plan.request_id}-{secrets.token_hex(8)}"


def _of(topk: TopK, token: int | None) -> float | None:
    """The log-probability of a token that may be among the K."""
    return next(
        (float(value) for one, value in zip(topk.ids, topk.logprobs, strict=True) if one == token), None
    )
