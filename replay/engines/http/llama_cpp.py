"""Engine `llama.cpp`: any llama-server by its URL, or the server of the package xllamacpp in a child process.

Its native `/completion` takes and tells token ids. Recorded tokens are forced one request at a time, by a
bias that no logit outweighs; the log-probabilities it tells stay those of the raw logits.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....schemas.errors import BadInput, EngineFailed, stated_option, stated_setting
from ....schemas.trace import Mode
from ...request.batches import PlannedSequence
from ...request.contract import TOLD_BY_SERVER
from ...row_summaries.trace_rows import TopK
from ..base import Capabilities
from .answer import End, Event, Piece, sorted_topk
from .llama_child import PARAMETERS
from .served_model import COMMON_SAMPLING, check_went_well, recognised, unended
from .server import ServerEngine
from .settings import CLIENT_SETTINGS, server_environment
from .started import StartedServer

FORCING_BIAS = 1e6
"""Added to the logit of a token that is to be forced: far above any logit. It need not be exact, as the
log-probabilities are taken before it is added."""

RENAMED = {"repetition_penalty": "repeat_penalty"}
SAMPLING = (*COMMON_SAMPLING, "ignore_eos")
"""Fields of an envelope that llama.cpp has, by their names or those of `RENAMED`."""

HAS_XLLAMACPP = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('xllamacpp') else 3)"


class LlamaCppEngine(ServerEngine):
    """A llama.cpp server (see `server.ServerEngine`)."""

    name = "llama.cpp"
    capabilities = Capabilities(
        modes=("free", "golden-decode"), sites=False, logits_hash=False, seed=True, batch="concurrent"
    )
    sampling = (*SAMPLING, "logit_bias")
    own_settings: Mapping[str, str] = {
        "cache": "cold: every prompt is computed anew; warm: the server's prompt cache is used",
        "stream": "true: tokens as they come; false: all at the end, those that end inside a character too",
    }

    def default_settings(self) -> Mapping[str, Any]:
        """What applies where `--set` says nothing."""
        return {**CLIENT_SETTINGS, "cache": "cold", "stream": "false"}

    @classmethod
    def check_start(cls, model: Path | str | None, python: str | None, given: Mapping[str, Any]) -> None:
        """Refuse what the server of xllamacpp cannot be started with (see `base.Engine.check_start`).

        Raises:
            BadInput: No GGUF file, no xllamacpp, an unknown setting, or a value that does not fit.
            EngineFailed: The interpreter cannot be run.
        """
        if not isinstance(model, Path) or model.suffix != ".gguf":
            raise BadInput("llama.cpp serves GGUF files", "give one with --model, or a server with --url")
        python = python or sys.executable
        try:
            found = subprocess.run([python, "-c", HAS_XLLAMACPP], capture_output=True, timeout=60.0)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not answer"
            raise EngineFailed(
                f"cannot be run: {reason}",
                "name an interpreter with {option}",
                stated_option("python", python),
            ) from None
        if found.returncode:
            raise BadInput(
                f"{python} has no xllamacpp",
                f"{python} -m pip install xllamacpp, or name a running server with --url",
            )
        for name, text in cls._parameters(given).items():
            read = PARAMETERS.get(name)
            if read is None:
                raise BadInput(
                    "no such setting",
                    f"choose one of: {', '.join(sorted(PARAMETERS))}",
                    stated_setting(f"{name}={text}"),
                )
            try:
                read(text)
            except (ValueError, KeyError):
                wanted = "auto, off, on" if name == "flash_attn" else "a whole number"
                raise BadInput(
                    f"not a value of {name}", f"give {wanted}", stated_setting(f"{name}={text}")
                ) from None

    @classmethod
    def _parameters(cls, given: Mapping[str, Any]) -> dict[str, str]:
        """Settings that are parameters of the server itself."""
        return {
            name.replace("-", "_"): value
            for name, value in given.items()
            if name not in CLIENT_SETTINGS and name not in cls.own_settings and not name.startswith("env.")
        }

    def start(self) -> StartedServer:
        """Start the server of xllamacpp in a process of its own.

        Raises:
            BadInput: No GGUF file, no xllamacpp, or an unknown setting.
        """
        opening = self.opening
        self.check_start(opening.model, opening.python, opening.given)
        python = opening.python or sys.executable
        parameters = self._parameters(opening.given)
        # As many slots as sequences run together, each with room for the whole context.
        parameters.setdefault("n_parallel", str(self.setting("batch_size")))
        return StartedServer(
            [
                python,
                str(Path(__file__).with_name("llama_child.py")),
                str(opening.model),
                "--port",
                "{port}",
                "--parameters",
                json.dumps(parameters, sort_keys=True),
            ],
            server_environment(opening.given),
            opening.log or Path("server.log"),
            int(self.setting("port")),
            "/health",
            float(self.setting("ready_timeout")),
            opening.say,
        )

    async def connect(self) -> None:
        """See what is served.

        Raises:
            EngineFailed: No llama.cpp server.
        """
        props = await recognised(self.client, "llama.cpp", {"/props": ("default_generation_settings",)})
        defaults = props["default_generation_settings"]
        self.context_length = int(defaults.get("n_ctx") or self.context_length)
        told = defaults.get("params", defaults)
        named = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}
        named["repetition_penalty"] = "repeat_penalty"
        self.sampling_defaults_from = TOLD_BY_SERVER
        self.sampling_defaults = {
            name: _decimal(told[other])
            for name, other in named.items()
            if isinstance(told.get(other), int | float)
        }
        self._slots = int(props.get("total_slots") or 1)
        self._by = {
            "model": str(props.get("model_path", "")),
            "system_fingerprint": str(props.get("build_info", "")),
        }
        if self._slots < int(self.setting("batch_size")):
            self.findings.append(
                f"the server has {self._slots} slots, so at most as many of a batch of "
                f"{self.setting('batch_size')} run together"
            )

    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request, or one a token where tokens are forced (see `server.ServerEngine.answer`)."""
        return self._forced(plan) if mode == "golden-decode" else self._generated(plan)

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token."""
        said = await self.client.json("POST", "/detokenize", {"tokens": [token_id]})
        text = said.get("content")
        return text if isinstance(text, str) else None

    async def tokenize_remotely(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids by the server's own tokenizer and template.

        Raises:
            BadInput: The template refuses the messages.
        """
        body: dict[str, Any] = {"content": text or "", "add_special": True, "parse_special": True}
        try:
            if messages:
                asked = {"messages": messages, **({"tools": tools} if tools else {})}
                rendered = await self.client.json("POST", "/apply-template", asked)
                # A template writes its own special tokens.
                body = {"content": rendered["prompt"], "add_special": False, "parse_special": True}
            said = await self.client.json("POST", "/tokenize", body)
        except EngineFailed as error:
            raise BadInput(f"the server makes no token ids of it: {error.message}", error.fix) from error
        return [int(token) for token in said["tokens"]]

    async def _generated(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        body = {
            **self._asked(plan),
            "prompt": list(plan.prompt),
            "n_predict": plan.most_tokens,
            "stream": self.setting("stream") == "true",
            "cache_prompt": self.setting("cache") == "warm",
        }
        came = 0
        async for said in self._answers(body):
            check_went_well(said)
            told = said.get("completion_probabilities") or []
            tokens = [int(token) for token in said.get("tokens") or ()]
            came += len(tokens)
            if tokens or not said.get("stop"):
                told_topk = self._distributions(told, tokens)
                yield Piece(tokens, told_topk, said.get("content", ""), timed=body["stream"])
            if said.get("stop"):
                predicted = said.get("tokens_predicted")
                if isinstance(predicted, int) and predicted > came:
                    raise EngineFailed(
                        f"the server's stream left out {predicted - came} of {predicted} tokens: "
                        "it sends none that ends inside a character",
                        "use --set stream=false: tokens are whole then, and when each came is not known",
                    )
                reason = "length" if said.get("stop_type") == "limit" else "stop"
                cached = (said.get("timings") or {}).get("cache_n")
                yield End(reason, cached_tokens=cached, answered_by=self._by, findings=_truncated(said))
                return
        raise unended()

    async def _answers(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream, or the one answer where none was asked for."""
        if body["stream"]:
            async for said in self.client.events("/completion", body):
                yield said
        else:
            yield await self.client.json("POST", "/completion", body)

    async def _forced(self, plan: PlannedSequence) -> AsyncIterator[Event]:
        """Each recorded token by a request of its own, on a slot whose cache holds all before it."""
        golden = list(plan.golden or ())
        fed = list(plan.prompt)
        slot = plan.sequence % self._slots
        async with self._slot(slot):
            for step, token in enumerate(golden):
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
                said = await self.client.json("POST", "/completion", body)
                if (got := said.get("tokens")) != [token]:
                    raise EngineFailed(
                        f"the server forced no recorded token: step {step} brought {got}, not {token}",
                        "use --mode free",
                    )
                told = said.get("completion_probabilities") or []
                yield Piece([token], self._distributions(told, [token]), said.get("content", ""))
                fed.append(token)
        yield End("golden", answered_by=self._by)

    def _slot(self, index: int) -> asyncio.Lock:
        """The right to use one slot: another sequence on it would empty its cache."""
        self._locks: dict[int, asyncio.Lock] = getattr(self, "_locks", {})
        return self._locks.setdefault(index, asyncio.Lock())

    def _asked(self, plan: PlannedSequence) -> dict[str, Any]:
        asked = {
            RENAMED.get(name, name): plan.value(name) for name in SAMPLING if plan.value(name) is not None
        }
        if "seed" in asked:
            asked["seed"] = (int(str(asked["seed"])) + plan.seed_offset) % 2**32  # its seeds have 32 bits
        bias = [[int(token), float(value)] for token, value in plan.value("logit_bias").items()]
        return {
            **asked,
            **({"logit_bias": bias} if bias else {}),
            "n_probs": self.topk,
            "return_tokens": True,
        }

    def _distributions(self, told: list[Any], tokens: Sequence[int]) -> list[TopK | None]:
        """The top-K of generated tokens. One that ends inside a character comes without, as may an end token.

        Only the ids say which of them that is; where they leave a choice, no distribution is taken.
        """
        ids = [int(row["id"]) for row in told]
        first = _matched(ids, tokens)
        last = [None if at is None else len(ids) - 1 - at for at in _matched(ids[::-1], tokens[::-1])[::-1]]
        return [
            self._distribution(told[at]) if at is not None and at == other else None
            for at, other in zip(first, last, strict=True)
        ]

    def _distribution(self, row: Mapping[str, Any]) -> TopK | None:
        likely = row.get("top_logprobs")
        if not likely:
            return None
        # Minus infinity is written as null.
        values = [float("-inf") if item["logprob"] is None else float(item["logprob"]) for item in likely]
        chosen = row.get("logprob")
        return sorted_topk(
            [int(item["id"]) for item in likely],
            values,
            self.topk,
            float("-inf") if chosen is None else float(chosen),
        )


def _decimal(value: int | float) -> int | float:
    """A number as it was written: the server tells its float32 with more digits than it has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _truncated(said: Mapping[str, Any]) -> tuple[str, ...]:
    return ("the server cut the prompt to fit its context",) if said.get("truncated") else ()


def _matched(ids: Sequence[int], tokens: Sequence[int]) -> list[int | None]:
    """For each token the index of its id in `ids`, a subsequence of `tokens`, as early as can be."""
    found: list[int | None] = []
    at = 0
    for token in tokens:
        fits = at < len(ids) and ids[at] == token
        found.append(at if fits else None)
        at += fits
    return found
