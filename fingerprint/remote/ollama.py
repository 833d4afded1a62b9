"""What an Ollama server reports (written for 0.5 and later): its version, and the loaded model by digest."""

from __future__ import annotations

from typing import Any

from .server_reading import ServerReading, part, rows, table, text_or_empty

_LOADED, _KNOWN, _SHOW = "/api/ps", "/api/tags", "/api/show"


def recognise(version: Any) -> str | None:
    """Its route for the version is its own."""
    return "ollama" if isinstance(part(version, "version"), str) else None


def read(reading: ServerReading) -> None:
    """Ask everything that changes nothing; no model is loaded for it."""
    version = reading.ask("/api/version", "engine.version")
    reading.add("engine.version", part(version, "version"), "/api/version")
    models, source = _list_models(reading)
    digests = {model["name"]: model.get("digest") for model in models}
    reading.add("model.digests", dict(sorted(digests.items())) or None, source)
    if len(models) != 1:
        several = f"{len(models)} models are there: load the one that is meant"
        reading.add_absent(["model.served"], several if models else "it names no model", source)
        return
    name = models[0]["name"]
    reading.add("model.served", name, source)
    reading.add("engine.max_model_len", models[0].get("context_length"), source)
    shown = reading.ask(_SHOW, "template.sha256", body={"model": name})
    if shown is not None:
        _add_model(shown, reading)


def _list_models(reading: ServerReading) -> tuple[list[dict[str, Any]], str]:
    """The models in memory, else those on disk, and which of the two."""
    for source in (_LOADED, _KNOWN):
        listed = rows(part(reading.ask(source, "model.digests"), "models"))
        if models := [model for model in listed if isinstance(model.get("name"), str)]:
            return models, source
    return [], _KNOWN


def _add_model(model: Any, reading: ServerReading) -> None:
    reading.add_text_digest("template.sha256", part(model, "template"), _SHOW)
    if part(model, "system"):
        reading.add_text_digest("template.system_prompt_sha256", part(model, "system"), _SHOW)
    info = table(part(model, "model_info"))
    architecture = info.get("general.architecture")
    parts = (
        ("model.quantization_method", ("details", "quantization_level")),
        ("model.parameters", ("details", "parameter_size")),
        ("model.architecture", ("model_info", "general.architecture")),
        ("model.context_length", ("model_info", f"{architecture}.context_length")),
    )
    reading.add_parts(model, parts, _SHOW)
    pairs: dict[str, list[str]] = {}
    for line in text_or_empty(part(model, "parameters")).split("\n"):
        key, _, value = line.strip().partition(" ")
        if key:
            pairs.setdefault(key, []).append(value.strip())
    reading.add("sampling.server_defaults", pairs or None, _SHOW)
