"""What an Ollama server tells (written for 0.5 and later): its version, and the loaded model by digest."""

from __future__ import annotations

from typing import Any

from .client import Client, NoAnswer
from .server_facts import Told, part, rows, table, words

_LOADED, _KNOWN, _SHOW = "/api/ps", "/api/tags", "/api/show"


def recognise(version: Any) -> str | None:
    """Its route for the version is its own."""
    return "ollama" if isinstance(part(version, "version"), str) else None


def read(client: Client, told: Told) -> None:
    """Ask everything that changes nothing; no model is loaded for it."""
    try:
        told.say("engine", "version", part(client.get("/api/version").json(), "version"), "/api/version")
    except NoAnswer as reason:
        told.lacks("engine", "version", str(reason), "/api/version")
    models, source = _models(client, told)
    digests = {model["name"]: model.get("digest") for model in models}
    told.say("model", "digests", dict(sorted(digests.items())) or None, source)
    if len(models) != 1:
        several = f"{len(models)} models are there: load the one that is meant"
        told.lacks("model", "served", several if models else "it names no model", source)
        return
    name = models[0]["name"]
    told.say("model", "served", name, source)
    told.say("engine", "max_model_len", models[0].get("context_length"), source)
    try:
        _read_model(client.post(_SHOW, {"model": name}).json(), told)
    except NoAnswer as reason:
        told.lacks("template", "sha256", str(reason), _SHOW)


def _models(client: Client, told: Told) -> tuple[list[dict[str, Any]], str]:
    """The models in memory, else those on disk, and which of the two."""
    for source in (_LOADED, _KNOWN):
        try:
            listed = rows(part(client.get(source).json(), "models"))
            if models := [model for model in listed if isinstance(model.get("name"), str)]:
                return models, source
        except NoAnswer as reason:
            told.lacks("model", "digests", str(reason), source)
    return [], _KNOWN


def _read_model(model: Any, told: Told) -> None:
    told.text_digest("template", "sha256", part(model, "template"), _SHOW)
    if part(model, "system"):
        told.text_digest("template", "system_prompt_sha256", part(model, "system"), _SHOW)
    told.say("model", "quantization_method", part(model, "details", "quantization_level"), _SHOW)
    told.say("model", "parameters", part(model, "details", "parameter_size"), _SHOW)
    info = table(part(model, "model_info"))
    architecture = info.get("general.architecture")
    told.say("model", "architecture", architecture, _SHOW)
    told.say("model", "context_length", info.get(f"{architecture}.context_length"), _SHOW)
    parameters = words(part(model, "parameters")).split("\n")
    pairs: dict[str, list[str]] = {}
    for line in parameters:
        key, _, value = line.strip().partition(" ")
        if key:
            pairs.setdefault(key, []).append(value.strip())
    told.say("sampling", "server_defaults", pairs or None, _SHOW)
