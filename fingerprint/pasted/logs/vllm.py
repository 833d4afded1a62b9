"""Readers of vLLM's start-up log."""

from __future__ import annotations

import re

from ...remote.vllm import settings_of
from ..paste import Paste
from .lines import between, dictionary, matched


def read_version(line: str, paste: Paste) -> bool:
    """`vLLM API server version 0.8.4`."""
    version = line.rpartition("version ")[2].split()
    if not version or not version[0][:1].isdigit():
        return False
    paste.state("engine.name", "vllm")
    paste.state("engine.version", version[0])
    return True


def read_arguments(line: str, paste: Paste) -> bool:
    """`args: Namespace(…)` and `non-default args: {…}`."""
    if line.startswith("args: Namespace("):
        settings = settings_of(between(line, "Namespace(", ")") or "")
    else:
        settings = dictionary(line)
    if not settings:
        return False
    # What is left to the engine is stated where it has decided.
    paste.state_settings("vllm", {name: value for name, value in settings.items() if value != "auto"})
    return True


def read_config(line: str, paste: Paste) -> bool:
    """`Initializing a V1 LLM engine (v0.8.4) with config: model=…`."""
    head, sign, text = line.partition(" with config: ")
    if not sign:
        return False
    version = between(head, "(v", ")")
    paste.state("engine.name", "vllm")
    paste.state("engine.version", version)
    settings = settings_of(text) or {}
    if isinstance(dtype := settings.get("dtype"), str):
        settings["dtype"] = dtype.removeprefix("torch.")
    if "chunked_prefill_enabled" in settings:
        settings["enable_chunked_prefill"] = settings["chunked_prefill_enabled"]
    paste.state_settings("vllm", settings)
    return bool(settings)


_BACKENDS = (
    re.compile(r"Using (\w{1,40}) attention backend"),
    re.compile(r"Using ([A-Z][\w ]{1,40}) backend(?: on V1 engine)?\.?$"),
    re.compile(r"Using (\w{1,40}) backend on V1 engine"),
)
_EXPERTS = re.compile(r"Using '?(\w{1,40})'? (?:\w{1,20} )?MoE backend")
_SAME_BACKEND = {"Flash Attention": "FLASH_ATTN", "FlashInfer": "FLASHINFER", "XFormers": "XFORMERS"}


def read_backend(line: str, paste: Paste) -> bool:
    """`Using Flash Attention backend on V1 engine.`"""
    if experts := _EXPERTS.match(line[:200]):
        paste.state("engine.moe_backend", experts[1])
        return True
    for pattern in _BACKENDS:
        if match := pattern.match(line):
            paste.state("engine.attention_backend", _SAME_BACKEND.get(match[1], match[1]))
            return True
    return False


def read_defaults(line: str, paste: Paste) -> bool:
    """Sampling defaults that the server takes from the model's generation config."""
    defaults = dictionary(line)
    paste.state("sampling.server_defaults", defaults)
    return bool(defaults)


KV_TOKENS = matched(r"GPU KV cache size: ([\d,]{1,15}) tokens", "cache.tokens", engine="vllm")
CHUNKED = matched(
    r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,9})",
    "engine.max_batched_tokens",
    engine="vllm",
)
ARCHITECTURE = matched(r"Resolved architecture: (\w{1,80})", "model.architecture", engine="vllm")
PLATFORM = matched(r"detected platform (\w{1,20})", "engine.device", engine="vllm")
