"""Engine `llama.cpp`: any llama-server by its URL, or the server of the package xllamacpp in a child process.

Its native `/completion` takes and returns token ids. Recorded tokens are forced one request at a time, by a
bias that no logit outweighs; the log-probabilities that it returns stay those of the raw logits.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....schemas.envelope import Envelope
from ....schemas.errors import BadInput, EngineFailed, stated_setting
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...request.contract import REPORTED_BY_SERVER
from ...request.findings import finding
from ...request.resolve_request import Capabilities
from ...row_summaries.rows import TopK
from ..base import SettingSpec, sorted_topk
from .answer_rows import End, Events, Piece, check_no_error, stream_unfinished_error
from .llama_child import PARAMETERS
from .request_body import COMMON_SAMPLING, RequestFields, chat_body, check_kind, server_text, server_tokens
from .server import ServerEngine
from .server_process import Launch, StartedServer, has_module
from .settings import CACHE, server_environment, server_settings

FORCING_BIAS = 1e6
"""Added to the logit of a token that is to be forced: far above any logit. It need not be exact, as the
log-probabilities are taken before it is added."""


class LlamaCppEngine(ServerEngine):
    """A llama.cpp server (see `server.ServerEngine`)."""

    name = "llama.cpp"
    capabilities = Capabilities(modes=("free", "golden-decode"), batch="concurrent")
    fields = RequestFields(
        (*COMMON_SAMPLING, "ignore_eos"),
        {"repetition_penalty": "repeat_penalty"},
        left_out={},
        seed=lambda seed: seed % 2**32,  # its seeds have 32 bits
        special=("logit_bias",),
    )
    own_settings: Mapping[str, SettingSpec] = {
        "cache": CACHE,
        "stream": SettingSpec(
            "choice",
            "true: tokens as they are made; false: all at the end, those that end inside a character too",
            ("true", "false"),
            default="false",
        ),
    }

    @classmethod
    def check_start(cls, model: Path | str | None, python: str | None, settings: Mapping[str, Any]) -> None:
        """Refuse what the server of xllamacpp cannot be started with (see `base.EngineKind.check_start`).

        Raises:
            BadInput: No GGUF file, no xllamacpp, an unknown setting, or a value that does not fit.
            EngineFailed: The interpreter cannot be run.
        """
        if not isinstance(model, Path) or model.suffix != ".gguf":
            raise BadInput("llama.cpp serves GGUF files", "give one with --model, or a server with --url")
        python = python or sys.executable
        if not has_module(python, "xllamacpp"):
            raise BadInput(
                f"{python} has no xllamacpp",
                f"{python} -m pip install xllamacpp, or name a running server with --url",
            )
        for name, text in cls._parameters(settings).items():
            if name not in PARAMETERS:
                raise BadInput(
                    "no such setting",
                    f"choose one of: {', '.join(sorted(PARAMETERS))}",
                    stated_setting(f"{name}={text}"),
                )
            try:
                PARAMETERS[name](text)
            except (ValueError, KeyError):
                form = "auto, off, on" if name == "flash_attn" else "a whole number"
                raise BadInput(
                    f"not a value of {name}", f"give {form}", stated_setting(f"{name}={text}")
                ) from None

    @classmethod
    def _parameters(cls, settings: Mapping[str, Any]) -> dict[str, str]:
        """Settings that are parameters of the server itself."""
        own = server_settings(settings, cls.own_settings)
        return {name.replace("-", "_"): value for name, value in own.items()}

    def start(self) -> StartedServer:
        """Start the server of xllamacpp in a process of its own.

        Raises:
            BadInput: No GGUF file, no xllamacpp, or an unknown setting.
        """
        opening = self.opening
        self.check_start(opening.model, opening.python, opening.settings)
        parameters = self._parameters(opening.settings)
        # As many slots as sequences run together, each with room for the whole context.
        parameters.setdefault("n_parallel", str(self.setting("batch_size")))
        command = [
            opening.python or sys.executable,
            str(Path(__file__).with_name("llama_child.py")),
            str(opening.model),
            "--port",
            "{port}",
            "--parameters",
            json.dumps(parameters, sort_keys=True),
        ]
        return StartedServer(Launch.of(command, opening, self.settings, server_environment(opening.settings)))

    async def connect(self) -> None:
        """Find out what is served.

        Raises:
            EngineFailed: No llama.cpp server.
        """
        props = await check_kind(self.client, "llama.cpp", {"/props": ("default_generation_settings",)})
        defaults = props["default_generation_settings"]
        self.context_length = int(defaults.get("n_ctx") or self.context_length)
        params = defaults.get("params", defaults)
        plain = ("temperature", "top_p", "top_k", "min_p")
        named = {**{name: name for name in plain}, **self.fields.renamed}
        self.sampling_defaults_from = REPORTED_BY_SERVER
        self.sampling_defaults = {
            name: _decimal(params[other])
            for name, other in named.items()
            if isinstance(params.get(other), int | float)
        }
        self._slots = int(props.get("total_slots") or 1)
        self._slot_locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """The right to use each slot: a second sequence on it would empty its cache."""
        self._by = {
            "model": str(props.get("model_path", "")),
            "system_fingerprint": str(props.get("build_info", "")),
        }
        if self._slots < int(self.setting("batch_size")):
            batch_size = self.setting("batch_size")
            self.findings.append(finding("fewer-slots", slots=self._slots, batch_size=batch_size))

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> Events:
        """Send one request, or one a token where tokens are forced (see `server.ServerEngine.answer`)."""
        return self._forced(plan) if mode == "golden-decode" else self._generated(plan)

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token."""
        return await server_text(self.client, {"tokens": [token_id]}, "content")

    async def tokenize_remotely(self, envelope: Envelope) -> list[int]:
        """Token ids by the server's own tokenizer and template."""
        body: dict[str, Any] = {
            "content": envelope.prompt_text or "",
            "add_special": True,
            "parse_special": True,
        }
        if envelope.messages:
            rendered = await self.client.json("POST", "/apply-template", chat_body(envelope))
            # A template writes its own special tokens.
            body = {"content": rendered["prompt"], "add_special": False, "parse_special": True}
        return await server_tokens(self.client, body)

    async def _generated(self, plan: PlannedSequence) -> Events:
        streams = self.setting("stream") == "true"
        body = {
            **self._body(plan),
            "prompt": list(plan.prompt),
            "n_predict": plan.most_tokens,
            "stream": streams,
            "cache_prompt": self.setting("cache") == "warm",
        }
        received = 0
        async for event in self.client.answers("/completion", body):
            check_no_error(event)
            tokens = [int(token) for token in event.get("tokens") or ()]
            received += len(tokens)
            if tokens or not event.get("stop"):
                topk = self._distributions(event.get("completion_probabilities") or [], tokens)
                yield Piece(tokens, topk, event.get("content", ""), timed=streams)
            if event.get("stop"):
                _check_received(event, received)
                reason = "length" if event.get("stop_type") == "limit" else "stop"
                cached = (event.get("timings") or {}).get("cache_n")
                truncated = (finding("prompt-truncated"),) if event.get("truncated") else ()
                yield End(reason, cached_tokens=cached, answered_by=self._by, findings=truncated)
                return
        raise stream_unfinished_error()

    async def _forced(self, plan: PlannedSequence) -> Events:
        """Each recorded token by a request of its own, on a slot whose cache holds all before it."""
        fed = list(plan.prompt)
        slot = plan.sequence % self._slots
        async with self._slot_locks[slot]:
            for step, token in enumerate(plan.golden or ()):
                body = {
                    "prompt": fed,
                    "n_predict": 1,
                    "temperature": 0,
                    "n_probs": self.topk,
                    "return_tokens": True,
                    "logit_bias": [[token, FORCING_BIAS]],
                    "id_slot": slot,
                    "cache_prompt": step > 0 or self.setting("cache") == "warm",
                }
                event = await self.client.json("POST", "/completion", body)
                if (generated := event.get("tokens")) != [token]:
                    raise EngineFailed(
                        f"the server did not force the recorded token: step {step} generated {generated}, "
                        f"not {token}",
                        "use --mode free",
                    )
                topk = self._distributions(event.get("completion_probabilities") or [], [token])
                yield Piece([token], topk, event.get("content", ""))
                fed.append(token)
        yield End("golden", answered_by=self._by)

    def _body(self, plan: PlannedSequence) -> dict[str, Any]:
        bias = [[int(token), float(value)] for token, value in plan.value("logit_bias").items()]
        return {
            **self.fields.applying(plan),
            **({"logit_bias": bias} if bias else {}),
            "n_probs": self.topk,
            "return_tokens": True,
        }

    def _distributions(self, rows: list[Any], tokens: Sequence[int]) -> list[TopK | None]:
        """The top-K of generated tokens. One that ends inside a character comes without, as may an end token.

        Only the ids show which of them that is; where they leave a choice, no distribution is taken.
        """
        ids = [int(row["id"]) for row in rows]
        first = _matched(ids, tokens)
        last = [None if at is None else len(ids) - 1 - at for at in _matched(ids[::-1], tokens[::-1])[::-1]]
        return [
            self._distribution(rows[at]) if at is not None and at == other else None
            for at, other in zip(first, last, strict=True)
        ]

    def _distribution(self, row: Mapping[str, Any]) -> TopK | None:
        likely = row.get("top_logprobs")
        if not likely:
            return None
        logprobs = {int(item["id"]): _or_minus_infinity(item["logprob"]) for item in likely}
        return sorted_topk(logprobs, self.topk, _or_minus_infinity(row.get("logprob")))


def _or_minus_infinity(logprob: float | None) -> float:
    """A log-probability: minus infinity is written as null."""
    return float("-inf") if logprob is None else float(logprob)


def _decimal(value: int | float) -> int | float:
    """A number as it was written: the server writes its float32 with more digits than it has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _check_received(event: Mapping[str, Any], received: int) -> None:
    """Refuse a stream that left out tokens: llama.cpp sends none that ends inside a character."""
    predicted = event.get("tokens_predicted")
    if isinstance(predicted, int) and predicted > received:
        raise EngineFailed(
            f"the server's stream left out {predicted - received} of {predicted} tokens: "
            "it sends none that ends inside a character",
            "use --set stream=false: tokens are complete then, without the time of each",
        )


def _matched(ids: Sequence[int], tokens: Sequence[int]) -> list[int | None]:
    """For each token the index of its id in `ids`, a subsequence of `tokens`, as early as can be."""
    found: list[int | None] = []
    at = 0
    for token in tokens:
        fits = at < len(ids) and ids[at] == token
        found.append(at if fits else None)
        at += fits
    return found
