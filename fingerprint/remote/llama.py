"""What a llama.cpp server reports (seen with b11549): build, model, slots, sampling defaults, template."""

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
)

_PROPS = "/props"
_META = "/v1/models meta"
_OF_PROPS = (
    ("engine.version", "build_info"),
    ("model.served", "model_path"),
    ("model.served_name", "model_alias"),
    ("model.quantization_method", "model_ftype"),
    ("engine.max_sequences", "total_slots"),
    ("engine.slot_context", ("default_generation_settings", "n_ctx")),
    ("engine.speculative_decoding", ("default_generation_settings", "params", "speculative.types")),
)
_OF_META = (
    ("model.vocab_size", "n_vocab"),
    ("model.context_length", "n_ctx_train"),
    ("model.parameters", "n_params"),
    ("model.size_bytes", "size"),
    ("model.quantization_method", "ftype"),
    ("engine.max_model_len", "n_ctx"),
)


def recognise(props: Any) -> str | None:
    """By the fields that only its properties have."""
    return "llama.cpp" if {"default_generation_settings", "total_slots"} & set(table(props)) else None


def read(reading: ServerReading) -> None:
    """Ask everything that changes nothing."""
    props = reading.ask(_PROPS, "engine.version", "template.sha256", "sampling.server_defaults")
    if props is not None:
        _add_props(props, reading)
    models = reading.ask("/v1/models", "model.served_name")
    reading.add_parts(part(models, "data", 0, "meta"), _OF_META, _META)
    _read_slots(reading)
    _read_adapters(reading)
    answer = reading.ask("/tokenize", "tokenizer.probe", body={"content": PROBE_TEXT, "add_special": True})
    reading.add_tokens(part(answer, "tokens"), "/tokenize")
    route, name = "/apply-template", "template.probe_text_sha256"
    answer = reading.ask(route, name, body={"messages": list(PROBE_MESSAGES)})
    reading.add_text_digest(name, part(answer, "prompt"), f"{route} of {TEMPLATE_PROBE}")


def _add_props(props: Any, reading: ServerReading) -> None:
    reading.add_parts(props, _OF_PROPS, _PROPS)
    reading.add_text_digest("template.sha256", part(props, "chat_template"), _PROPS)
    defaults = table(part(props, "default_generation_settings", "params"))
    reading.add("sampling.server_defaults", defaults or None, _PROPS)
    marks = {name: props[name] for name in ("bos_token", "eos_token") if isinstance(part(props, name), str)}
    reading.add("tokenizer.served_special_tokens", marks or None, _PROPS)
    reading.add_volatile("replica.is_sleeping", part(props, "is_sleeping"), _PROPS)


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
