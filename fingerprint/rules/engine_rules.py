"""Rules for the engine: its version, its settings, how it lays out the work, its caches and replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import advice, sources
from .base import Rule, Source
from .conditions import QUANTIZES
from .sources import BY_CONSTRUCTION

if TYPE_CHECKING:
    from ...schemas.claim import Level

_KV = "keys and values are rounded to a different type"
_PIECES = (
    "a prompt is computed in different pieces: different shapes of a sum, unless the mode is batch-invariant"
)
_SHARED = (
    "different requests share a step: different shapes of the same sums, unless the mode is batch-invariant"
)
_ROOM = "batches and preemption follow the room for keys and values, unless the mode is batch-invariant"
_GRAPHS = "captured graphs pad the batch and may run different kernels"
_SPECULATION = (
    "several tokens are verified in one pass: different shapes, and a different acceptance of near ties"
)
_LENGTH = "a longer prompt is refused or cut elsewhere, and the scale of positions may follow it"
_VERSION = "promised only for the same hardware and the same engine version"
_PLACE = "CPU and GPU kernels give different bits"
_RANKS = "a sum that is split over different ranks is added in a different order"
_EXCHANGE = "ranks exchange, or share out, the work differently"
_BOUNDARY = "cached and computed keys and values meet at a different boundary"


def _each(
    section: str,
    fields: Sequence[str],
    risk: Level,
    why: str,
    source: Source | tuple[Source, ...],
    replay: str,
) -> tuple[Rule, ...]:
    return tuple(Rule(f"{section}.{field}", risk, why, source, replay) for field in fields)


RULES: tuple[Rule, ...] = (
    Rule(
        "engine.name",
        "token",
        "a different engine brings its own kernels, sampler and defaults",
        BY_CONSTRUCTION,
        advice.SAMPLING,
    ),
    *_each(
        "engine",
        ("version", "build", "commit", "docker_label", "executable_sha256"),
        "bitwise",
        _VERSION,
        sources.VLLM,
        advice.DECODE,
    ),
    Rule(
        "engine.dtype",
        "numeric",
        "a different dtype rounds every operation differently",
        sources.TORCH_ACCURACY,
        advice.PRECISION,
    ),
    Rule("engine.kv_cache_dtype*", "token", _KV, BY_CONSTRUCTION, advice.DECODE, QUANTIZES),
    Rule("engine.kv_cache_dtype*", "numeric", _KV, BY_CONSTRUCTION, advice.PRECISION),
    *_each(
        "engine",
        ("*attention_backend", "flash_attention"),
        "bitwise",
        "a different kernel splits and sums in a different order",
        (sources.FLASH_ATTENTION, sources.SGLANG),
        advice.BATCH,
    ),
    Rule(
        "engine.quantization*",
        "semantic",
        "different weights and different kernels compute every product",
        BY_CONSTRUCTION,
        advice.WEIGHTS,
    ),
    Rule("engine.rope_scale*", "semantic", "positions mean something else", BY_CONSTRUCTION, advice.PREFILL),
    *_each("engine", ("max_model_len", "slot_context"), "token", _LENGTH, BY_CONSTRUCTION, advice.INPUT),
    *_each(
        "engine",
        ("speculative*", "draft_*"),
        "token",
        _SPECULATION,
        sources.VLLM_FAQ,
        advice.SAMPLING,
    ),
    Rule(
        "engine.async_scheduling",
        "bitwise",
        "which requests share a step then depends on timing, even in a batch-invariant mode",
        sources.VLLM_ASYNC,
        advice.BATCH,
    ),
    *_each("engine", ("*graph*", "enforce_eager"), "bitwise", _GRAPHS, sources.VLLM_GRAPHS, advice.DECODE),
    *_each(
        "engine",
        ("compilation", "optimization_level"),
        "bitwise",
        "generated kernels fuse and round differently",
        sources.INDUCTOR,
        advice.DECODE,
    ),
    *_each(
        "engine",
        ("max_batched_tokens", "micro_batch_size", "prefill_chunk_size", "*chunk*", "long_prefill_threshold"),
        "bitwise",
        _PIECES,
        (sources.VLLM_BATCH, sources.VLLM_FAQ),
        advice.PREFILL,
    ),
    *_each(
        "engine",
        ("max_*", "waiting_*", "scheduling_policy", "*batch*"),
        "bitwise",
        _SHARED,
        (sources.VLLM_BATCH, sources.VLLM_FAQ),
        advice.BATCH,
    ),
    *_each(
        "engine",
        ("device", "gpu_layers", "tensor_placement", "cpu_moe"),
        "bitwise",
        _PLACE,
        sources.TORCH,
        advice.DECODE,
    ),
    Rule(
        "engine.threads*",
        "bitwise",
        "sums are split over a different number of threads",
        sources.MKL_THREADS,
        advice.DECODE,
    ),
    *_each(
        "engine",
        ("*backend", "model_implementation"),
        "bitwise",
        "a different family of kernels",
        sources.VLLM_BATCH,
        advice.DECODE,
    ),
    *_each(
        "engine",
        ("arguments", "environment", "config_file_sha256"),
        "bitwise",
        "arguments choose kernels and schedule; what is known of one has a field and a rule of its own",
        sources.VLLM,
        advice.DECODE,
    ),
    Rule("engine.*", "bitwise", _VERSION, sources.VLLM, advice.DECODE),
    # How the work is split.
    *_each(
        "parallelism",
        ("*_parallel_size", "expert_parallel"),
        "bitwise",
        _RANKS,
        (sources.VLLM_TP, sources.NCCL_SIZES),
        advice.DECODE,
    ),
    Rule(
        "parallelism.engines",
        "bitwise",
        "requests are spread over engines that may be configured differently",
        sources.NCCL_HOSTS,
        advice.REPEAT,
    ),
    Rule("parallelism.*", "bitwise", _EXCHANGE, (sources.NCCL_NVLS, sources.NCCL_SIZES), advice.DECODE),
    # Caches.
    Rule(
        "cache.prefix_cache",
        "bitwise",
        "a cached prefix was computed in a different shape",
        (sources.VLLM_PREFIX, sources.VLLM_PREFIX_ORDER, sources.LLAMA_CACHE),
        advice.CACHE,
    ),
    Rule(
        "cache.*dtype*",
        "numeric",
        "a state is rounded to a different type",
        BY_CONSTRUCTION,
        advice.PRECISION,
    ),
    *_each(
        "cache",
        ("blocks*", "tokens", "memory_fraction", "cpu_offload_gb", "ram_mib", "slots"),
        "bitwise",
        _ROOM,
        (sources.VLLM_PREEMPTION, sources.VLLM_BATCH),
        advice.BATCH,
    ),
    Rule(
        "cache.engines_differ",
        "bitwise",
        "the answer depends on which engine serves it",
        sources.NCCL_HOSTS,
        advice.REPEAT,
    ),
    Rule("cache.*", "bitwise", _BOUNDARY, (sources.VLLM_PREFIX, sources.LLAMA_CACHE), advice.CACHE),
    # Replicas.
    Rule(
        "replica.weight_version",
        "semantic",
        "the replica serves different weights under the same name",
        BY_CONSTRUCTION,
        advice.WEIGHTS,
    ),
    Rule(
        "replica.server_header",
        None,
        "a different front end, which computes nothing",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule(
        "replica.*",
        "bitwise",
        "a different replica may be configured differently, and identical ones have been seen to differ",
        sources.NCCL_HOSTS,
        advice.REPEAT,
    ),
)
