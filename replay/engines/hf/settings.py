"""Settings of the `hf` engine: what `--set key=value` can state, and what applies where it does not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ....schemas.envelope import Runtime
from ....schemas.errors import BadInput, first_line, stated_setting
from ....schemas.lane import Setting
from ...request.resolve_request import Capabilities
from ..base import SettingSpec

CAPABILITIES = Capabilities(
    modes=("free", "golden-decode", "golden-prefill"), sites=True, logits_hash=True, seed=True
)
"""What the engine can do."""

MOST_THREADS = 1024
"""Far above it torch dies without an error when it starts them."""

SETTINGS: dict[str, SettingSpec] = {
    "dtype": SettingSpec(
        "choice", "dtype of weights and activations", ("float64", "float32", "bfloat16", "float16")
    ),
    "device": SettingSpec("text", "torch device, for example cpu or cuda:0"),
    "attention": SettingSpec("text", "attention implementation of transformers, for example sdpa or eager"),
    "threads": SettingSpec("number", "threads of one operation", least=1, most=MOST_THREADS),
    "batch_size": SettingSpec("number", "requests of the set that share every forward pass", least=1),
    "padding_side": SettingSpec("choice", "where shorter prompts of a batch are padded", ("left", "right")),
    "prefill_chunk": SettingSpec("number", "prompt tokens per prefill pass; 0: the whole prompt at once"),
    "matmul_precision": SettingSpec("choice", "precision of float32 matmul", ("highest", "high", "medium")),
    "deterministic": SettingSpec("choice", "torch.use_deterministic_algorithms", ("true", "false")),
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
                "no such setting", f"give KEY=VALUE with one of: {', '.join(SETTINGS)}", stated_setting(pair)
            )
        parsed[key] = known.read(key, text)
        if key == "device":
            _check_device(text)
    return parsed


def resolve_settings(
    stated: Mapping[str, Any], runtime: Runtime, model_dtype: str | None
) -> dict[str, Setting]:
    """Each setting with its value and source: lane (`--set`), envelope, model, or engine default."""
    import torch

    # What the envelope recorded, and the values of it that this engine supports.
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
        known, usable = recorded.get(name, (None, ()))
        if name in stated:
            resolved[name] = Setting(requested=stated[name], resolved=stated[name], source="lane")
        elif known in usable:
            resolved[name] = Setting(requested=known, resolved=known, source="envelope")
        else:
            resolved[name] = Setting(requested=known, resolved=default, source=source)
    return resolved


def _check_device(name: str) -> None:
    """Refuse, before the model is loaded, a device that cannot compute.

    Raises:
        BadInput: Unknown to torch, not in this machine, or without memory of its own (`meta`).
    """
    import torch

    reason = "it does not compute"
    try:
        device = torch.device(name)
    except RuntimeError:
        reason = "torch does not know this device"
    else:
        try:
            if not torch.zeros(1, device=device).is_meta:
                return
        except (RuntimeError, AssertionError) as error:  # torch raises both
            reason = first_line(error)
    seen = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    raise BadInput(
        reason, f"choose one that torch finds here: {', '.join(seen)}", stated_setting(f"device={name}")
    )
