"""What contradicts a promise that one fingerprint states alone: a batch-invariant mode, and what breaks it.

It rests on a report about some releases, or on a limit that a document states: only a replay shows whether it
holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import sources
from .base import Source
from .conditions import width

if TYPE_CHECKING:
    from ...schemas.fingerprint import Fingerprint

_ON = re.compile(r"(\w+)=(?:1|true)\b", re.IGNORECASE)
_VLLM = ("VLLM_BATCH_INVARIANT",)
_SGLANG = ("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "enable_deterministic_inference")
_OLDEST_CAPABILITY = (8, 0)
_SGLANG_BACKENDS = ("fa3", "fa4", "flashinfer", "triton")


@dataclass(frozen=True)
class Contradiction:
    """A setting that breaks a promise."""

    promise: str
    """The switch as it is set, such as `VLLM_BATCH_INVARIANT=1`."""
    field: str
    """`section.field`."""
    value: Any
    source: Source
    is_fixed: bool
    """Newer releases of the engine no longer have it."""


@dataclass(frozen=True)
class _Breaker:
    switches: tuple[str, ...]
    field: str
    breaks: Callable[[Any], bool]
    source: Source
    is_fixed: bool = False
    needs_ranks: bool = False
    """Only where more than one GPU works on a request."""


def _is_on(value: Any) -> bool:
    return value is True


def _is_set(value: Any) -> bool:
    return isinstance(value, dict | str) and bool(value) and value not in ("none", "None")


def _is_older(value: Any) -> bool:
    """Whether a compute capability, of one GPU or of each in a table, is below what the mode needs."""
    readings = value.values() if isinstance(value, dict) else [value]
    found = [re.fullmatch(r"(\d+)\.(\d+)", str(reading)) for reading in readings]
    return any((int(match[1]), int(match[2])) < _OLDEST_CAPABILITY for match in found if match)


_BREAKERS = (
    _Breaker(_VLLM, "gpus.compute_capability", _is_older, sources.VLLM_BATCH),
    _Breaker(
        _VLLM,
        "parallelism.fused_all_reduce",
        _is_on,
        sources.VLLM_FUSED_ALL_REDUCE,
        is_fixed=True,
        needs_ranks=True,
    ),
    _Breaker(
        _VLLM, "parallelism.sequence_parallel", _is_on, sources.VLLM_SEQUENCE_PARALLEL, needs_ranks=True
    ),
    _Breaker(
        _VLLM, "parallelism.async_tensor_parallel", _is_on, sources.VLLM_SEQUENCE_PARALLEL, needs_ranks=True
    ),
    _Breaker(
        _VLLM,
        "parallelism.expert_parallel",
        _is_on,
        sources.VLLM_MOE_COMBINE,
        is_fixed=True,
        needs_ranks=True,
    ),
    _Breaker(_VLLM, "engine.cascade_attention", _is_on, sources.VLLM_ARGUMENTS),
    _Breaker(_VLLM, "engine.speculative_decoding", _is_set, sources.VLLM_FAQ),
    _Breaker(
        _VLLM,
        "engine.moe_backend",
        lambda value: "flashinfer_cutlass" in str(value).lower(),
        sources.VLLM_MOE_FINALIZE,
    ),
    _Breaker(
        _VLLM,
        "engine.quantization",
        lambda value: str(value).lower() == "moe_wna16",
        sources.VLLM_MOE_SPLIT_K,
    ),
    _Breaker(
        _SGLANG,
        "engine.attention_backend",
        lambda value: isinstance(value, str) and value.lower() not in _SGLANG_BACKENDS,
        sources.SGLANG,
    ),
)


def contradictions(fingerprint: Fingerprint) -> list[Contradiction]:
    """The settings that break the batch invariance which the same fingerprint promises."""
    stated = fingerprint.get("determinism", "batch_invariance")
    promises = {match[1]: match[0] for match in _ON.finditer(str(stated.value if stated is not None else ""))}
    found = []
    for breaker in _BREAKERS:
        promise = next((promises[name] for name in breaker.switches if name in promises), None)
        setting = fingerprint.get(*breaker.field.split(".", 1))
        if promise is None or setting is None or setting.value is None:
            continue
        if breaker.needs_ranks and width(fingerprint) == 1:
            continue
        if breaker.breaks(setting.value):
            found.append(
                Contradiction(promise, breaker.field, setting.value, breaker.source, breaker.is_fixed)
            )
    return found
