"""What llama.cpp, Ollama, Text Generation Inference, SGLang and TensorRT-LLM servers report.

For each: the routes and fields that hold a fact, how it is recognised, and a `read_…` that asks only what
changes nothing. vLLM has a file of its own.
"""

from __future__ import annotations

from typing import Any

from .server_reading import (
    PROBE_MESSAGES,
    PROBE_TEXT,
    TEMPLATE_PROBE,
    ServerReading,
    part,
    rows,
    table,
    text_or_empty,
)
from .vllm import read_tokenizer

_LLAMA_PROPS = "/props"
_LLAMA_META = "/v1/models meta"
_OF_LLAMA_PROPS = (
    ("engine.version", "build_info"),
    ("model.served", "model_path"),
    ("model.served_name", "model_alias"),
    ("model.quantization_method", "model_ftype"),
    ("engine.max_sequences", "total_slots"),
    ("engine.slot_context", ("default_generation_settings", "n_ctx")),
    ("engine.speculative_decoding", ("default_generation_settings", "params", "speculative.types")),
)
_OF_LLAMA_META = (
    ("model.vocab_size", "n_vocab"),
    ("model.context_length", "n_ctx_train"),
    ("model.parameters", "n_params"),
    ("model.size_bytes", "size"),
    ("model.quantization_method", "ftype"),
    ("engine.max_model_len", "n_ctx"),
)


def recognise_llama(props: Any) -> str | None:
    """By the fields that only its properties have."""
    return "llama.cpp" if {"default_generation_settings", "total_slots"} & set(table(props)) else None


def read_llama(reading: ServerReading) -> None:
    """Ask a llama.cpp server (seen with b11549): build, model, slots, sampling defaults, template."""
    props = reading.ask(_LLAMA_PROPS, "engine.version", "template.sha256", "sampling.server_defaults")
    if props is not None:
        _add_props(props, reading)
    models = reading.ask("/v1/models", "model.served_name")
    reading.add_parts(part(models, "data", 0, "meta"), _OF_LLAMA_META, _LLAMA_META)
    _read_slots(reading)
    _read_adapters(reading)
    answer = reading.ask("/tokenize", "tokenizer.probe", body={"content": PROBE_TEXT, "add_special": True})
    reading.add_tokens(part(answer, "tokens"), "/tokenize")
    route, name = "/apply-template", "template.probe_text_sha256"
    answer = reading.ask(route, name, body={"messages": list(PROBE_MESSAGES)})
    reading.add_text_digest(name, part(answer, "prompt"), f"{route} of {TEMPLATE_PROBE}")


def _add_props(props: Any, reading: ServerReading) -> None:
    reading.add_parts(props, _OF_LLAMA_PROPS, _LLAMA_PROPS)
    reading.add_text_digest("template.sha256", part(props, "chat_template"), _LLAMA_PROPS)
    defaults = table(part(props, "default_generation_settings", "params"))
    reading.add("sampling.server_defaults", defaults or None, _LLAMA_PROPS)
    marks = {name: props[name] for name in ("bos_token", "eos_token") if isinstance(part(props, name), str)}
    reading.add("tokenizer.served_special_tokens", marks or None, _LLAMA_PROPS)
    reading.add_volatile("replica.is_sleeping", part(props, "is_sleeping"), _LLAMA_PROPS)


def _read_slots(reading: ServerReading) -> None:
    """Only their shape: older servers show in them what users ask."""
    source = "/slots"
    slots = rows(reading.ask(source, "cache.slots"))
    if not slots:
        reading.add_absent(["cache.slots"], "its answer lists no slots", source)
        return
    reading.add("cache.slots", [slot.get("n_ctx") for slot in slots], source)
    busy = sum(slot.get("is_processing") is True for slot in slots)
    reading.add_volatile("replica.busy_slots", busy, source)


def _read_adapters(reading: ServerReading) -> None:
    source = "/lora-adapters"
    answer = reading.ask(source, "model.adapters")
    kept = [{name: one[name] for name in ("path", "scale") if name in one} for one in rows(answer)]
    reading.add("model.adapters", kept or None, source)
    reason = "none is loaded" if answer == [] else "its answer lists no adapters"
    reading.add_absent(["model.adapters"], reason, source)


_OLLAMA_LOADED, _OLLAMA_KNOWN, _OLLAMA_SHOW = "/api/ps", "/api/tags", "/api/show"


def recognise_ollama(version: Any) -> str | None:
    """Its route for the version is its own."""
    return "ollama" if isinstance(part(version, "version"), str) else None


def read_ollama(reading: ServerReading) -> None:
    """Ask an Ollama server (written for 0.5 and later): its version, and the loaded model by digest.

    No model is loaded for it.
    """
    reading.ask_version("/api/version")
    models, source = _list_ollama_models(reading)
    digests = {model["name"]: model.get("digest") for model in models}
    reading.add("model.digests", dict(sorted(digests.items())) or None, source)
    if len(models) != 1:
        several = f"{len(models)} models are there: load the one that is meant"
        reading.add_absent(["model.served"], several if models else "it names no model", source)
        return
    name = models[0]["name"]
    reading.add("model.served", name, source)
    reading.add("engine.max_model_len", models[0].get("context_length"), source)
    shown = reading.ask(_OLLAMA_SHOW, "template.sha256", body={"model": name})
    if shown is not None:
        _add_ollama_model(shown, reading)


def _list_ollama_models(reading: ServerReading) -> tuple[list[dict[str, Any]], str]:
    """The models in memory, else those on disk, and which of the two."""
    for source in (_OLLAMA_LOADED, _OLLAMA_KNOWN):
        listed = rows(part(reading.ask(source, "model.digests"), "models"))
        if models := [model for model in listed if isinstance(model.get("name"), str)]:
            return models, source
    return [], _OLLAMA_KNOWN


def _add_ollama_model(model: Any, reading: ServerReading) -> None:
    reading.add_text_digest("template.sha256", part(model, "template"), _OLLAMA_SHOW)
    if part(model, "system"):
        reading.add_text_digest("template.system_prompt_sha256", part(model, "system"), _OLLAMA_SHOW)
    info = table(part(model, "model_info"))
    architecture = info.get("general.architecture")
    parts = (
        ("model.quantization_method", ("details", "quantization_level")),
        ("model.parameters", ("details", "parameter_size")),
        ("model.architecture", ("model_info", "general.architecture")),
        ("model.context_length", ("model_info", f"{architecture}.context_length")),
    )
    reading.add_parts(model, parts, _OLLAMA_SHOW)
    pairs: dict[str, list[str]] = {}
    for line in text_or_empty(part(model, "parameters")).split("\n"):
        key, _, value = line.strip().partition(" ")
        if key:
            pairs.setdefault(key, []).append(value.strip())
    reading.add("sampling.server_defaults", pairs or None, _OLLAMA_SHOW)


_TGI_INFO = "/info"
_OF_TGI_INFO = (
    ("engine.version", "version"),
    ("engine.commit", "sha"),
    ("engine.docker_label", "docker_label"),
    ("model.served", "model_id"),
    ("model.revision", "model_sha"),
    ("engine.device", "model_device_type"),
    ("engine.max_model_len", "max_total_tokens"),
    ("cache.tokens", "max_batch_total_tokens"),
    ("engine.max_waiting", "max_concurrent_requests"),
    ("engine.waiting_served_ratio", "waiting_served_ratio"),
)


def recognise_tgi(info: Any) -> str | None:
    """By the fields that only its description has."""
    one = _flatten_tgi(info)
    return "tgi" if "model_id" in one and {"max_concurrent_requests", "docker_label"} & set(one) else None


def read_tgi(reading: ServerReading) -> None:
    """Ask Text Generation Inference (written for versions 1 to 3): `/info` holds nearly all of it."""
    one = _flatten_tgi(reading.ask(_TGI_INFO, "engine.version"))
    reading.add_parts(one, _OF_TGI_INFO, _TGI_INFO)
    reading.add("engine.dtype", text_or_empty(one.get("model_dtype")).removeprefix("torch."), _TGI_INFO)
    tokens = reading.ask("/tokenize", "tokenizer.probe", body={"inputs": PROBE_TEXT})
    reading.add_tokens(_token_ids(tokens), "/tokenize")
    body = {"messages": list(PROBE_MESSAGES)}
    answer = reading.ask("/chat_tokenize", "template.probe_tokens", body=body)
    reading.add_prompt_tokens(_token_ids(part(answer, "tokenize_response")), "/chat_tokenize")


def _flatten_tgi(info: Any) -> dict[str, Any]:
    """Some releases list their one model apart."""
    return {**table(info), **table(part(info, "models", 0))}


def _token_ids(tokens: Any) -> list[Any] | None:
    return [token.get("id") for token in rows(tokens)] or None


_SGLANG_INFO = "/server_info (resolved)"
_SGLANG_STATE = "/server_info internal_states"
_SGLANG_MODEL = "/model_info"
_SGLANG_READINGS = frozenset(
    {"internal_states", "version", "server_args", "status", "last_gen_throughput", "memory_usage", "load"}
    | {"avg_spec_accept_length", "step_time_dict", "effective_max_running_requests_per_dp"}
    | {"launch_command", "startup_time"}
)
"""What changes while it runs or with every start, and what has a field of its own. The launch command is what
the arguments resolve, with its keys in the clear."""


def recognise_sglang(info: Any) -> str | None:
    """By the names of its arguments; TensorRT-LLM has the same route with other contents."""
    arguments = {**table(part(info, "server_args")), **table(info)}
    if {"tp_size", "model_path"} <= set(arguments) or "internal_states" in arguments:
        return "sglang"
    return "tensorrt-llm" if "disaggregated_params" in arguments else None


def read_sglang(reading: ServerReading) -> None:
    """Ask an SGLang server (written for 0.5): its arguments, resolved, and the state of its schedulers.

    Its `/server_info` holds API keys in the clear: they are taken out before anything is kept. The checksums
    of `/weights_checker` are not requested: a different action of that route overwrites the live weights, and
    releases before that action was added fail on it inside the scheduler.
    """
    info = reading.ask("/server_info", "engine.version", older="/get_server_info")
    arguments = {**table(part(info, "server_args")), **table(info)}
    reading.add("engine.version", arguments.get("version"), _SGLANG_INFO)
    states = rows(arguments.get("internal_states"))
    if states:  # what the scheduler uses precedes what was requested
        reading.add_settings("sglang", states[0], _SGLANG_STATE)
    reading.add_settings("sglang", arguments, _SGLANG_INFO)
    if "quantization" in arguments:
        reading.add("model.quantization_method", arguments["quantization"] or "none", _SGLANG_INFO)
    reading.add_arguments(arguments, _SGLANG_INFO, _SGLANG_READINGS)
    model = reading.ask(_SGLANG_MODEL, "model.served", older="/get_model_info")
    reading.add_settings("sglang", table(model), _SGLANG_MODEL)
    reading.add("model.architecture", part(model, "architectures", 0), _SGLANG_MODEL)
    read_tokenizer(reading)
    reason = "not asked: another action of the same route overwrites the live weights"
    reading.add_absent(["model.weights_checksum"], reason, "/weights_checker")


_TENSORRT_INFO = "/server_info"


def read_tensorrt_llm(reading: ServerReading) -> None:
    """Ask a TensorRT-LLM server (written for 1.0): version and settings.

    `/metrics` and `/perf_metrics` are never read: reading them empties them for whoever collects them.
    """
    reading.ask_version()
    info = table(reading.ask(_TENSORRT_INFO, "engine.arguments"))
    reading.add_settings("tensorrt-llm", info, _TENSORRT_INFO)
    reading.add_arguments(info, _TENSORRT_INFO)
