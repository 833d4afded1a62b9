"""What an SGLang server tells (written for 0.5): its arguments, resolved, and the state of its schedulers.

Its `/server_info` holds API keys in the clear: they are taken out before anything is kept. The checksums of
`/weights_checker` are not asked for: another action of that route overwrites the live weights, and releases
before that action was added fail on it inside the scheduler.
"""

from __future__ import annotations

from typing import Any

from ..engine_arguments.command_line import is_uninteresting
from .client import Client, NoAnswer
from .server_facts import Told, part, rows, table
from .vllm import ask_tokenizer

_INFO = "/server_info (resolved)"
_STATE = "/server_info internal_states"
_MODEL = "/model_info"
_READINGS = frozenset(
    {"internal_states", "version", "server_args", "status", "last_gen_throughput", "memory_usage", "load"}
    | {"avg_spec_accept_length", "step_time_dict", "effective_max_running_requests_per_dp"}
)
"""What changes while it runs, and what has a field of its own."""


def recognise(info: Any) -> str | None:
    """By the names of its arguments; TensorRT-LLM has the same route with other contents."""
    arguments = {**table(part(info, "server_args")), **table(info)}
    if {"tp_size", "model_path"} <= set(arguments) or "internal_states" in arguments:
        return "sglang"
    return "tensorrt-llm" if "disaggregated_params" in arguments else None


def read(client: Client, told: Told) -> None:
    """Ask everything that changes nothing."""
    try:
        info = _first(client, "/server_info", "/get_server_info")
    except NoAnswer as reason:
        info = None
        told.lacks("engine", "version", str(reason), "/server_info")
    arguments = {**table(part(info, "server_args")), **table(info)}
    told.say("engine", "version", arguments.get("version"), _INFO)
    states = rows(arguments.get("internal_states"))
    if states:
        told.say_all("sglang", states[0], _STATE)  # what the scheduler uses comes before what was asked for
    told.say_all("sglang", arguments, _INFO)
    told.say("model", "quantization_method", arguments.get("quantization"), _INFO)
    if "speculative_algorithm" in arguments and arguments["speculative_algorithm"] is None:
        told.say("engine", "speculative_decoding", "none", _INFO)
    told.say("engine", "arguments", _kept(arguments) or None, _INFO)
    try:
        model = _first(client, _MODEL, "/get_model_info")
    except NoAnswer as reason:
        told.lacks("model", "served", str(reason), _MODEL)
    else:
        told.say_all("sglang", table(model), _MODEL)
        told.say("model", "architecture", part(model, "architectures", 0), _MODEL)
    ask_tokenizer(client, told)
    told.lacks(
        "model",
        "weights_checksum",
        "not asked: another action of the same route overwrites the live weights",
        "/weights_checker",
    )


def _first(client: Client, present: str, older: str) -> Any:
    try:
        return client.get(present).json()
    except NoAnswer as reason:
        if not reason.absent:
            raise
    return client.get(older).json()


def _kept(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that may change numbers; null ones are as good as not given."""
    return {
        name: said
        for name, said in sorted(arguments.items())
        if said is not None and name not in _READINGS and not is_uninteresting(name)
    }
