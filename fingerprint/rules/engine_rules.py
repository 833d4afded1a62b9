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
    replay: str,
    source: Source | tuple[Source, ...] = BY_CONSTRUCTION,
) -> tuple[Rule, ...]:
    return tuple(at_risk(f"{section}.{field}", why, replay, source) for field in fields)


RULES: tuple[Rule, ...] = (
    token("engine.name", "a different engine brings its own kernels, sampler and defaults", SAMPLING),
    *_each(
        bitwise,
        "engine",
        ("version", "build", "commit", "docker_label", "executable_sha256"),
        _VERSION,
        DECODE,
        sources.VLLM,
    ),
    numeric(
        "engine.dtype",
        "a different dtype rounds every operation differently",
        PRECISION,
        sources.TORCH_ACCURACY,
    ),
    token("engine.kv_cache_dtype*", _KV, DECODE, when=QUANTIZES),
    numeric("engine.kv_cache_dtype*", _KV, PRECISION),
    *_each(
        bitwise,
        "engine",
        ("*attention_backend", "flash_attention"),
        "a different kernel splits and sums in a different order",
        BATCH,
        (sources.FLASH_ATTENTION, sources.SGLANG),
    ),
    semantic(
        "engine.quantization*", "different weights and different kernels compute every product", WEIGHTS
    ),
    semantic("engine.rope_scale*", "positions mean something else", PREFILL),
    *_each(token, "engine", ("max_model_len", "slot_context"), _LENGTH, INPUT),
    *_each(token, "engine", ("speculative*", "draft_*"), _SPECULATION, SAMPLING, sources.VLLM_FAQ),
    bitwise(
        "engine.async_scheduling",
        "which requests share a step then depends on timing, even in a batch-invariant mode",
        BATCH,
        sources.VLLM_ASYNC,
    ),
    *_each(bitwise, "engine", ("*graph*", "enforce_eager"), _GRAPHS, DECODE, sources.VLLM_GRAPHS),
    *_each(
        bitwise,
        "engine",
        ("compilation", "optimization_level"),
        "generated kernels fuse and round differently",
        DECODE,
        sources.INDUCTOR,
    ),
    *_each(
        bitwise,
        "engine",
        ("max_batched_tokens", "micro_batch_size", "prefill_chunk_size", "*chunk*", "long_prefill_threshold"),
        _PIECES,
        PREFILL,
        (sources.VLLM_BATCH, sources.VLLM_FAQ),
    ),
    *_each(
        bitwise,
        "engine",
        ("max_*", "waiting_*", "scheduling_policy", "*batch*"),
        _SHARED,
        BATCH,
        (sources.VLLM_BATCH, sources.VLLM_FAQ),
    ),
    *_each(
        bitwise,
        "engine",
        ("device", "gpu_layers", "tensor_placement", "cpu_moe"),
        _PLACE,
        DECODE,
        sources.TORCH,
    ),
    bitwise(
        "engine.threads*", "sums are split over a different number of threads", DECODE, sources.MKL_THREADS
    ),
    *_each(
        bitwise,
        "engine",
        ("*backend", "model_implementation"),
        "a different family of kernels",
        DECODE,
        sources.VLLM_BATCH,
    ),
    *_each(
        bitwise,
        "engine",
        ("arguments", "environment", "config_file_sha256"),
        "arguments choose kernels and schedule; what is known of one has a field and a rule of its own",
        DECODE,
        sources.VLLM,
    ),
    bitwise("engine.*", _VERSION, DECODE, sources.VLLM),
    # How the work is split.
    *_each(
        bitwise,
        "parallelism",
        ("*_parallel_size", "expert_parallel"),
        _RANKS,
        DECODE,
        (sources.VLLM_TP, sources.NCCL_SIZES),
    ),
    bitwise(
        "parallelism.engines",
        "requests are spread over engines that may be configured differently",
        REPEAT,
        sources.NCCL_HOSTS,
    ),
    bitwise("parallelism.*", _EXCHANGE, DECODE, (sources.NCCL_NVLS, sources.NCCL_SIZES)),
    # Caches.
    bitwise(
        "cache.prefix_cache",
        "a cached prefix was computed in a different shape",
        CACHE,
        (sources.VLLM_PREFIX, sources.VLLM_PREFIX_ORDER, sources.LLAMA_CACHE),
    ),
    numeric("cache.*dtype*", "a state is rounded to a different type", PRECISION),
    *_each(
        bitwise,
        "cache",
        ("blocks*", "tokens", "memory_fraction", "cpu_offload_gb", "ram_mib", "slots"),
        _ROOM,
        BATCH,
        (sources.VLLM_PREEMPTION, sources.VLLM_BATCH),
    ),
    bitwise(
        "cache.engines_differ", "the answer depends on which engine serves it", REPEAT, sources.NCCL_HOSTS
    ),
    bitwise("cache.*", _BOUNDARY, CACHE, (sources.VLLM_PREFIX, sources.LLAMA_CACHE)),
    # Replicas.
    semantic("replica.weight_version", "the replica serves different weights under the same name", WEIGHTS),
    harmless("replica.server_header", "a different front end, which computes nothing"),
    bitwise(
        "replica.*",
        "a different replica may be configured differently, and identical ones have been seen to differ",
        REPEAT,
        sources.NCCL_HOSTS,
    ),
)
