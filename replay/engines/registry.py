"""The engines by name, as `name → "module:Class"`, so that naming them imports none of them."""

from __future__ import annotations

from importlib import import_module

from ...schemas.errors import BadInput
from .base import EngineKind

ENGINES: dict[str, str] = {
    "hf": "rip.replay.engines.hf.kind:ENGINE",
    "vllm": "rip.replay.engines.http.vllm:VllmEngine",
    "llama.cpp": "rip.replay.engines.http.llama_cpp:LlamaCppEngine",
    "sglang": "rip.replay.engines.http.sglang:SglangEngine",
    "tgi": "rip.replay.engines.http.tgi:TgiEngine",
    "ollama": "rip.replay.engines.http.ollama:OllamaEngine",
    "tensorrt-llm": "rip.replay.engines.http.trtllm:TrtLlmEngine",
    "openai": "rip.replay.engines.http.openai:OpenAiEngine",
    "deepinfer": "rip.replay.engines.offline.deepinfer:ENGINE",
}


def engine_class(name: str) -> EngineKind:
    """The class of a registered engine, or of `module:Class` (see offline/protocol.py for what that must be).

    Raises:
        BadInput: No engine of that name.
    """
    target = ENGINES.get(name)
    if target is None and ":" in name:
        from .offline.engine import load_offline

        return load_offline(name)
    if target is None:
        raise BadInput(
            f"unknown engine {name!r}",
            f"choose one of: {', '.join(sorted(ENGINES))}, or give module:Class of an engine of your own",
        )
    module, _, attribute = target.partition(":")
    kind: EngineKind = getattr(import_module(module), attribute)
    return kind
