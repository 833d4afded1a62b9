"""What a llama.cpp server tells (seen with b11549): build, model, slots, sampling defaults, template."""

from __future__ import annotations

from typing import Any

from .client import Client, NoAnswer
from .server_facts import PROBE_MESSAGES, PROBE_TEXT, TEMPLATE_PROBE, Told, part, rows, table

_PROPS = "/props"
_META = "/v1/models meta"


def recognise(props: Any) -> str | None:
    """By the fields that only its properties have."""
    return "llama.cpp" if {"default_generation_settings", "total_slots"} & set(table(props)) else None


def read(client: Client, told: Told) -> None:
    """Ask everything that changes nothing."""
    try:
        _read_props(client.get(_PROPS).json(), told)
    except NoAnswer as reason:
        for section, field in (
            ("engine", "version"),
            ("template", "sha256"),
            ("sampling", "server_defaults"),
        ):
            told.lacks(section, field, str(reason), _PROPS)
    try:
        _read_model(part(client.get("/v1/models").json(), "data", 0), told)
    except NoAnswer as reason:
        told.lacks("model", "served_name", str(reason), "/v1/models")
    _read_slots(client, told)
    _read_adapters(client, told)
    try:
        tokens = part(client.post("/tokenize", {"content": PROBE_TEXT, "add_special": True}).json(), "tokens")
        told.tokens(tokens, "/tokenize")
    except NoAnswer as reason:
        told.lacks("tokenizer", "probe", str(reason), "/tokenize")
    try:
        prompt = part(client.post("/apply-template", {"messages": list(PROBE_MESSAGES)}).json(), "prompt")
        told.text_digest("template", "probe_text_sha256", prompt, f"/apply-template of {TEMPLATE_PROBE}")
    except NoAnswer as reason:
        told.lacks("template", "probe_text_sha256", str(reason), "/apply-template")


def _read_props(props: Any, told: Told) -> None:
    told.say("engine", "version", part(props, "build_info"), _PROPS)
    told.say("model", "served", part(props, "model_path"), _PROPS)
    told.say("model", "served_name", part(props, "model_alias"), _PROPS)
    told.say("model", "quantization_method", part(props, "model_ftype"), _PROPS)
    told.text_digest("template", "sha256", part(props, "chat_template"), _PROPS)
    told.say("engine", "max_sequences", part(props, "total_slots"), _PROPS)
    told.say("engine", "slot_context", part(props, "default_generation_settings", "n_ctx"), _PROPS)
    defaults = table(part(props, "default_generation_settings", "params"))
    told.say("sampling", "server_defaults", defaults or None, _PROPS)
    told.say("engine", "speculative_decoding", defaults.get("speculative.types"), _PROPS)
    marks = {name: props[name] for name in ("bos_token", "eos_token") if isinstance(part(props, name), str)}
    told.say("tokenizer", "served_special_tokens", marks or None, _PROPS)
    told.now("replica", "is_sleeping", part(props, "is_sleeping"), _PROPS)


def _read_model(model: Any, told: Told) -> None:
    meta = table(part(model, "meta"))
    for name, field in (
        ("n_vocab", "vocab_size"),
        ("n_ctx_train", "context_length"),
        ("n_params", "parameters"),
        ("size", "size_bytes"),
        ("ftype", "quantization_method"),
    ):
        told.say("model", field, meta.get(name), _META)
    told.say("engine", "max_model_len", meta.get("n_ctx"), _META)


def _read_slots(client: Client, told: Told) -> None:
    """Only their shape: older servers show in them what users ask."""
    try:
        reply = client.get("/slots").json()
    except NoAnswer as reason:
        told.lacks("cache", "slots", str(reason), "/slots")
        return
    slots = rows(reply)
    if not slots:
        told.lacks("cache", "slots", "its answer lists no slots", "/slots")
        return
    told.say("cache", "slots", [slot.get("n_ctx") for slot in slots], "/slots")
    told.now("replica", "busy_slots", sum(slot.get("is_processing") is True for slot in slots), "/slots")


def _read_adapters(client: Client, told: Told) -> None:
    source = "/lora-adapters"
    try:
        reply = client.get(source).json()
    except NoAnswer as reason:
        told.lacks("model", "adapters", str(reason), source)
        return
    adapters = rows(reply)
    kept = [{name: one.get(name) for name in ("path", "scale") if name in one} for one in adapters]
    told.say("model", "adapters", kept or None, source)
    told.lacks(
        "model", "adapters", "none is loaded" if reply == [] else "its answer lists no adapters", source
    )
