"""Rules for the engine: its version, its settings, how it lays out the work, its caches and replicas."""

from __future__ import annotations

from . import sources
from .advice import BATCH, CACHE, DECODE, INPUT, PRECISION, PREFILL, REPEAT, SAMPLING, WEIGHTS
from .base import Rule, bitwise, harmless, in_section, numeric, semantic, token
from .conditions import QUANTIZES, crosses, of_engine
from .software_rules import VLLM_DEFAULTS

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
_RELEASE = "another release may compute, sample or default otherwise; nobody promises that it does not"
_BUILDS = "version|build|commit|docker_label|executable_sha256"
_DEVICE = "CPU and GPU kernels give different bits"
_RANKS = "a sum that is split over different ranks is added in a different order"
_EXCHANGE = "ranks exchange, or share out, the work differently"
_BOUNDARY = "cached and computed keys and values meet at a different boundary"

RULES: tuple[Rule, ...] = (
    *in_section(
        "engine",
        token("name", "a different engine brings its own kernels, sampler and defaults", SAMPLING),
        token(
            "version",
            VLLM_DEFAULTS,
            SAMPLING,
            (sources.VLLM_DEFAULTS, sources.VLLM_DEFAULTS_SEEN),
            crosses((0, 8), "vllm"),
        ),
        token(
            "calculated_kv_scales",
            "the first request fixes the scales of keys and values: the order of requests matters",
            REPEAT,
            sources.VLLM_KV_SCALES,
        ),
        bitwise(_BUILDS, _VERSION, DECODE, sources.VLLM, of_engine("vllm")),
        bitwise(_BUILDS, _RELEASE, DECODE, sources.RELEASES),
        numeric(
            "dtype", "a different dtype rounds every operation differently", PRECISION, sources.TORCH_ACCURACY
        ),
        token("kv_cache_dtype*", _KV, DECODE, when=QUANTIZES),
        numeric("kv_cache_dtype*", _KV, PRECISION),
        bitwise(
            "*attention_backend|flash_attention",
            "a different kernel splits and sums in a different order",
            BATCH,
            (sources.FLASH_ATTENTION, sources.SGLANG),
        ),
        bitwise(
            "cascade_attention",
            "a prefix that requests share is computed apart where enough of them share a step",
            BATCH,
            sources.VLLM_ARGUMENTS,
        ),
        bitwise(
            "flash_attention_version|attention_splits",
            "keys are split and their parts added in a different order",
            BATCH,
            (sources.FLASH_ATTENTION, sources.VLLM_ARGUMENTS),
        ),
        bitwise(
            "moe_backend",
            "other kernels compute the experts; some add their results by atomic operations, in any order",
            REPEAT,
            (sources.VLLM_MOE_FINALIZE, sources.VLLM_MOE_SPLIT_K),
        ),
        bitwise(
            "sparse_top_k_backend",
            "which keys are attended to: some kernels break ties by a race between threads",
            REPEAT,
            (sources.FLASHINFER_TOP_K, sources.VLLM_TOP_K),
        ),
        numeric("moe_precision", "the experts' products are rounded to a different type", PRECISION),
        semantic("quantization*", "different weights and different kernels compute every product", WEIGHTS),
        semantic("rope_scale*", "positions mean something else", PREFILL),
        token("max_model_len|slot_context", _LENGTH, INPUT),
        token("speculative*|draft_*", _SPECULATION, SAMPLING, sources.VLLM_FAQ),
        bitwise(
            "async_scheduling",
            "which requests share a step then depends on timing, even in a batch-invariant mode",
            BATCH,
            sources.VLLM_ASYNC,
        ),
        bitwise("*graph*|enforce_eager", _GRAPHS, DECODE, sources.VLLM_GRAPHS),
        bitwise(
            "compilation|optimization_level",
            "generated kernels fuse and round differently",
            DECODE,
            sources.INDUCTOR,
        ),
        bitwise(
            "max_batched_tokens|micro_batch_size|prefill_chunk_size|*chunk*|long_prefill_threshold",
            _PIECES,
            PREFILL,
            (sources.VLLM_BATCH, sources.VLLM_FAQ),
        ),
        bitwise(
            "max_*|waiting_*|scheduling_policy|*batch*",
            _SHARED,
            BATCH,
            (sources.VLLM_BATCH, sources.VLLM_FAQ),
        ),
        bitwise("device|gpu_layers|tensor_placement|cpu_moe", _DEVICE, DECODE, sources.TORCH),
        bitwise("threads*", "sums are split over a different number of threads", DECODE, sources.MKL_THREADS),
        bitwise("*backend|model_implementation", "a different family of kernels", DECODE, sources.VLLM_BATCH),
        bitwise(
            "arguments|environment|config_file_sha256",
            "arguments choose kernels and schedule; what is known of one has a field and a rule of its own",
            DECODE,
        ),
        bitwise("*", _VERSION, DECODE, sources.VLLM, of_engine("vllm")),
        bitwise("*", _RELEASE, DECODE, sources.RELEASES),
    ),
    *in_section(
        "parallelism",
        numeric(
            "data_parallel_attention",
            "an idle rank may pad the experts' batches: logits moved by up to 0.21 nats",
            BATCH,
            sources.SGLANG_IDLE_RANKS,
        ),
        bitwise(
            "fused_all_reduce",
            "the fused sum over ranks adds in an order that varies, even in a batch-invariant mode",
            REPEAT,
            sources.VLLM_FUSED_ALL_REDUCE,
        ),
        bitwise(
            "sequence_parallel|async_tensor_parallel",
            "which rank adds a token's parts depends on the batch, even in a batch-invariant mode",
            BATCH,
            sources.VLLM_SEQUENCE_PARALLEL,
        ),
        bitwise(
            "expert_load*|expert_placement|expert_rebalance*|redundant_experts",
            "experts lie on different ranks, or move between them: their batches and sums differ",
            BATCH,
            sources.VLLM_MOE_COMBINE,
        ),
        bitwise("*_parallel_size|expert_parallel", _RANKS, DECODE, (sources.VLLM_TP, sources.NCCL_SIZES)),
        bitwise(
            "engines",
            "requests are spread over engines that may be configured differently",
            REPEAT,
            sources.NCCL_HOSTS,
        ),
        bitwise("*", _EXCHANGE, DECODE, (sources.NCCL_NVLS, sources.NCCL_SIZES)),
    ),
    *in_section(
        "cache",
        bitwise(
            "prefix_cache",
            "a cached prefix was computed in a different shape",
            CACHE,
            (sources.VLLM_PREFIX, sources.VLLM_PREFIX_ORDER, sources.LLAMA_CACHE),
        ),
        numeric("*dtype*", "a state is rounded to a different type", PRECISION),
        bitwise(
            "blocks*|tokens|memory_fraction|cpu_offload_gb|ram_mib|slots",
            _ROOM,
            BATCH,
            (sources.VLLM_PREEMPTION, sources.VLLM_BATCH),
        ),
        bitwise("engines_differ", "the answer depends on which engine serves it", REPEAT, sources.NCCL_HOSTS),
        bitwise("*", _BOUNDARY, CACHE, (sources.VLLM_PREFIX, sources.LLAMA_CACHE)),
    ),
    *in_section(
        "replica",
        semantic("weight_version", "the replica serves different weights under the same name", WEIGHTS),
        harmless("server_header", "a different front end, which computes nothing"),
        bitwise(
            "*",
            "a different replica may be configured differently, and identical ones have been seen to differ",
            REPEAT,
            sources.NCCL_HOSTS,
        ),
    ),
)
