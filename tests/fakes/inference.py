"""Inference servers on this machine that answer as the real ones do, field by field, and misbehave if asked.

Behind all of them stands one toy model, so that what an engine records can be compared with what the model
computed. The shapes of the answers come from:

- SGLang 0.5.23: its package, `srt/entrypoints/http_server.py` and `openai/protocol.py`,
  `srt/managers/tokenizer_manager.py` (cumulative and incremental streams, logprobs as [logprob, id, text]).
- TGI 2 and 3: `docs/openapi.json` of its repository (StreamResponse, Info, ChatTokenizeResponse), its
  `router/src/validation.rs` (what it refuses) and `server.rs` (texts of `/tokenize` are slices of the input).
- Ollama 0.13: `docs/api.md` of its repository, and the package `ollama` 0.6.3 (`_types.py`).
- TensorRT-LLM 1.x: `tensorrt_llm/serve/openai_protocol.py` (unknown fields are refused) and
  `postprocess_handlers.py` (`token_ids` only with `detokenize: false`).
- OpenAI: the types of the package `openai` 3.57 (`chat_completion_chunk.py`, `completion.py`).
- vLLM 0.32 and llama.cpp (xllamacpp 2026.10): answers that the real servers gave.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.failing_server import FakeServer, Json, Send, models, reply, reply_raw
from fakes.toy_model import BOS, MODEL, SPECIAL, TOY, VOCABULARY, ids_of, rendered, text_of


@dataclass
class Sglang(FakeServer):
    """SGLang; `incremental` as with --incremental-streaming-output."""

    incremental: bool = False
    deterministic: bool = True
    old: bool = False
    """Without extra_key, and with the server's information at its older address."""
    detokenizes: bool = True
    seen: set[tuple[int, ...]] = field(default_factory=set)
    """The prefix cache: prompts that came without a key of their own."""

    async def GET_server_info(self, asked: Json, send: Send) -> None:
        if self.old:
            await reply(send, {"detail": "Not Found"}, 404)
        else:
            await reply(send, self._info())

    async def GET_get_server_info(self, asked: Json, send: Send) -> None:
        await reply(send, self._info())

    def _info(self) -> Json:
        return {
            "model_path": "/models/toy",
            "tp_size": 1,
            "api_key": "sk-a-key-that-must-never-be-kept",
            "enable_deterministic_inference": self.deterministic,
            "incremental_streaming_output": self.incremental,
            "internal_states": [{"last_gen_throughput": 1.5}],
            "version": "0.5.23",
        }

    async def GET_v1_models(self, asked: Json, send: Send) -> None:
        listed = models("sglang", MODEL, root=MODEL, parent=None, max_model_len=2048)
        listed["data"].append(
            {"id": "terse", "root": "/adapters/terse", "parent": MODEL, "max_model_len": None}
        )
        await reply(send, listed)

    async def POST_tokenize(self, asked: Json, send: Send) -> None:
        text = rendered(asked["messages"]) if "messages" in asked else asked["prompt"]
        ids = ids_of(text)
        await reply(send, {"tokens": ids, "count": len(ids), "max_model_len": 2048})

    async def POST_detokenize(self, asked: Json, send: Send) -> None:
        if not self.detokenizes:
            await reply(send, {"error": {"message": "the tokenizer is not initialised"}}, 400)
            return
        texts = [text_of([token for token in ids if token < VOCABULARY]) for ids in asked["tokens"]]
        await reply(send, {"text": texts})

    async def POST_generate(self, asked: Json, send: Send) -> None:
        if not await self.generation(send, "/generate"):
            return
        sampling, prompt = asked["sampling_params"], asked["input_ids"]
        unknown = sampling.keys() - {
            *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "sampling_seed", "min_new_tokens", "max_new_tokens", "stop"),
            *("stop_token_ids", "ignore_eos", "logit_bias", "json_schema", "regex", "ebnf", "structural_tag"),
        }
        if unknown:
            await reply(send, {"error": {"message": f"Unexpected keyword argument {min(unknown)!r}"}}, 400)
            return
        made = TOY.generate(
            prompt,
            sampling["max_new_tokens"],
            sampling.get("temperature"),
            sampling.get("sampling_seed", 42) if self.deterministic else None,
        )
        key = None if self.old else asked.get("extra_key")
        cached = (
            0 if key or asked.get("logprob_start_len") == 0 else (tuple(prompt) in self.seen) * len(prompt)
        )
        self.seen.add(tuple(prompt))
        k = asked["top_logprobs_num"]
        rows = [TOY.top([*prompt, *made[:step]], k) for step in range(len(made))]
        chosen = [TOY.logprobs([*prompt, *made[:step]])[token] for step, token in enumerate(made)]
        events = []
        for step in range(len(made)) if asked.get("stream") else [len(made) - 1]:
            first = step if self.incremental and asked.get("stream") else 0
            about = {
                "id": "1f",
                "finish_reason": {"type": "length", "length": len(made)} if step == len(made) - 1 else None,
                "prompt_tokens": len(prompt),
                "weight_version": "default",
                "num_retractions": 0,
                "input_token_logprobs": [],
                "output_token_logprobs": [[chosen[i], made[i], None] for i in range(first, step + 1)],
                "output_token_logprobs_length": step + 1,
                "input_top_logprobs": [],
                "output_top_logprobs": [
                    [[logprob, token, None] for token, logprob in rows[i]] for i in range(first, step + 1)
                ],
                "reasoning_tokens": 0,
                "completion_tokens": step + 1,
                "cached_tokens": cached,
            }
            if asked.get("logprob_start_len") == 0:
                about["input_token_logprobs"] = [[None, prompt[0], None]] + [
                    [TOY.logprobs(prompt[:i])[prompt[i]], prompt[i], None] for i in range(1, len(prompt))
                ]
                about["input_top_logprobs"] = [None] + [
                    [[logprob, token, None] for token, logprob in TOY.top(prompt[:i], k)]
                    for i in range(1, len(prompt))
                ]
            said = made[first : step + 1]
            events.append({"text": text_of(said), "output_ids": said, "meta_info": about})
        if not asked.get("stream"):
            await reply(send, events[-1])
        else:
            await self.stream(send, events, done=True)


@dataclass
class Tgi(FakeServer):
    """Text Generation Inference: it puts the first token before every text."""

    def error(self, message: str) -> Any:
        return {"error": message, "error_type": "overloaded"}

    async def GET_info(self, asked: Json, send: Send) -> None:
        about = {"model_id": "org/toy", "model_sha": "0f1e2d3c", "model_pipeline_tag": "text-generation"}
        about |= {"max_total_tokens": 2048, "max_input_tokens": 2047, "max_concurrent_requests": 128}
        await reply(send, {**about, "router": "text-generation-router", "version": "3.3.5", "sha": "abc123"})

    async def POST_tokenize(self, asked: Json, send: Send) -> None:
        await reply(send, self._tokens([BOS, *ids_of(asked["inputs"])], added=1))

    async def POST_chat_tokenize(self, asked: Json, send: Send) -> None:
        text = rendered(asked["messages"])
        await reply(send, {"templated_text": text, "tokenize_response": self._tokens(ids_of(text), added=0)})

    def _tokens(self, ids: list[int], added: int) -> list[Json]:
        said = ["" if index < added else text_of([token]) for index, token in enumerate(ids)]
        return [
            {"id": token, "text": text, "start": 0, "stop": len(text)}
            for token, text in zip(ids, said, strict=True)
        ]

    async def POST_generate_stream(self, asked: Json, send: Send) -> None:
        if not await self.generation(send, "/generate_stream"):
            return
        given = asked["parameters"]
        wrong = [
            name
            for name, fits in (
                ("temperature", given.get("temperature", 1) > 0),
                ("top_k", given.get("top_k", 1) > 0),
                ("top_p", 0 < given.get("top_p", 0.5) < 1),
                ("top_n_tokens", given.get("top_n_tokens", 1) <= 5),
            )
            if not fits
        ]
        if wrong:
            await self.stream(send, [{"error": f"`{wrong[0]}` is out of range", "error_type": "validation"}])
            return
        prompt = [BOS, *ids_of(asked["inputs"])]
        made = TOY.generate(prompt, given["max_new_tokens"], given.get("temperature", 0), given.get("seed"))
        events: list[Json] = []
        for step, token in enumerate(made):
            before = [*prompt, *made[:step]]
            event = {"index": step + 1, "token": self._token(token, TOY.logprobs(before)[token])}
            if given.get("top_n_tokens"):
                event["top_tokens"] = [self._token(*pair) for pair in TOY.top(before, given["top_n_tokens"])]
            last = step == len(made) - 1
            about = {"finish_reason": "length", "generated_tokens": len(made), "input_length": len(prompt)}
            event["generated_text"] = text_of(made) if last else None
            event["details"] = {**about, "seed": given.get("seed")} if last else None
            events.append(event)
        await self.stream(send, events)

    def _token(self, token: int, logprob: float) -> Json:
        return {"id": token, "text": text_of([token]), "logprob": logprob, "special": token in SPECIAL}


@dataclass
class Ollama(FakeServer):
    """Ollama, with two models."""

    def error(self, message: str) -> Any:
        return {"error": message}

    async def GET_api_version(self, asked: Json, send: Send) -> None:
        await reply(send, {"version": "0.13.1"})

    async def GET_api_tags(self, asked: Json, send: Send) -> None:
        names = ("toy:latest", "other:7b")
        await reply(
            send,
            {
                "models": [
                    {"name": name, "model": name, "digest": f"{index}b" * 32}
                    for index, name in enumerate(names)
                ]
            },
        )

    async def POST_api_generate(self, asked: Json, send: Send) -> None:
        if await self.generation(send, "/api/generate"):
            assert asked["raw"]
            await self._answer(asked, asked["prompt"], lambda text: {"response": text}, send)

    async def POST_api_chat(self, asked: Json, send: Send) -> None:
        if await self.generation(send, "/api/chat"):
            shape = lambda text: {"message": {"role": "assistant", "content": text}}  # noqa: E731
            await self._answer(asked, rendered(asked["messages"]), shape, send)

    async def _answer(self, asked: Json, prompt: str, shape: Callable[[str], Json], send: Send) -> None:
        options = asked["options"]
        ids = ids_of(prompt)
        made = TOY.generate(ids, options["num_predict"], options.get("temperature", 0.8), options.get("seed"))
        head = {"model": asked["model"], "created_at": "2026-11-30T10:00:00Z"}
        lines: list[Json] = [{**head, **shape(text_of([token])), "done": False} for token in made]
        durations = {
            "total_duration": 9,
            "load_duration": 1,
            "prompt_eval_count": len(ids),
            "eval_count": len(made),
        }
        lines.append({**head, **shape(""), "done": True, "done_reason": "length", **durations})
        if self.fault == "late error":
            lines[2:] = [{"error": "llama runner process has terminated"}]
        whole = [json.dumps(line).encode() + b"\n" for line in lines]
        await self.pieces(send, whole, "application/x-ndjson", b"\n")

    async def stream(self, send: Send, events: Sequence[Any], done: bool = False) -> None:
        whole = [json.dumps(event).encode() + b"\n" for event in events]
        await self.pieces(send, whole, "application/x-ndjson", b"\n")


@dataclass
class TrtLlm(FakeServer):
    """TensorRT-LLM; `detokenizes`: it tells text in spite of `detokenize: false`."""

    detokenizes: bool = False

    async def GET_version(self, asked: Json, send: Send) -> None:
        await reply(send, {"version": "1.2.0"})

    async def GET_v1_models(self, asked: Json, send: Send) -> None:
        await reply(send, models("tensorrt_llm", MODEL))

    async def POST_v1_completions(self, asked: Json, send: Send) -> None:
        if not await self.generation(send, "/v1/completions"):
            return
        known = {"model", "prompt", "max_tokens", "detokenize", "stream", "stream_options", "seed", "stop"}
        known |= {"temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"}
        known |= {"repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "logit_bias"}
        if unknown := asked.keys() - known:
            about = {"object": "error", "type": "BadRequestError", "param": None, "code": 400}
            await reply(send, {**about, "message": f"Extra inputs are not permitted: {min(unknown)}"}, 400)
            return
        made = TOY.generate(asked["prompt"], asked["max_tokens"], asked.get("temperature"), asked.get("seed"))
        events: list[Json] = []
        for step, token in enumerate(made):
            told: Json = {"text": "", "token_ids": [token]}
            if self.detokenizes:
                told = {"text": text_of([token]), "token_ids": None}
            reason = "length" if step == len(made) - 1 else None
            choice = {"index": 0, **told, "logprobs": None, "finish_reason": reason, "stop_reason": None}
            events.append(
                {
                    "id": "cmpl-1",
                    "object": "text_completion",
                    "created": 1,
                    "model": MODEL,
                    "choices": [choice],
                    "usage": None,
                }
            )
        usage = {"prompt_tokens": len(asked["prompt"]), "prompt_tokens_details": {"cached_tokens": 0}}
        events.append({"id": "chatcmpl-1", "model": MODEL, "choices": [], "usage": usage})
        await self.stream(send, events, done=True)


@dataclass
class OpenAi(FakeServer):
    """A provider with the OpenAI API.

    Attributes:
        fingerprint: Its system_fingerprint; empty: it tells none, and takes no seed.
        lists: The models it lists; None: it has no such route.
        newer: Its model wants max_completion_tokens.
        calls: Its model answers by calling a tool, with these arguments.
    """

    fingerprint: str = "fp_44709d6fcb"
    lists: tuple[str, ...] | None = (MODEL, "toy-mini")
    newer: bool = False
    calls: str = ""

    async def GET_v1_models(self, asked: Json, send: Send) -> None:
        if self.lists is None:
            await reply(send, self.error("Not Found"), 404)
        else:
            await reply(send, models("somebody", *self.lists))

    async def POST_v1_chat_completions(self, asked: Json, send: Send) -> None:
        await self._answer("/v1/chat/completions", asked, send)

    async def POST_v1_completions(self, asked: Json, send: Send) -> None:
        await self._answer("/v1/completions", asked, send)

    async def _answer(self, path: str, asked: Json, send: Send) -> None:
        if not await self.generation(send, path):
            return
        if self.newer and "max_tokens" in asked:
            said = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
            await reply(
                send,
                {
                    "error": {
                        "message": said,
                        "type": "invalid_request_error",
                        "param": "max_tokens",
                        "code": "unsupported_parameter",
                    }
                },
                400,
            )
            return
        chat = path == "/v1/chat/completions"
        ids = ids_of(rendered(asked["messages"]) if chat else asked["prompt"])
        limit = asked.get("max_completion_tokens" if self.newer else "max_tokens", 16)
        made = TOY.generate(
            ids, limit, asked.get("temperature"), asked.get("seed") if self.fingerprint else None
        )
        kind = "chat.completion.chunk" if chat else "text_completion"
        head: Json = {
            "id": "chatcmpl-1",
            "object": kind,
            "created": 1,
            "model": f"{asked['model']}-2026-10-01",
        }
        head["system_fingerprint"] = self.fingerprint or None
        events: list[Json] = []
        for step, token in enumerate(made):
            last = step == len(made) - 1
            said: Json = {"delta": {"content": text_of([token])}} if chat else {"text": text_of([token])}
            if self.calls:
                said = {"delta": {"tool_calls": [self._call(step)]} if step < 3 else {}}
            choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length" if last else None}
            events.append({**head, "choices": [choice], "usage": None})
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(made),
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        events.append({**head, "choices": [], "usage": usage})
        await self.stream(send, events, done=True)

    def _call(self, step: int) -> Json:
        """A call comes in pieces: id and name, then its arguments in two."""
        half = len(self.calls) // 2
        if step == 0:
            name = {"name": "weather", "arguments": ""}
            return {"index": 0, "id": f"call_{random.randrange(10**9)}", "type": "function", "function": name}
        return {"index": 0, "function": {"arguments": self.calls[:half] if step == 1 else self.calls[half:]}}


@dataclass
class Vllm(FakeServer):
    """vLLM 0.32, with rip's plugin that forces tokens."""

    async def GET_health(self, asked: Json, send: Send) -> None:
        await reply_raw(send, b"", "text/plain")

    async def GET_version(self, asked: Json, send: Send) -> None:
        await reply(send, {"version": "0.32.0"})

    async def GET_v1_models(self, asked: Json, send: Send) -> None:
        await reply(send, models("vllm", MODEL, root="/models/toy", parent=None, max_model_len=2048))

    async def POST_detokenize(self, asked: Json, send: Send) -> None:
        await reply(send, {"prompt": text_of(asked["tokens"])})

    async def POST_v1_completions(self, asked: Json, send: Send) -> None:
        if not await self.generation(send, "/v1/completions"):
            return
        prompt, k = asked["prompt"], asked.get("logprobs") or 0
        forced = (asked.get("vllm_xargs") or {}).get("rip_force")
        made = forced or TOY.generate(
            prompt, asked["max_tokens"], asked.get("temperature"), asked.get("seed")
        )
        about = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": MODEL,
            "system_fingerprint": "vllm-0.32.0-5e6272be",
        }

        def choice(steps: Sequence[int]) -> Json:
            rows = [TOY.top([*prompt, *made[:step]], k) for step in steps]
            return {
                "index": 0,
                "text": text_of([made[step] for step in steps]),
                "logprobs": {
                    "text_offset": [0 for _ in steps],
                    "token_logprobs": [TOY.logprobs([*prompt, *made[:step]])[made[step]] for step in steps],
                    "tokens": [f"token_id:{made[step]}" for step in steps],
                    "top_logprobs": [{f"token_id:{token}": value for token, value in row} for row in rows],
                },
                "finish_reason": "length" if steps[-1] == len(made) - 1 else None,
                "stop_reason": None,
                "token_ids": [made[step] for step in steps],
                "prompt_token_ids": None,
            }

        if asked.get("stream"):
            events = [{**about, "choices": [choice([step])]} for step in range(len(made))]
            await self.stream(
                send, [*events, {**about, "choices": [], "usage": {"prompt_tokens": len(prompt)}}], done=True
            )
            return
        whole = choice(range(len(made)))
        whole["prompt_logprobs"] = [None] + [
            {
                str(token): {"logprob": value, "rank": rank + 1, "decoded_token": text_of([token])}
                for rank, (token, value) in enumerate(
                    TOY.top(prompt[:index], asked.get("prompt_logprobs") or 0)
                )
            }
            for index in range(1, len(prompt))
        ]
        await reply(send, {**about, "choices": [whole]})


@dataclass
class LlamaCpp(FakeServer):
    """llama-server."""

    async def GET_props(self, asked: Json, send: Send) -> None:
        settings = {
            "params": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0},
            "n_ctx": 2048,
        }
        about = {"total_slots": 4, "model_path": "/models/toy.gguf", "build_info": "b6789-1a2b3c4d"}
        await reply(send, {"default_generation_settings": settings, **about})

    async def POST_detokenize(self, asked: Json, send: Send) -> None:
        await reply(send, {"content": text_of(asked["tokens"])})

    async def POST_completion(self, asked: Json, send: Send) -> None:
        if not await self.generation(send, "/completion"):
            return
        prompt, k = asked["prompt"], asked["n_probs"]
        forced = [token for token, _ in asked.get("logit_bias", ())]
        made = forced or TOY.generate(prompt, asked["n_predict"], asked.get("temperature"), asked.get("seed"))
        events = []
        for step, token in enumerate(made):
            before = [*prompt, *made[:step]]
            likely = [
                {"id": one, "token": text_of([one]), "bytes": [], "logprob": value}
                for one, value in TOY.top(before, k)
            ]
            row = {
                "id": token,
                "token": text_of([token]),
                "bytes": [],
                "logprob": TOY.logprobs(before)[token],
                "top_logprobs": likely,
            }
            events.append(
                {
                    "index": 0,
                    "content": text_of([token]),
                    "tokens": [token],
                    "stop": False,
                    "completion_probabilities": [row],
                }
            )
        about = {"stop": True, "stop_type": "limit", "truncated": False, "timings": {"cache_n": 0}}
        if asked.get("stream"):
            await self.stream(send, [*events, {"index": 0, "content": "", "tokens": [], **about}])
            return
        rows = [event["completion_probabilities"][0] for event in events]
        await reply(
            send, {"content": text_of(made), "tokens": made, "completion_probabilities": rows, **about}
        )


SERVERS: dict[str, type[FakeServer]] = {
    "vllm": Vllm,
    "llama.cpp": LlamaCpp,
    "sglang": Sglang,
    "tgi": Tgi,
    "tensorrt-llm": TrtLlm,
    "ollama": Ollama,
    "openai": OpenAi,
}
"""By the engine that calls them."""


def main(arguments: list[str]) -> None:
    """A server as a program of its own: `inference.py ENGINE … --port N`; `FAULT` in the environment."""
    import uvicorn

    port = int(arguments[arguments.index("--port") + 1])
    app = SERVERS[arguments[0]](fault=os.environ.get("FAULT", ""))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", lifespan="off")


if __name__ == "__main__":
    main(sys.argv[1:])
