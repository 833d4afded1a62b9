"""What Text Generation Inference tells (written for versions 1 to 3): `/info` holds nearly all of it."""

from __future__ import annotations

from typing import Any

from .client import Client, NoAnswer
from .server_facts import PROBE_MESSAGES, PROBE_TEXT, Told, part, rows, table, words

_INFO = "/info"


def recognise(info: Any) -> str | None:
    """By the fields that only its description has."""
    one = {**table(info), **table(part(info, "models", 0))}
    return "tgi" if "model_id" in one and {"max_concurrent_requests", "docker_label"} & set(one) else None


def read(client: Client, told: Told) -> None:
    """Ask everything that changes nothing."""
    try:
        _read_info(client.get(_INFO).json(), told)
    except NoAnswer as reason:
        told.lacks("engine", "version", str(reason), _INFO)
    try:
        tokens = rows(client.post("/tokenize", {"inputs": PROBE_TEXT}).json())
        told.tokens([token.get("id") for token in tokens] or None, "/tokenize")
    except NoAnswer as reason:
        told.lacks("tokenizer", "probe", str(reason), "/tokenize")
    try:
        reply = client.post("/chat_tokenize", {"messages": list(PROBE_MESSAGES)}).json()
        told.prompt_tokens(
            [token.get("id") for token in rows(part(reply, "tokenize_response"))] or None, "/chat_tokenize"
        )
    except NoAnswer as reason:
        told.lacks("template", "probe_tokens", str(reason), "/chat_tokenize")


def _read_info(info: Any, told: Told) -> None:
    one = {**table(info), **table(part(info, "models", 0))}  # some releases list their one model apart
    for name, section, field in (
        ("version", "engine", "version"),
        ("sha", "engine", "commit"),
        ("docker_label", "engine", "docker_label"),
        ("model_id", "model", "served"),
        ("model_sha", "model", "revision"),
        ("model_device_type", "engine", "device"),
        ("max_total_tokens", "engine", "max_model_len"),
        ("max_batch_total_tokens", "cache", "tokens"),
        ("max_concurrent_requests", "engine", "max_waiting"),
        ("waiting_served_ratio", "engine", "waiting_served_ratio"),
    ):
        told.say(section, field, one.get(name), _INFO)
    told.say("engine", "dtype", words(one.get("model_dtype")).removeprefix("torch."), _INFO)
