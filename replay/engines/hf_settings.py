"""Settings of the `hf` engine: what `--set key=value` may say, and what applies where nothing is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.envelope import Runtime, is_placeholder
from ...schemas.errors import BadInput
from ...schemas.trace import Setting


@dataclass(frozen=True)
class Known:
    """One setting: how its text is read, and what it does."""

    kind: str
    meaning: str
    choices: tuple[str, ...] = ()


SETTINGS: dict[str, Known] = {
    "dtype": Known("choice", "dtype of weights and activations", ("float32", "bfloat16", "float16")),
    "device": Known("text", "torch device, for example cpu or cuda:0"),
    "attention": Known("text", "attention implementation of transformers: sdpa, eager, …"),
    "threads": Known("count", "threads of one operation (torch.set_num_threads)"),
    "batch_size": Known("count", "requests of the set that share every forward pass"),
    "padding_side": Known("choice", "where shorter prompts of a batch are padded", ("left", "right")),
    "prefill_chunk": Known("number", "prompt tokens per prefill pass; 0: the whole prompt at once"),
    "matmul_precision": Known("choice", "float32 matmul precision", ("highest", "high", "medium")),
    "deterministic": Known("choice", "torch.use_deterministic_algorithms", ("true", "false")),
}


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Read `key=value` texts.

    Raises:
        BadInput: An unknown key or a value that does not fit.
    """
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in SETTINGS:
            listing = "; ".join(f"{name} ({known.meaning})" for name, known in SETTINGS.items())
            raise BadInput(f"--set {pair}: no such setting", f"give key=value with one of: {listing}")
        known = SETTINGS[key]
        if known.kind in ("count", "number"):
            least = 1 if known.kind == "count" else 0
            if not text.isdigit() or int(text) < least:
                raise BadInput(f"--set {pair}: a whole number of at least {least} is needed", f"for example {key}=2")
            parsed[key] = int(text)
        elif known.kind == "choice" and text not in known.choices:
            raise BadInput(f"--set {pair}: not a value of {key}", f"choose one of: {', '.join(known.choices)}")
        else:
            parsed[key] = text
    return parsed


def resolve_settings(given: Mapping[str, Any], runtime: Runtime, model_dtype: str | None) -> dict[str, Setting]:
    """Each setting with its value and source: lane (`--set`), envelope, model, or engine default.

    Args:
        given: Parsed `--set` values.
        runtime: The runtime that the envelope records.
        model_dtype: dtype that the model's config names.
    """
    import torch

    recorded: dict[str, Any] = {
        "dtype": runtime.dtype,
        "attention": None if is_placeholder(runtime.attention_backend) else runtime.attention_backend,
    }
    defaults: dict[str, tuple[Any, str]] = {
        "dtype": (model_dtype or "float32", "model config" if model_dtype else "engine default"),
        "device": ("cuda" if torch.cuda.is_available() else "cpu", "engine default"),
        "attention": (None, "engine default"),
        "threads": (torch.get_num_threads(), "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in os.environ else "engine default"),
        "batch_size": (1, "engine default"),
        "padding_side": ("left", "engine default"),
        "prefill_chunk": (0, "engine default"),
        "matmul_precision": (torch.get_float32_matmul_precision(), "engine default"),
        "deterministic": ("true" if torch.are_deterministic_algorithms_enabled() else "false", "engine default"),
    }
    usable = {"dtype": SETTINGS["dtype"].choices, "attention": ("sdpa", "eager", "flash_attention_2", "flex_attention")}
    resolved: dict[str, Setting] = {}
    for name, (default, source) in defaults.items():
        if name in given:
            resolved[name] = Setting(requested=given[name], resolved=given[name], source="lane")
        elif recorded.get(name) in usable.get(name, ()):
            resolved[name] = Setting(requested=recorded[name], resolved=recorded[name], source="envelope")
        else:
            resolved[name] = Setting(requested=recorded.get(name), resolved=default, source=source)
    return resolved
