"""Readers of SGLang's start-up log."""

from __future__ import annotations

from ...remote.vllm import settings_of
from ..paste import Paste
from .lines import between, dictionary, matched


def read_arguments(line: str, paste: Paste) -> bool:
    """`server_args=ServerArgs(model_path=…)`, and `server_args={'model_path': …}` of newer releases."""
    settings = settings_of(between(line, "ServerArgs(", ")") or "") or dictionary(line)
    if not settings:
        return False
    paste.state_settings("sglang", settings)
    return True


def read_sizes(line: str, paste: Paste) -> bool:
    """`max_total_num_tokens=…, chunked_prefill_size=…, max_prefill_tokens=…, context_len=…`."""
    settings = settings_of(line) or {}
    if "max_total_num_tokens" not in settings:
        return False
    if "context_len" in settings:
        settings["context_length"] = settings.pop("context_len")
    paste.state_settings("sglang", settings)
    return True


BACKEND = matched(r"Use (\w{1,40}) backend by default", "engine.attention_backend", engine="sglang")
LOADED = matched(
    r"Load weight end\..{0,200}type=(\w{1,80}), dtype=torch\.(\w{1,20})", "model.architecture", "engine.dtype"
)
