"""What Text Generation Inference reports (written for versions 1 to 3): `/info` holds nearly all of it."""

from __future__ import annotations

from typing import Any

from .server_reading import (
    PROBE_MESSAGES,
    PROBE_TEXT,
    ServerReading,
    part,
    rows,
    table,
    text_or_empty,
)

_INFO = "/info"
_OF_INFO = (
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


def recognise(info: Any) -> str | None:
    """By the fields that only its description has."""
    one = _flattened(info)
    return "tgi" if "model_id" in one and {"max_concurrent_requests", "docker_label"} & set(one) else None


def read(reading: ServerReading) -> None:
    """Ask everything that changes nothing."""
    one = _flattened(reading.ask(_INFO, "engine.version"))
    reading.add_parts(one, _OF_INFO, _INFO)
    reading.add("engine.dtype", text_or_empty(one.get("model_dtype")).removeprefix("torch."), _INFO)
    tokens = reading.ask("/tokenize", "tokenizer.probe", body={"inputs": PROBE_TEXT})
    reading.add_tokens(_ids(tokens), "/tokenize")
    body = {"messages": list(PROBE_MESSAGES)}
    answer = reading.ask("/chat_tokenize", "template.probe_tokens", body=body)
    reading.add_prompt_tokens(_ids(part(answer, "tokenize_response")), "/chat_tokenize")


def _flattened(info: Any) -> dict[str, Any]:
    """Some releases list their one model apart."""
    return {**table(info), **table(part(info, "models", 0))}


def _ids(tokens: Any) -> list[Any] | None:
    return [token.get("id") for token in rows(tokens)] or None
