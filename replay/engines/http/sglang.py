"""Engine `sglang`: an SGLang server by its URL, through its own `/generate`, which takes and tells token ids.

Recorded tokens are not forced while decoding: the log-probabilities that SGLang tells are those after
`logit_bias`, so that a bias which forces a token also hides what the model thought of it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...row_summaries.trace_rows import TopK
from ..base import Capabilities
from .answer import End, Event, Piece, Scored, sorted_topk
from .served_model import (
    COMMON_SAMPLING,
    check_went_well,
    chosen_model,
    recognised,
    served_models,
    unended,
    wanted_model,
)
from .server import ServerEngine
from .settings import CLIENT_SETTINGS

RENAMED = {"seed": "sampling_seed", "min_tokens": "min_new_tokens"}
SAMPLING = (*COMMON_SAMPLING, "min_tokens", "stop_token_ids", "ignore_eos", "logit_bias")
"""Fields of an envelope that SGLang has, by their names or those of `RENAMED`."""

STREAMED_TOKENS = 512
"""Longest answer that is streamed from a server that repeats everything in every event: with distributions,
such a stream grows with the square of its length, to about 80 MB at this one."""


class SglangEngine(ServerEngine):
    """An SGLang server (see `server.ServerEngine`)."""

    name = "sglang"
    capabilities = Capabilities(
        modes=("free", "golden-prefill"),
        sites=False,
        logits_hash=False,
        seed=True,
        logprobs="processed",
        batch="concurrent",
        starts=False,
    )
    sampling = SAMPLING
    own_settings: Mapping[str, str] = {
        "cache": "cold: no prefix cached for another request is used; warm: the server's prefix cache is",
        "served_model": "which of the served models is called",
    }

    def default_settings(self) -> Mapping[str, Any]:
        """What applies where `--set` says nothing."""
        return {**CLIENT_SETTINGS, "cache": "cold"}

    async def connect(self) -> None:
        """See what is served.

        Raises:
            EngineFailed, BadInput: No SGLang server, or it does not serve that model.
        """
        # Its second address is that of releases before 0.5.
        signs = dict.fromkeys(("/server_info", "/get_server_info"), ("model_path", "tp_size"))
        arguments = await recognised(self.client, "SGLang", signs)
        served = await served_models(self.client)
        self._model = chosen_model(wanted_model(self.opening), [str(model["id"]) for model in served])
        entry = next(model for model in served if model["id"] == self._model)
        if isinstance(entry.get("max_model_len"), int):
            self.context_length = entry["max_model_len"]
        # An adapter is asked for by its name; the model itself has no name in this API.
        self._adapter = {"lora_path": self._model} if entry.get("parent") else {}
        self._by = {"model": self._model, "version": str(arguments.get("version", ""))}
        self._tells_once = bool(
            arguments.get("incremental_streaming_output") or arguments.get("stream_output")
        )
        if not arguments.get("enable_deterministic_inference"):
            self.capabilities = replace(self.capabilities, seed=False)
            self.findings.append(
                "the server runs without --enable-deterministic-inference, so seeds have no effect"
            )

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request (see `server.ServerEngine.answer`)."""
        return self._scored(plan) if mode == "golden-prefill" else self._generated(plan)

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token."""
        body = {"model": self._model, "tokens": [token_id], "skip_special_tokens": False}
        text = (await self.client.json("POST", "/detokenize", body)).get("text")
        return text if isinstance(text, str) else None

    async def tokenize_remotely(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids by the server's own tokenizer and template.

        Raises:
            BadInput: It makes none of this.
        """
        asked: dict[str, Any] = {"messages": messages} if messages else {"prompt": text}
        body = {"model": self._model, **asked, **({"tools": tools} if tools else {})}
        try:
            said = await self.client.json("POST", "/tokenize", body)
        except EngineFailed as error:
            raise BadInput(f"the server makes no token ids of it: {error.message}", error.fix) from error
        return [int(token) for token in said["tokens"]]

    async def _generated(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        streams = self._tells_once or plan.most_tokens <= STREAMED_TOKENS
        body = {
            **self._asked(plan),
            "input_ids": list(plan.prompt),
            "stream": streams,
        }
        body["sampling_params"]["max_new_tokens"] = plan.most_tokens
        tokens = 0
        text = ""
        end: Mapping[str, Any] | None = None
        async for said in self._answers(body, streams):
            check_went_well(said)
            about = said["meta_info"]
            got, came = [int(token) for token in said["output_ids"]], said.get("text") or ""
            whole = not self._tells_once or not streams
            new = got[tokens:] if whole else got
            likely, chosen = (
                _last(about, "output_top_logprobs", new),
                _last(about, "output_token_logprobs", new),
            )
            piece = came[len(text) :] if whole else came
            tokens, text = tokens + len(new), came if whole else text + came
            yield Piece(new, [self._row(*row) for row in zip(likely, chosen, strict=True)], piece)
            if about.get("finish_reason"):
                end = about
        if end is None:
            raise unended()
        reason = end["finish_reason"]
        if reason["type"] == "abort":
            raise EngineFailed(f"the server gave up: {reason.get('message')}", "see the log of the server")
        yield End(
            str(reason["type"]),
            cached_tokens=end.get("cached_tokens"),
            answered_by=self._who(end),
            findings=tuple(self._remarks(plan, streams, end)),
        )

    async def _scored(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        golden = plan.golden or ()
        fed = [*plan.prompt, *golden[:-1]]
        body = {**self._asked(plan), "input_ids": fed, "logprob_start_len": 0}
        # What is asked for is the input; one token is generated so that the last row is told too.
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
        said = await self.client.json("POST", "/generate", body)
        about = said["meta_info"]
        told, chosen = about.get("input_top_logprobs"), about.get("input_token_logprobs")
        if not told or not chosen or [int(entry[1]) for entry in chosen] != fed:
            raise EngineFailed(
                "the server did not score the whole input that it was given", "see the log of the server"
            )
        # Row i of the input is the distribution that its token i came from; there is none for the first.
        rows = [self._row(*row) for row in zip(told[1:], chosen[1:], strict=True)]
        last = {int(token): float(logprob) for logprob, token, *_ in about["output_top_logprobs"][0]}
        topk = sorted_topk(list(last), list(last.values()), self.topk, last.get(golden[-1]))
        yield Scored([*rows, topk])
        yield End("golden", text="", answered_by=self._who(about))

    async def _answers(self, body: Mapping[str, Any], streams: bool) -> AsyncIterator[Any]:
        """The events of a stream, or the one answer."""
        if not streams:
            yield await self.client.json("POST", "/generate", body)
            return
        async for said in self.client.events("/generate", body):
            yield said

    def _asked(self, plan: PlannedSequence) -> dict[str, Any]:
        """The body without the input; a field that is left to the server is not in it."""
        asked = {
            RENAMED.get(name, name): value for name in SAMPLING if (value := plan.value(name)) is not None
        }
        asked["sampling_seed"] = _signed(int(str(plan.value("seed"))) + plan.seed_offset)
        if asked.get("top_k") == 0:
            asked["top_k"] = -1  # its word for no limit
        for name in ("stop", "stop_token_ids", "logit_bias"):
            if not asked[name]:
                del asked[name]
        return {
            **self._adapter,
            "sampling_params": asked,
            "return_logprob": True,
            "top_logprobs_num": self.topk,
            # Prefixes are shared only between requests of one such key.
            **({"extra_key": f"rip-{secrets.token_hex(8)}"} if self.setting("cache") == "cold" else {}),
        }

    def _row(self, likely: Sequence[Sequence[Any]] | None, chosen: Sequence[Any]) -> TopK | None:
        """One distribution, of entries [logprob, id, text]."""
        if not likely:
            return None
        ids, logprobs = [int(entry[1]) for entry in likely], [float(entry[0]) for entry in likely]
        return sorted_topk(ids, logprobs, self.topk, float(chosen[0]))

    def _who(self, about: Mapping[str, Any]) -> dict[str, str]:
        version = about.get("weight_version")
        return {**self._by, **({"weight_version": str(version)} if version is not None else {})}

    def _remarks(self, plan: PlannedSequence, streams: bool, end: Mapping[str, Any]) -> list[str]:
        remarks = []
        if not streams:
            remarks.append(
                "asked for as a whole, so when its tokens came is not known: without "
                "--incremental-streaming-output every event of a stream repeats all before it"
            )
        if plan.value("temperature") not in (0, 1):
            remarks.append(
                "its log-probabilities are those after the temperature, unless the server runs with "
                "SGLANG_RETURN_ORIGINAL_LOGPROB"
            )
        if self.setting("cache") == "cold" and end.get("cached_tokens"):
            remarks.append(
                "cache=cold did not take: this SGLang knows no extra_key; start it with --disable-radix-cache"
            )
        return remarks


def _last(about: Mapping[str, Any], name: str, tokens: Sequence[int]) -> Sequence[Any]:
    """The entries of the tokens that are new."""
    rows: Sequence[Any] = about[name]
    return rows[len(rows) - len(tokens) :]


def _signed(seed: int) -> int:
    """A seed of 64 bits as its signed number, which is what SGLang takes."""
    return (seed + 2**63) % 2**64 - 2**63
