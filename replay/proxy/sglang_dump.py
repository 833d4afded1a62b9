"""What SGLang writes of requests: dump files (pickle, never unpickled) and its JSON request log.

A dump is a list of (request, output, created, finished), or a table with that list under `requests` and the
server's arguments beside it. The log was read from a running SGLang 0.5.23, dumps only after its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ...schemas.errors import BadInput
from ..wire import SGLANG_GRAMMARS, SGLANG_NAMES, split_sampling
from .exchange import (
    Answer,
    Choice,
    Circumstances,
    ClientRequest,
    Json,
    Prompt,
    as_token_ids,
    compose,
    context_of,
    count_in,
    iso,
    listed,
    object_in,
    stated,
)
from .plain_pickle import Named, UncalledObject, read_pickle

REQUEST_CLASS = "GenerateReqInput"
HEALTH_CHECK = "HEALTH_CHECK"
"""How the name of a request begins with which the server itself answers `GET /health`."""
_MOST_DEPTH = 60
_NODES_A_BYTE, _NODES_ANYWAY = 64, 100_000
"""Values that a file may hold, by its size. Shared parts count as often as they occur: a small hostile file
can mean endless data."""
_ABOUT_LOGPROBS = ("return_logprob", "top_logprobs_num", "logprob_start_len")
_NOT_KEPT = frozenset(
    {"rid", "text", "input_ids", "sampling_params", "http_worker_ipc", "log_metrics", "received_time"}
    | {"bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "external_trace_header"}
    | {"no_logs", "lora_id", "_is_single", "is_single", "batch_size", "parallel_sample_num"}
    | set(_ABOUT_LOGPROBS)
)
"""Fields of a request that are not about its content, or that have a field of their own."""
_SERVER_ARGS = {
    "tensor_parallel_size": ("tp_size", int),
    "attention_backend": ("attention_backend", str),
    "quantization": ("quantization", str),
    "dtype": ("dtype", str),
}
"""Field of an envelope's runtime → name and type among SGLang's arguments. No other is read."""


@dataclass(frozen=True)
class Exchange:
    """One request with its output, wherever it was found."""

    where: str
    request: Json
    output: Json
    created: float | None
    finished: float | None
    server: Json


def read_dump(content: bytes, where: str) -> Iterator[Exchange]:
    """The requests of a dump file; those that are no text generations are left out.

    Raises:
        BadInput: It is no such dump.
    """
    found = read_pickle(content, where)
    server: Json = {}
    if isinstance(found, dict) and "requests" in found:
        arguments = found.get("server_args")
        server = arguments.fields() if isinstance(arguments, UncalledObject) else {}
        found = found["requests"]
    if isinstance(found, UncalledObject):
        found = found.items or (found.args[0] if found.args else None)  # a deque
    if not isinstance(found, list) or not all(isinstance(item, tuple) and len(item) >= 2 for item in found):
        raise BadInput(
            f"{where}: a pickle that is not of SGLang requests",
            "give a file that SGLang dumped (--dump-requests-folder, --crash-dump-folder)",
        )
    plain = _Plain(where, _NODES_A_BYTE * len(content) + _NODES_ANYWAY)
    for index, item in enumerate(found):
        request, output, *times = item
        if not isinstance(request, UncalledObject) or request.maker.rpartition(".")[2] != REQUEST_CLASS:
            continue
        created, finished = ([*map(_time, times), None, None])[:2]
        yield Exchange(
            f"{where}: request {index}",
            plain.of(request.fields()),
            plain.of(output) if isinstance(output, dict) else {},
            created,
            finished,
            server,
        )


def from_log_line(line: Json, where: str) -> Exchange | None:
    """One line of the JSON request log.

    Returns:
        None for the server's own requests, and for events that add nothing to `request.finished`.
    """
    if line.get("event") != "request.finished" or str(line.get("rid", "")).startswith(HEALTH_CHECK):
        return None
    request, output = line.get("obj"), line.get("out")
    if not isinstance(request, dict):
        raise BadInput(f"{where}: a request log without requests", "log with --log-requests-level 3")
    if "rid" not in request and isinstance(line.get("rid"), str):
        request = {**request, "rid": line["rid"]}
    return Exchange(where, request, output if isinstance(output, dict) else {}, None, None, {})


def envelopes_of(exchange: Exchange, identity: Json, is_secret: Callable[[str], bool]) -> Iterator[Json]:
    """The envelope of one request, as JSON.

    Raises:
        BadInput: It has no prompt that an envelope can hold.
    """
    request, output = exchange.request, exchange.output
    meta = object_in(output, "meta_info")
    text = request.get("text")
    prompt_ids = as_token_ids(request.get("input_ids")) or _prompt_ids(output, meta)
    if not isinstance(text, str) and not prompt_ids:
        raise BadInput(
            f"{exchange.where}: it has no prompt, or the log cut it off",
            "log with --log-requests-level 3; requests with several prompts are not supported",
        )
    sampling, rest = split_sampling(object_in(request, "sampling_params"), SGLANG_NAMES, is_secret)
    grammars = {kind: rest.pop(name) for kind, name in SGLANG_GRAMMARS.items() if name in rest}
    if grammars:
        sampling["structured_outputs"] = grammars
    _, others = split_sampling(
        {
            name: value
            for name, value in request.items()
            if name not in _NOT_KEPT and value not in (None, False)
        },
        {},
        is_secret,
    )
    client = ClientRequest(
        chat=False,
        prompts=(Prompt(text=text if isinstance(text, str) else None, token_ids=prompt_ids),),
        sampling=sampling,
        logprobs=(count_in(request, "top_logprobs_num") or 0)
        if request.get("return_logprob") is True
        else None,
        rest={**others, **rest},
    )
    answer = _answer(output, meta)
    context = context_of(answer, None)
    if exchange.created is not None:
        context["received"] = iso(datetime.fromtimestamp(exchange.created, UTC))
        if exchange.finished is not None:
            context["latency_ms"] = round((exchange.finished - exchange.created) * 1000, 3)
    model = exchange.server.get("served_model_name") or exchange.server.get("model_path")
    if isinstance(model, str):
        context["served_model"] = model
    runtime = {name: exchange.server.get(key) for name, (key, _) in _SERVER_ARGS.items()}
    fits = {name: value for name, value in runtime.items() if type(value) is _SERVER_ARGS[name][1]}
    name = request.get("rid")
    known = Circumstances(
        complete=bool(output) and answer.error is None,
        ending=None if output else "no answer in the dump",
        context=context,
        identity=identity,
        runtime={"engine": "sglang", **fits},
    )
    yield from compose(client, answer, name if isinstance(name, str) and name else exchange.where, known)


def _answer(output: Json, meta: Json) -> Answer:
    answer = Answer(response_id=meta.get("id") if isinstance(meta.get("id"), str) else None)
    answer.cached_tokens = count_in(meta, "cached_tokens")
    if not output:
        return answer
    choice = Choice()
    if isinstance(output.get("text"), str):
        choice.text.append(output["text"])
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind == "abort" and isinstance(reason, dict):
        answer.error = str(reason.get("message") or "aborted")[:500]
    choice.finish_reason = kind if isinstance(kind, str) else None
    scored = [entry for entry in listed(meta.get("output_token_logprobs")) if isinstance(entry, list | tuple)]
    choice.logprobs = [float(entry[0]) for entry in scored if entry and isinstance(entry[0], float | int)]
    choice.unscored = len(choice.logprobs) != len(scored)
    choice.scored_ids = [entry[1] for entry in scored if len(entry) > 1 and type(entry[1]) is int]
    choice.token_ids = as_token_ids(output.get("output_ids")) or []
    answer.choices[0] = choice
    return answer


def _prompt_ids(output: Json, meta: Json) -> list[int] | None:
    """As the output has them, where it has all of them."""
    for holder in (output, meta):
        if found := as_token_ids(holder.get("prompt_token_ids")):
            return found
    scored = listed(meta.get("input_token_logprobs"))
    ids = as_token_ids([entry[1] for entry in scored if isinstance(entry, list | tuple) and len(entry) > 1])
    return ids if ids and len(ids) == meta.get("prompt_tokens") else None


def _time(value: Any) -> float | None:
    fits = isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < 1e11
    return float(value) if fits else None


class _Plain:
    """Turns what a pickle describes into JSON; what is no data becomes its name."""

    def __init__(self, where: str, most: int) -> None:
        self._where, self._left = where, most

    def of(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if depth > _MOST_DEPTH or self._left < 0:
            raise BadInput(
                f"{self._where}: nested more than {_MOST_DEPTH} deep, or endless",
                "give a dump of plain requests",
            )
        if isinstance(value, dict):
            return {str(name): self.of(item, depth + 1) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(item, depth + 1) for item in value]
        if isinstance(value, UncalledObject):
            return stated({"class": value.maker, **self.of(value.fields(), depth + 1)})
        if isinstance(value, Named):
            return value.name
        if isinstance(value, bytes):
            return f"{len(value)} bytes"
        return value
