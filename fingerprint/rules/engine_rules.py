"""Rules for the engine: its version, its settings, how it lays out the work, its caches and replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import sources
from .advice import BATCH, CACHE, DECODE, INPUT, PRECISION, PREFILL, REPEAT, SAMPLING, WEIGHTS
from .base import BY_CONSTRUCTION, Rule, Source, bitwise, harmless, numeric, semantic, token
from .conditions import QUANTIZES

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
    at_risk: Callable[..., Rule],
    section: str,
    fields: Sequence[str],
    why: str,
    source: Source | tuple[Source, ...],
    replay: str,
) -> tuple[Rule, ...]:
    return tuple(at_risk(f"{section}.{field}", why, source, replay) for field in fields)


RULES: tuple[Rule, ...] = (
    token(
        "engine.name",
        "a different engine brings its own kernels, sampler and defaults",
        BY_CONSTRUCTION,
        SAMPLING,
    ),
    *_each(
        bitwise,
        "engine",
        ("version", "build", "commit", "docker_label", "executable_sha256"),
        _VERSION,
        sources.VLLM,
        DECODE,
    ),
    numeric(
        "engine.dtype",
        "a different dtype rounds every operation differently",
        sources.TORCH_ACCURACY,
        PRECISION,
    ),
    token("engine.kv_cache_dtype*", _KV, BY_CONSTRUCTION, DECODE, QUANTIZES),
    numeric("engine.kv_cache_dtype*", _KV, BY_CONSTRUCTION, PRECISION),
    *_each(
        bitwise,
        "engine",
        ("*attention_backend", "flash_attention"),
        "a different kernel splits and sums in a different order",
        (sources.FLASH_ATTENTION, sources.SGLANG),
        BATCH,
    ),
    semantic(
        "engine.quantization*",
        "different weights and different kernels compute every product",
        BY_CONSTRUCTION,
        WEIGHTS,
    ),
    semantic("engine.rope_scale*", "positions mean something else", BY_CONSTRUCTION, PREFILL),
    *_each(token, "engine", ("max_model_len", "slot_context"), _LENGTH, BY_CONSTRUCTION, INPUT),
    *_each(token, "engine", ("speculative*", "draft_*"), _SPECULATION, sources.VLLM_FAQ, SAMPLING),
    bitwise(
        "engine.async_scheduling",
        "which requests share a step then depends on timing, even in a batch-invariant mode",
        sources.VLLM_ASYNC,
        BATCH,
    ),
    *_each(bitwise, "engine", ("*graph*", "enforce_eager"), _GRAPHS, sources.VLLM_GRAPHS, DECODE),
    *_each(
        bitwise,
        "engine",
        ("compilation", "optimization_level"),
        "generated kernels fuse and round differently",
        sources.INDUCTOR,
        DECODE,
    ),
    *_each(
        bitwise,
        "engine",
        ("max_batched_tokens", "micro_batch_size", "prefill_chunk_size", "*chunk*", "long_prefill_threshold"),
        _PIECES,
        (sources.VLLM_BATCH, sources.VLLM_FAQ),
        PREFILL,
    ),
    *_each(
        bitwise,
        "engine",
        ("max_*", "waiting_*", "scheduling_policy", "*batch*"),
        _SHARED,
        (sources.VLLM_BATCH, sources.VLLM_FAQ),
        BATCH,
    ),
    *_each(
        bitwise,
        "engine",
        ("device", "gpu_layers", "tensor_placement", "cpu_moe"),
        _PLACE,
        sources.TORCH,
        DECODE,
    ),
    bitwise(
        "engine.threads*", "sums are split over a different number of threads", sources.MKL_THREADS, DECODE
    ),
    *_each(
        bitwise,
        "engine",
        ("*backend", "model_implementation"),
        "a different family of kernels",
        sources.VLLM_BATCH,
        DECODE,
    ),
    *_each(
        bitwise,
        "engine",
        ("arguments", "environment", "config_file_sha256"),
        "arguments choose kernels and schedule; what is known of one has a field and a rule of its own",
        sources.VLLM,
        DECODE,
    ),
    bitwise("engine.*", _VERSION, sources.VLLM, DECODE),
    # How the work is split.
    *_each(
        bitwise,
        "parallelism",
        ("*_parallel_size", "expert_parallel"),
        _RANKS,
        (sources.VLLM_TP, sources.NCCL_SIZES),
        DECODE,
    ),
    bitwise(
        "parallelism.engines",
        "requests are spread over engines that may be configured differently",
        sources.NCCL_HOSTS,
        REPEAT,
    ),
    bitwise("parallelism.*", _EXCHANGE, (sources.NCCL_NVLS, sources.NCCL_SIZES), DECODE),
    # Caches.
    bitwise(
        "cache.prefix_cache",
        "a cached prefix was computed in a different shape",
        (sources.VLLM_PREFIX, sources.VLLM_PREFIX_ORDER, sources.LLAMA_CACHE),
        CACHE,
    ),
    numeric("cache.*dtype*", "a state is rounded to a different type", BY_CONSTRUCTION, PRECISION),
    *_each(
        bitwise,
        "cache",
        ("blocks*", "tokens", "memory_fraction", "cpu_offload_gb", "ram_mib", "slots"),
        _ROOM,
        (sources.VLLM_PREEMPTION, sources.VLLM_BATCH),
        BATCH,
    ),
    bitwise(
        "cache.engines_differ", "the answer depends on which engine serves it", sources.NCCL_HOSTS, REPEAT
    ),
    bitwise("cache.*", _BOUNDARY, (sources.VLLM_PREFIX, sources.LLAMA_CACHE), CACHE),
    # Replicas.
    semantic(
        "replica.weight_version",
        "the replica serves different weights under the same name",
        BY_CONSTRUCTION,
        WEIGHTS,
    ),
    harmless("replica.server_header", "a different front end, which computes nothing"),
    bitwise(
        "replica.*",
        "a different replica may be configured differently, and identical ones have been seen to differ",
        sources.NCCL_HOSTS,
        REPEAT,
    ),
)
