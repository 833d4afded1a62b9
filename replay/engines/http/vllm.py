"""Engine `vllm`: a vLLM server, by its URL or started from its own interpreter; layers through its taps.

Requests go to `/v1/completions` with token ids, so that neither tokenizer nor template of the server matter.
What happens inside the server is in `vllm_tap`; how its tap folder is joined here is in vllm_sites.py.
"""

from __future__ import annotations

import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....schemas.envelope import Envelope
from ....schemas.errors import EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...request.findings import finding
from ...request.resolve_request import Capabilities
from ...row_summaries.rows import Rows, TopK
from ..base import sorted_topk, unforced_tokens
from ..model_files import generation_config
from .answer_rows import STREAMED, Answer, Completion, End, Events, Piece, Scored
from .client import ServerError
from .request_body import (
    COMMON_SAMPLING,
    RequestFields,
    check_kind,
    chosen_entry,
    server_text,
    server_tokens,
    text_body,
)
from .server import ServerEngine, caused_by
from .server_process import StartedServer
from .vllm_sites import VllmTaps
from .vllm_start import REQUEST_SETTINGS, check_arguments, check_vllm, start_vllm


class VllmEngine(ServerEngine):
    """A vLLM server (see `server.ServerEngine`)."""

    name = "vllm"
    capabilities = Capabilities(
        modes=("free", "golden-decode", "golden-prefill"),
        sites=True,
        logits_hash=True,
        batch="concurrent",
        taps=True,
    )
    fields = RequestFields(
        (
            *COMMON_SAMPLING,
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
            "logit_bias",
            "bad_words",
            "allowed_token_ids",
        ),
        special=("structured_outputs",),
    )
    own_settings = REQUEST_SETTINGS

    @classmethod
    def check_start(cls, model: Path | str | None, python: str | None, settings: Mapping[str, Any]) -> None:
        """Check that the interpreter has vLLM, and that vLLM accepts the arguments.

        Raises:
            BadInput, EngineFailed: It does not, or cannot be run.
        """
        check_vllm(model, python or sys.executable)
        check_arguments(python or sys.executable, settings)

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
        """Find out what is served, and what can be observed in it.

        Raises:
            EngineFailed, BadInput: No vLLM server, or it does not serve that model.
        """
        await check_kind(self.client, "vLLM", {"/version": ("version",)})
        entry = await chosen_entry(self.client, self.opening)
        self._model = str(entry["id"])
        if isinstance(entry.get("max_model_len"), int):
            self.context_length = entry["max_model_len"]
        self.sampling_defaults = generation_config(self.opening.model)
        tap = self._tap_folder if self.started is not None else self.opening.tap
        self._taps = await VllmTaps.of(tap, self.opening)
        self.sites, self.channel = self._taps.sites, self._taps.channel
        self.row_hash, self.sketch = self._taps.row_hash, self._taps.sketch
        self.not_seen += self._taps.not_seen
        observes = bool(self.sites)
        self.capabilities = replace(self.capabilities, sites=observes, logits_hash=observes)
        if self.opening.mode == "golden-decode":
            await self._check_forcing()

    def close(self) -> None:
        """Stop the server that was started and remove its tap folder. May be called twice."""
        super().close()
        if self.started is not None and self._tap_folder is not None:
            shutil.rmtree(self._tap_folder, ignore_errors=True)

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request (see `server.ServerEngine.answer`)."""
        return (
            self._scored(plan, observe) if mode == "golden-prefill" else self._generated(plan, mode, observe)
        )

    async def observed(self, answer: Answer) -> Rows | None:
        """See `sending.Answering.observed`."""
        rows, notes = await self._taps.joined(answer, float(self.setting("timeout")))
        found = [finding("taps", text=note) for note in notes]
        self.findings += [one for one in found if one not in self.findings]
        return rows

    async def observed_so_far(self, answer: Answer) -> Rows | None:
        """See `sending.Answering.observed_so_far`."""
        return await self._taps.rows_of_running_answer(answer)

    async def observed_at_last(self, answer: Answer) -> Rows | None:
        """See `sending.Answering.observed_at_last`."""
        return await self._taps.remaining_rows_after_break(answer)

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token."""
        body = {"model": self._model, "tokens": [token_id]}
        return await server_text(self.client, body, "prompt")

    async def tokenize_remotely(self, envelope: Envelope) -> list[int]:
        """Token ids by the server's own tokenizer and template."""
        is_chat, prompt = text_body(envelope)
        generates = {"add_generation_prompt": True} if is_chat else {}
        return await server_tokens(self.client, {"model": self._model, **generates, **prompt})

    def explained(self, error: Exception, plan: PlannedSequence) -> Exception:
        """As every server's; of one that returns fewer likely tokens than requested, with both ways out."""
        explained = super().explained(error, plan)
        most = _TOO_MANY.search(error.server_message) if isinstance(error, ServerError) else None
        if most is None or not isinstance(explained, EngineFailed):
            return explained
        return caused_by(
            error,
            EngineFailed(
                f"{plan.request_id}: --topk {self.topk}, but this server returns at most {most[1]}",
                f"use --topk {most[1]}, or start the server with --max-logprobs {self.topk}",
            ),
        )

    async def _generated(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        forced = mode == "golden-decode"
        body = {
            **self._body(plan, forced),
            "prompt": list(plan.prompt),
            "max_tokens": plan.most_tokens,
            **STREAMED,
            "vllm_xargs": {
                "rip_tap": self._taps.key(plan) if observe else "",
                **({"rip_force": list(plan.golden or ())} if forced else {}),
            },
        }
        tokens: list[int] = []
        completion = Completion()
        async for event in self.client.events("/v1/completions", body):
            for choice in completion.take(event):
                new = [int(token) for token in choice.get("token_ids") or ()]
                tokens += new
                topk = self._distributions(choice.get("logprobs"), len(new))
                yield Piece(new, topk, choice.get("text", ""))
        completion.check_ended()
        if forced and (lack := unforced_tokens(plan, tokens)):
            raise EngineFailed(f"the server did not force the recorded tokens: {lack}", _INSTALL)
        yield End(
            completion.reason,
            cached_tokens=completion.cached_tokens,
            answered_by=completion.answered_by,
        )

    async def _scored(self, plan: PlannedSequence, observe: bool) -> Events:
        fed = [*plan.prompt, *(plan.golden or ())[:-1]]
        body = {
            **self._body(plan, forced=True),
            "prompt": fed,
            "max_tokens": 1,
            "prompt_logprobs": self.topk,
            "vllm_xargs": {"rip_tap": self._taps.key(plan) if observe else ""},
        }
        completion = Completion()
        choice = completion.take(await self.client.json("POST", "/v1/completions", body))[0]
        prompt = choice.get("prompt_logprobs")
        if not isinstance(prompt, list) or len(prompt) != len(fed):
            raise EngineFailed(
                "the server did not score the prompt: prompt_logprobs are missing", "use --mode golden-decode"
            )
        last = self._distributions(choice.get("logprobs"), 1)
        scored = [self._of_prompt(row, token) for row, token in zip(prompt[1:], fed[1:], strict=True)]
        # The one token that was generated after them is not the recorded one.
        last = [topk and replace(topk, next_logprob=_of(topk, (plan.golden or (None,))[-1])) for topk in last]
        yield Scored([*scored, *last])
        yield End("golden", text="", answered_by=completion.answered_by)

    async def _check_forcing(self) -> None:
        """Force one token that no model would choose, before any work.

        Raises:
            EngineFailed: It is not generated.
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
            found = await self.client.json("POST", "/v1/completions", body)
            if found["choices"][0].get("token_ids") != [wanted]:
                raise EngineFailed("this server does not support forcing recorded tokens", _INSTALL)

    def _body(self, plan: PlannedSequence, forced: bool) -> dict[str, Any]:
        """The body without the prompt: every sampling field is stated, except those left to the server."""
        values = self.fields.applying(plan)
        if forced:
            values |= {"ignore_eos": True, "min_tokens": 0, "temperature": 0}
            for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "seed"):
                values.pop(name, None)
        grammar = plan.envelope.sampling.structured_outputs if plan.envelope and not forced else None
        # A different one for every execution, so that no prefix of an earlier one is found in the cache.
        salt = f"rip-{plan.request_id}-{secrets.token_hex(8)}"
        return {
            **values,
            **({"structured_outputs": grammar} if grammar else {}),
            **({"cache_salt": salt} if self.setting("cache") == "cold" else {}),
            "model": self._model,
            "logprobs": self.topk,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }

    def _distributions(self, logprobs: Any, count: int) -> list[TopK | None]:
        """The top-K of `count` generated tokens."""
        rows = (logprobs or {}).get("top_logprobs") or [None] * count
        if len(rows) != count:
            raise EngineFailed(
                f"the server returned {len(rows)} distributions with {count} tokens",
                "see the log of the server",
            )
        chosen = (logprobs or {}).get("token_logprobs") or [None] * count
        return [self._of_generated(row, logprob) for row, logprob in zip(rows, chosen, strict=True)]

    def _of_generated(self, row: Mapping[str, float] | None, next_logprob: float | None) -> TopK | None:
        if not row:
            return None
        logprobs = {int(key.removeprefix("token_id:")): logprob for key, logprob in row.items()}
        return sorted_topk(logprobs, self.topk, next_logprob)

    def _of_prompt(self, row: Mapping[str, Mapping[str, Any]] | None, following: int) -> TopK | None:
        if not row:
            return None
        logprobs = {int(key): float(entry["logprob"]) for key, entry in row.items()}
        return sorted_topk(logprobs, self.topk, logprobs.get(following))


_TOO_MANY = re.compile(r"logprobs\b.* greater than max allowed: ([0-9]+)")
"""How vLLM refuses more log-probabilities than its `--max-logprobs`."""
_INSTALL = "install rip in the environment of the server (pip install rip-forensics) and start it again"


def _of(topk: TopK, token: int | None) -> float | None:
    """The log-probability of a token that may be among the K."""
    return next(
        (float(value) for one, value in zip(topk.ids, topk.logprobs, strict=True) if one == token), None
    )
