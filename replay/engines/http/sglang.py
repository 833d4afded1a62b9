"""Engine `sglang`: an SGLang server by its URL, through its own `/generate`, which has token ids both ways.

Recorded tokens are not forced while decoding: the log-probabilities that SGLang returns are those after
`logit_bias`, so that a bias which forces a token also hides the model's own distribution.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....schemas.envelope import Envelope
from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Finding, Mode
from ...request.batches import PlannedSequence
from ...request.findings import finding
from ...request.resolve_request import Capabilities
from ...row_summaries.rows import TopK
from ...wire import SGLANG_GRAMMARS
from ..base import SettingSpec, sorted_topk
from .answer_rows import (
    End,
    Events,
    Piece,
    Scored,
    check_no_error,
    server_ended_error,
    stream_unfinished_error,
)
from .client import ServerError
from .request_body import (
    COMMON_SAMPLING,
    RequestFields,
    check_kind,
    chosen_entry,
    server_tokens,
    text_body,
)
from .server import ServerEngine
from .settings import CACHE, SERVED_MODEL

SEARCHED_IDS, SEARCHED_AT_ONCE = 1 << 22, 64
"""Token ids among which the end of a vocabulary is searched, and how many of them one request asks for."""
TEXTS_AT_ONCE = 1024
"""Tokens whose texts one request asks for."""
STREAMED_TOKENS = 512
"""Longest answer that is streamed from a server that repeats everything in every event: with distributions,
such a stream grows with the square of its length, to about 80 MB at this one."""


class SglangEngine(ServerEngine):
    """An SGLang server (see `server.ServerEngine`)."""

    name = "sglang"
    capabilities = Capabilities(
        modes=("free", "golden-prefill"), logprobs="processed", batch="concurrent", starts=False
    )
    fields = RequestFields(
        (*COMMON_SAMPLING, "min_tokens", "stop_token_ids", "ignore_eos", "logit_bias"),
        {"seed": "sampling_seed", "min_tokens": "min_new_tokens"},
        seed=lambda seed: (seed + 2**63) % 2**64 - 2**63,  # it takes 64 bits as a signed number
        special=("structured_outputs",),
    )
    own_settings: Mapping[str, SettingSpec] = {"cache": CACHE, "served_model": SERVED_MODEL}

    async def connect(self) -> None:
        """Find out what is served.

        Raises:
            EngineFailed, BadInput: No SGLang server, or it does not serve that model.
        """
        # Its second address is that of releases before 0.5.
        signs = dict.fromkeys(("/server_info", "/get_server_info"), ("model_path", "tp_size"))
        arguments = await check_kind(self.client, "SGLang", signs)
        entry = await chosen_entry(self.client, self.opening)
        self._model = str(entry["id"])
        if isinstance(entry.get("max_model_len"), int):
            self.context_length = entry["max_model_len"]
        # An adapter is requested by its name; the model itself has no name in this API.
        self._adapter = {"lora_path": self._model} if entry.get("parent") else {}
        self._by = {"model": self._model, "version": str(arguments.get("version", ""))}
        self._incremental = bool(
            arguments.get("incremental_streaming_output") or arguments.get("stream_output")
        )
        if not arguments.get("enable_deterministic_inference"):
            self.capabilities = replace(self.capabilities, seed=False)
        if self.opening.model is None:  # else its files say how many token ids there are
            self.vocab_size = await self._searched_vocabulary()

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request (see `server.ServerEngine.answer`)."""
        return self._scored(plan) if mode == "golden-prefill" else self._generated(plan)

    async def texts_by_server(self, token_ids: Sequence[int]) -> dict[int, str]:
        """The texts of single tokens, many in one request."""
        found: dict[int, str] = {}
        for start in range(0, len(token_ids), TEXTS_AT_ONCE):
            some = token_ids[start : start + TEXTS_AT_ONCE]
            alone = [[token] for token in some]
            body = {"model": self._model, "tokens": alone, "skip_special_tokens": False}
            texts = (await self.client.json("POST", "/detokenize", body))["text"]
            found |= {token: str(text) for token, text in zip(some, texts, strict=True)}
        return found

    async def tokenize_remotely(self, envelope: Envelope) -> list[int]:
        """Token ids by the server's own tokenizer and template."""
        return await server_tokens(self.client, {"model": self._model, **text_body(envelope)[1]})

    async def _searched_vocabulary(self) -> int:
        """One more than the largest id for which the server has a text; it does not report its vocabulary.

        A request with an id that the model does not have ends the process of the server.

        Raises:
            BadInput: It returns no texts of tokens.
        """
        known, end = -1, SEARCHED_IDS
        while end - known > 1:
            step = -(-(end - known - 1) // SEARCHED_AT_ONCE)
            try:
                texts = await self.texts_by_server(range(known + 1, end, step))
            except ServerError as error:
                raise BadInput(
                    "the server does not report which token ids it has, and one that it does not have ends "
                    f"it: {error.message}",
                    "name the model's files with --model",
                ) from error
            last = max((token for token, text in texts.items() if text), default=known)
            known, end = last, min(end, max(last, known) + step)
        return known + 1

    async def _generated(self, plan: PlannedSequence) -> Events:
        streams = self._incremental or plan.most_tokens <= STREAMED_TOKENS
        body = {**self._body(plan), "input_ids": list(plan.prompt), "stream": streams}
        body["sampling_params"] |= {"max_new_tokens": plan.most_tokens, **_grammar(plan)}
        repeats = not self._incremental or not streams
        """Every event repeats all before it."""
        count, length = 0, 0
        last: Mapping[str, Any] | None = None
        async for event in self.client.answers("/generate", body):
            check_no_error(event)
            about = event["meta_info"]
            tokens, text = [int(token) for token in event["output_ids"]], event.get("text") or ""
            new, piece = (tokens[count:], text[length:]) if repeats else (tokens, text)
            count, length = count + len(new), len(text)
            rows = zip(
                _last(about, "output_top_logprobs", new),
                _last(about, "output_token_logprobs", new),
                strict=True,
            )
            yield Piece(new, [self._row(*row) for row in rows], piece)
            if about.get("finish_reason"):
                last = about
        if last is None:
            raise stream_unfinished_error()
        reason = last["finish_reason"]
        if reason["type"] == "abort":
            raise server_ended_error(reason.get("message"))
        yield End(
            str(reason["type"]),
            cached_tokens=last.get("cached_tokens"),
            answered_by=self._answered_by(last),
            findings=tuple(self._findings(plan, streams, last)),
        )

    async def _scored(self, plan: PlannedSequence) -> Events:
        golden = plan.golden or ()
        fed = [*plan.prompt, *golden[:-1]]
        body = {**self._body(plan), "input_ids": fed, "logprob_start_len": 0}
        # The input is scored; one token is generated so that the last row is returned too.
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
        about = (await self.client.json("POST", "/generate", body))["meta_info"]
        top, chosen = about.get("input_top_logprobs"), about.get("input_token_logprobs")
        if not top or not chosen or [int(entry[1]) for entry in chosen] != fed:
            raise EngineFailed("the server did not score the whole input", "see the log of the server")
        # Row i of the input is the distribution that its token i came from; there is none for the first.
        rows = [self._row(*row) for row in zip(top[1:], chosen[1:], strict=True)]
        last = {int(token): float(logprob) for logprob, token, *_ in about["output_top_logprobs"][0]}
        topk = sorted_topk(last, self.topk, last.get(golden[-1]))
        yield Scored([*rows, topk])
        yield End("golden", text="", answered_by=self._answered_by(about))

    def _body(self, plan: PlannedSequence) -> dict[str, Any]:
        """The body without the input."""
        values = self.fields.applying(plan)
        if values.get("top_k") == 0:
            values["top_k"] = -1  # no limit
        return {
            **self._adapter,
            "sampling_params": values,
            "return_logprob": True,
            "top_logprobs_num": self.topk,
            # Prefixes are shared only between requests of one such key.
            **({"extra_key": f"rip-{secrets.token_hex(8)}"} if self.setting("cache") == "cold" else {}),
        }

    def _row(self, likely: Sequence[Sequence[Any]] | None, chosen: Sequence[Any]) -> TopK | None:
        """One distribution, of entries [logprob, id, text]."""
        if not likely:
            return None
        logprobs = {int(token): float(logprob) for logprob, token, *_ in likely}
        return sorted_topk(logprobs, self.topk, float(chosen[0]))

    def _answered_by(self, about: Mapping[str, Any]) -> dict[str, str]:
        version = about.get("weight_version")
        return {**self._by, **({"weight_version": str(version)} if version is not None else {})}

    def _findings(self, plan: PlannedSequence, streams: bool, about: Mapping[str, Any]) -> Iterator[Finding]:
        if not streams:
            yield finding("not-streamed")
        if plan.value("temperature") != 0 and not self.capabilities.seed:
            yield finding("seed-without-effect")
        if plan.value("temperature") not in (0, 1):
            yield finding("logprobs-after-temperature")
        if self.setting("cache") == "cold" and about.get("cached_tokens"):
            yield finding("cold-cache-without-effect")


def _grammar(plan: PlannedSequence) -> dict[str, str]:
    """The structured output that a request states, as SGLang names it.

    Raises:
        BadInput: It states one that SGLang does not have.
    """
    stated = plan.envelope.sampling.structured_outputs if plan.envelope else None
    found: dict[str, str] = {}
    for kind, value in (stated or {}).items():
        if value in (None, False):
            continue
        if kind == "json_object":
            kind, value = "json", {"type": "object"}
        if kind not in SGLANG_GRAMMARS:
            raise BadInput(
                f"sampling.structured_outputs.{kind} is not supported by this engine",
                f"SGLang has: json_object, {', '.join(SGLANG_GRAMMARS)}",
            )
        found[SGLANG_GRAMMARS[kind]] = value if isinstance(value, str) else json.dumps(value)
    return found


def _last(about: Mapping[str, Any], name: str, tokens: Sequence[int]) -> Sequence[Any]:
    """The entries of the tokens that are new."""
    rows: Sequence[Any] = about[name]
    return rows[len(rows) - len(tokens) :]
