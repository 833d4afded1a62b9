"""What an SGLang server reports (written for 0.5): its arguments, resolved, and the state of its schedulers.

Its `/server_info` holds API keys in the clear: they are taken out before anything is kept. The checksums of
`/weights_checker` are not asked for: another action of that route overwrites the live weights, and releases
before that action was added fail on it inside the scheduler.
"""

from __future__ import annotations

from typing import Any

from .server_reading import ServerReading, part, rows, table
from .vllm import read_tokenizer

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


def read(reading: ServerReading) -> None:
    """Ask everything that changes nothing."""
    info = reading.ask("/server_info", "engine.version", older="/get_server_info")
    arguments = {**table(part(info, "server_args")), **table(info)}
    reading.add("engine.version", arguments.get("version"), _INFO)
    states = rows(arguments.get("internal_states"))
    if states:  # what the scheduler uses precedes what was requested
        reading.add_settings("sglang", states[0], _STATE)
    reading.add_settings("sglang", arguments, _INFO)
    reading.add("model.quantization_method", arguments.get("quantization"), _INFO)
    if "speculative_algorithm" in arguments and arguments["speculative_algorithm"] is None:
        reading.add("engine.speculative_decoding", "none", _INFO)
    reading.add_arguments(arguments, _INFO, _READINGS)
    model = reading.ask(_MODEL, "model.served", older="/get_model_info")
    reading.add_settings("sglang", table(model), _MODEL)
    reading.add("model.architecture", part(model, "architectures", 0), _MODEL)
    read_tokenizer(reading)
    reason = "not asked: another action of the same route overwrites the live weights"
    reading.add_absent(["model.weights_checksum"], reason, "/weights_checker")
