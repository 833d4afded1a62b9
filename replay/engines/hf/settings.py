"""Settings of the `hf` engine: what `--set key=value` may say, and what applies where nothing is said."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ....schemas.envelope import Runtime
from ....schemas.errors import BadInput, stated_setting
from ....schemas.trace import Setting

MOST = 10**6
"""Largest whole number that a setting takes."""
MOST_THREADS = 1024
"""Far above it torch dies without an error when it starts them."""


@dataclass(frozen=True)
class Known:
    """One setting: how its text is read, and what it does."""

    kind: Literal["choice", "number", "text"]
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MOST


SETTINGS: dict[str, Known] = {
    "dtype": Known(
        "choice", "dtype of weights and activations", ("float64", "float32", "bfloat16", "float16")
    ),
    "device": Known("text", "torch device, for example cpu or cuda:0"),
    "attention": Known("text", "attention implementation of transformers, for example sdpa or eager"),
    "threads": Known("number", "threads of one operation", least=1, most=MOST_THREADS),
    "batch_size": Known("number", "requests of the set that share every forward pass", least=1),
    "padding_side": Known("choice", "where shorter prompts of a batch are padded", ("left", "right")),
    "prefill_chunk": Known("number", "prompt tokens per prefill pass; 0: the whole prompt at once"),
    "matmul_precision": Known("choice", "precision of float32 matmul", ("highest", "high", "medium")),
    "deterministic": Known("choice", "torch.use_deterministic_algorithms", ("true", "false")),
}

_RECORDED_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Names of attention backends that mean the same to transformers; other engines have names of their own."""


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` texts; the last one of a key applies.

    Raises:
        BadInput: An unknown key or a value that does not fit.
    """
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        known = SETTINGS.get(key)
        if not equals or known is None:
            raise BadInput(
                "no such setting",
                f"give KEY=VALUE with one of: {', '.join(SETTINGS)}",
                stated_setting(pair),
            )
        if known.kind == "number":
            if not re.fullmatch(r"[0-9]{1,7}", text) or not known.least <= int(text) <= known.most:
                raise BadInput(
                    f"not a whole number from {known.least} to {known.most}",
                    f"for example {key}={max(known.least, 2)}",
                    stated_setting(pair),
                )
            parsed[key] = int(text)
            continue
        if not text or (known.choices and text not in known.choices):
            fix = f"choose one of: {', '.join(known.choices)}" if known.choices else f"give a {known.meaning}"
            raise BadInput(f"not a value of {key}", fix, stated_setting(pair))
        if key == "device":
            _check_device(text)
        parsed[key] = text
    return parsed


def resolve_settings(
    given: Mapping[str, Any], runtime: Runtime, model_dtype: str | None
) -> dict[str, Setting]:
    """Each setting with its value and source: lane (`--set`), envelope, model, or engine default.

    Args:
        given: Parsed `--set` values.
        runtime: The runtime that the envelope records.
        model_dtype: dtype that the model's config names.
    """
    import torch

    # What the envelope recorded, and the values of it that this engine can carry out.
    recorded = {
        "dtype": (runtime.dtype, SETTINGS["dtype"].choices),
        "attention": (runtime.attention_backend, _RECORDED_ATTENTION),
    }
    threads_source = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in os.environ else "engine default"
    deterministic = torch.are_deterministic_algorithms_enabled()
    defaults: dict[str, tuple[Any, str]] = {
        "dtype": (model_dtype or "float32", "model config" if model_dtype else "engine default"),
        "device": ("cuda" if torch.cuda.is_available() else "cpu", "engine default"),
        "attention": (None, "engine default"),  # transformers chooses; the engine reports what it chose
        "threads": (torch.get_num_threads(), threads_source),
        "batch_size": (1, "engine default"),
        "padding_side": ("left", "engine default"),
        "prefill_chunk": (0, "engine default"),
        "matmul_precision": (torch.get_float32_matmul_precision(), "engine default"),
        "deterministic": ("true" if deterministic else "false", "engine default"),
    }
    resolved: dict[str, Setting] = {}
    for name, (default, source) in defaults.items():
        stated, usable = recorded.get(name, (None, ()))
        if name in given:
            resolved[name] = Setting(requested=given[name], resolved=given[name], source="lane")
        elif stated in usable:
            resolved[name] = Setting(requested=stated, resolved=stated, source="envelope")
        else:
            resolved[name] = Setting(requested=stated, resolved=default, source=source)
    return resolved


def _check_device(name: str) -> None:
    """Refuse, before the model is loaded, a device that cannot compute.

    Raises:
        BadInput: Unknown to torch, not in this machine, or without memory of its own (`meta`).
    """
    import torch

    reason = "it computes nothing"
    try:
        device = torch.device(name)
    except RuntimeError:
        reason = "torch knows no such device"
    else:
        try:
            if not torch.zeros(1, device=device).is_meta:
                return
        except (RuntimeError, AssertionError) as error:  # torch raises both
            reason = next(iter(str(error).splitlines()), reason)
    seen = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    raise BadInput(reason, f"torch sees here: {', '.join(seen)}", stated_setting(f"device={name}"))
