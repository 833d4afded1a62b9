"""Settings of lanes and requests by what they change, of all engines; `_` stands for `-` too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...schemas.change import ABSENT, Change
from ...schemas.findings.execution import FieldChanged
from ...schemas.lane import Lane, Setting

Group = Literal["batch", "cache", "chunk", "padding", "attention", "threads", "parallel", "dtype", "graph"]

LANE_SETTINGS: dict[Group, tuple[str, ...]] = {
    "batch": ("batch_size", "neighbours", "arrival"),
    "cache": ("cache", "enable_prefix_caching"),
    "chunk": (
        "prefill_chunk",
        "n_batch",
        "n_ubatch",
        "max_num_batched_tokens",
        "chunked_prefill_size",
        "enable_chunked_prefill",
    ),
    "padding": ("padding_side",),
    "attention": ("attention", "attention_backend", "flash_attn", "env.VLLM_ATTENTION_BACKEND"),
    "threads": (
        "threads",
        "threads_batch",
        "env.OMP_NUM_THREADS",
        "env.MKL_NUM_THREADS",
        "env.VLLM_CPU_OMP_THREADS_BIND",
        "env.ATEN_CPU_CAPABILITY",
    ),
    "parallel": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
    ),
    "dtype": ("dtype", "quantization", "kv_cache_dtype"),
    "graph": ("enforce_eager", "cudagraph_mode", "compilation_config", "disable_cuda_graph", "cuda_graph"),
}
WITHOUT_CAUSE = ("repeat", "engine")
"""Settings that are no cause of their own: how often it ran, and what is named as the engine."""
OF_THE_CLIENT = ("timeout", "ready_timeout", "port")
"""How long to wait and where: they change no number."""
TOKENS_OF_A_PASS = frozenset(
    {"prefill_chunk", "n_batch", "n_ubatch", "max_num_batched_tokens", "chunked_prefill_size"}
)
"""Those that say how many tokens a pass takes."""
ONLY_PASSES = frozenset({"num_tokens", "cached_tokens", "cache", "prefill_chunk", "enable_prefix_caching"})
"""Circumstances that change in which passes rows are computed, and so no more than their rounding."""
DTYPE_FIELDS = ("dtype", "quantization", "quantization_method")
"""Fingerprint fields that say in which numbers the model was computed."""

OF_DRAWS = ("top_p", "top_k", "min_p", "seed", "seed_scope")
"""Sampling fields that change nothing where the likeliest token is always taken."""
OF_LENGTH = ("max_tokens",)
OF_STOPPING = ("stop", "stop_token_ids", "ignore_eos", "min_tokens")
NEUTRAL: dict[str, object] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
"""Sampling fields that change logits, and the value at which they do not."""
OF_LOGITS = (
    *NEUTRAL,
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "structured_outputs",
    "logits_processors",
)
"""Sampling fields that change logits; those without a neutral value do not where they are empty."""


_CPU_VARIABLES = ("ATEN_CPU_CAPABILITY", "MKL_", "OMP_", "OPENBLAS_", "ONEDNN_")
_DECIDES: dict[str, tuple[str, ...]] = {
    "ATEN_CPU_CAPABILITY": ("cpu.isa_in_use",),
    "MKL_NUM_THREADS": ("cpu.torch_threads", "cpu.blas"),
    "OMP_NUM_THREADS": ("cpu.torch_threads", "cpu.blas", "cpu.openmp"),
    "OPENBLAS_NUM_THREADS": ("cpu.blas",),
    "OPENBLAS_CORETYPE": ("cpu.blas",),
    "VLLM_ATTENTION_BACKEND": ("engine.attention_backend",),
}
"""Variables, and the fields of a fingerprint that follow from them."""
_SWITCHES = ("INVARIANT", "DETERMINISTIC")
"""Parts of the names of variables that `determinism.batch_invariance` repeats."""


def decided_by(variable: str) -> tuple[str, ...]:
    """The fields of a fingerprint that follow from an environment variable."""
    repeated = ("determinism.batch_invariance",) if any(word in variable for word in _SWITCHES) else ()
    return (*_DECIDES.get(variable, ()), *repeated)


def group_of(variable: str) -> Group | None:
    """Which circumstance an environment variable changes; None: kernels, or it is not known."""
    if variable.startswith(_CPU_VARIABLES):
        return "threads"
    return "attention" if f"env.{variable}" in LANE_SETTINGS["attention"] else None


def names_of(*groups: Group) -> frozenset[str]:
    """The settings of some groups, as `normal` spells them."""
    return frozenset(normal(name) for group in groups for name in LANE_SETTINGS[group])


def normal(name: str) -> str:
    """A setting's name in the one spelling that comparisons use."""
    return name.replace("-", "_")


def by_name(settings: Mapping[str, Setting]) -> dict[str, tuple[str, Setting]]:
    """Settings by their one spelling, each with the name under which it was stated."""
    return {normal(name): (name, setting) for name, setting in settings.items()}


def changed_settings(a: Lane, b: Lane) -> list[str]:
    """Names of the settings in which two lanes differ; of one engine also those that only one lane states."""
    of_a, of_b = by_name(a.settings), by_name(b.settings)
    names = []
    for name in sorted({*of_a, *of_b} - {*OF_THE_CLIENT}):
        written, setting = of_b[name] if name in of_b else of_a[name]
        if name in of_a and name in of_b:
            differs = str(_reading(of_a[name][1])) != str(_reading(setting))
        else:
            differs = a.engine == b.engine and setting.source == "lane"
        names += [written] if differs else []
    return names


def _reading(setting: Setting) -> Any:
    return setting.resolved if setting.observed is None else setting.observed


def field_changed(change: Change) -> FieldChanged:
    """One change; of two records, or of the texts behind two digests, only the first part that differs."""
    if change.keys:
        first = change.keys[0]
        return FieldChanged(
            section=change.section,
            field=change.field,
            path=[first.key],
            before=ABSENT if first.before is None else first.before,
            after=ABSENT if first.after is None else first.after,
            others=len(change.keys) - 1,
        )
    if change.before is None or change.after is None:
        return FieldChanged(
            section=change.section, field=change.field, before=change.before_text, after=change.after_text
        )
    a, b = change.before.value, change.after.value
    path: list[str] = []
    others = 0
    while isinstance(a, dict) and isinstance(b, dict) and not others:
        differing = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        if not differing:
            break
        path.append(differing[0])
        others = len(differing) - 1
        a, b = a.get(differing[0], ABSENT), b.get(differing[0], ABSENT)
    return FieldChanged(
        section=change.section,
        field=change.field,
        path=path,
        before=str(a) if path else change.before_text,
        after=str(b) if path else change.after_text,
        others=others,
    )
