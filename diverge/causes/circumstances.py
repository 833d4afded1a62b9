"""Causes that lie in how the rows were computed: shapes of passes, settings of the lane, the environment."""

from __future__ import annotations

from dataclasses import replace

from . import interpretation
from .describe_module import is_attention
from .evidence import Evidence
from .finding import Confidence, Finding, circumstance
from .kv_cache import boundary

_BATCH = ("batch_size", "neighbours", "arrival")
_CACHE = ("cache", "enable_prefix_caching")
_CHUNK = ("prefill_chunk", "n_batch", "n_ubatch", "max_num_batched_tokens", "enable_chunked_prefill")
_ATTENTION = ("attention", "attention_backend", "flash_attn", "env.VLLM_ATTENTION_BACKEND")
_THREADS = (
    "threads",
    "threads_batch",
    "env.OMP_NUM_THREADS",
    "env.MKL_NUM_THREADS",
    "env.VLLM_CPU_OMP_THREADS_BIND",
    "env.ATEN_CPU_CAPABILITY",
)
_PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
)
_DTYPE = ("dtype", "quantization", "kv_cache_dtype")
_PADDING = ("padding_side",)
_GRAPH = ("enforce_eager", "cudagraph_mode", "compilation_config", "disable_cuda_graph", "cuda_graph")
"""Lane settings by what they change, of all engines; `_` stands for `-` too."""
_DTYPE_FIELDS = ("dtype", "quantization", "quantization_method")
"""Fingerprint fields that say in which numbers the model was computed."""


def dtype(e: Evidence) -> Finding | None:
    evidence = e.settings_named(*_DTYPE)
    evidence += e.dtype_differences
    evidence += [
        f"changed in the fingerprint: {name}"
        for section in ("model", "engine")
        for name in e.changed_fields(section, _DTYPE_FIELDS)
    ]
    if not evidence or not e.differs:
        return None
    return Finding(evidence, "high", confirm=e.replay_as_a(*_DTYPE) or e.drift(), direct=True)


def batch(e: Evidence) -> Finding | None:
    evidence = e.shape_differences("batch_size")
    if evidence and e.differs:
        evidence.append(f"at the first differing row, {e.first_place}")
        if e.shape_differences("padded_tokens") and is_attention(e.seen.pattern):
            evidence.append(
                "it lies in an attention, and the batch is padded: the mask of the padding alone may do it; "
                "requests of one length have none"
            )
        return circumstance(e, evidence, e.replay(neighbours=0, batch_size=1))
    # What shared a pass was not observed; what was sent together is known.
    sent = e.settings_named(*_BATCH)
    if not sent or not e.differs or e.shape("batch_size") is not None:
        return None
    found = circumstance(e, [f"sent together, {line}" for line in sent], e.replay_as_a(*_BATCH) or e.drift())
    unseen = "the engine's forward passes were not observed, so which sequences shared one is not known"
    return replace(found, missing=[*found.missing, unseen])


def padding(e: Evidence) -> Finding | None:
    chosen = e.settings_named(*_PADDING)
    evidence = [*chosen, *e.shape_differences("padded_tokens")]
    if not evidence or not e.differs:
        return None
    if chosen:
        told = [*evidence, f"at the first differing row, {e.first_place}"]
        return circumstance(e, told, e.replay_as_a(*_PADDING) or e.replay())
    side = e.header_b.lane.settings.get("padding_side")
    other = "left" if side is not None and side.resolved == "right" else "right"
    found = circumstance(
        e,
        [*evidence, f"at the first differing row, {e.first_place}"],
        e.replay(padding_side=other),
    )
    # Padding comes with neighbours: where the batch differs too, the one cannot be told from the other.
    if not e.shape_differences("batch_size"):
        return found
    # What padding alone changes is the mask, so the kernel and the sums of an attention.
    weaker: Confidence = "medium" if is_attention(e.seen.pattern) else "low"
    return replace(found, confidence=weaker, tells=interpretation.OTHER_SIDE)


def paths(e: Evidence) -> Finding | None:
    tokens = e.shape("num_tokens")
    if tokens is None or tokens[0] == tokens[1] or not e.differs or e.prompts_differ:
        return None  # prompts of different lengths run in different passes
    if min(tokens) == 1:
        decoded, scored = ("A", "B") if tokens[0] < tokens[1] else ("B", "A")
        evidence = [
            f"{decoded} computed the first differing row alone (decode), {scored} in a pass of {max(tokens)} "
            f"tokens (prefill): {e.first_place}"
        ]
    elif e.scored_differently:
        evidence = [
            f"golden-prefill computes prompt and answer in one pass: {e.first_place} was one of {tokens[0]} "
            f"tokens in A and one of {tokens[1]} in B"
        ]
    else:
        return None
    if e.header_a.mode != e.header_b.mode:
        evidence.append(f"modes: {e.header_a.mode} in A, {e.header_b.mode} in B")
    return circumstance(e, evidence, e.replay("golden-decode"))


def cache(e: Evidence) -> Finding | None:
    cached, tokens = e.shape("cached_tokens"), e.shape("num_tokens")
    chosen = e.settings_named(*_CACHE)
    if cached is None and chosen and e.differs:
        found = circumstance(e, chosen, e.replay_as_a(*_CACHE) or e.drift())
        return replace(found, missing=[*found.missing, "how many tokens came from a cache was not recorded"])
    if cached is None or cached[0] == cached[1] or not e.differs or e.prompts_differ:
        return None
    if tokens is not None and min(tokens) == 1:
        return None
    evidence = [
        *e.shape_differences("cached_tokens"),
        *e.shape_differences("num_tokens"),
        *chosen,
        f"at {e.first_place}",
    ]
    if e.first_site is not None and e.first_site.position in cached:
        at = e.first_site.position
        evidence.append(f"the first difference sits exactly at a boundary: {boundary(e, at)}")
    as_a = e.replay_as_a(*_CACHE, *_CHUNK)
    found = circumstance(e, evidence, as_a or e.replay(), cached=True)
    return found if as_a else replace(found, tells=interpretation.CACHED)


def chunks(e: Evidence) -> Finding | None:
    tokens = e.shape("num_tokens")
    evidence = e.settings_named(*_CHUNK)
    # Where the cached prefix differs too, the boundary tells more: cache; a mode is told by paths.
    one_pass_only = e.scored_differently or e.shape_differences("cached_tokens")
    if tokens is not None and min(tokens) > 1 and not one_pass_only and not e.prompts_differ:
        evidence += e.shape_differences("num_tokens")
    if not evidence or not e.differs:
        return None
    return circumstance(
        e,
        [*evidence, f"at the first differing row, {e.first_place}"],
        e.replay_as_a(*_CHUNK) or e.replay(),
    )


def attention(e: Evidence) -> Finding | None:
    evidence = e.settings_named(*_ATTENTION)
    evidence += [
        f"changed in the fingerprint: {name}" for name in e.changed_fields("engine", ("attention_backend",))
    ]
    if not evidence or not e.differs:
        return None
    if e.first_site is not None and "attn" in f"{e.first_site.site}:{e.first_site.part}":
        evidence.append(f"the first difference lies in attention: {e.first_place}")
    return circumstance(e, evidence, e.replay_as_a(*_ATTENTION) or e.drift())


def threads(e: Evidence) -> Finding | None:
    evidence = e.settings_named(*_THREADS)
    evidence += [f"changed in the fingerprint: {name}" for name in e.changed("cpu")]
    if not evidence or not e.differs:
        return None
    if e.first_site is not None:
        evidence.append(f"at the first differing row, {e.first_place}")
    return circumstance(e, evidence, e.replay_as_a(*_THREADS) or e.drift())


def kernels(e: Evidence) -> Finding | None:
    of_passes = (*_BATCH, *_CACHE, *_CHUNK, *_PADDING)
    known = (*of_passes, *_ATTENTION, *_THREADS, *_PARALLEL, *_DTYPE, *_GRAPH, "repeat", "engine")
    told_elsewhere = e.settings_named(*known)
    evidence = [line for line in e.setting_differences if line not in told_elsewhere]
    sections = ("engine", "frameworks", "libraries", "kernels", "determinism", "gpus", "driver")
    # What a setting or another cause tells already is no second difference.
    fields = [
        "attention_backend",
        *_DTYPE_FIELDS,
        *(line.partition(":")[0] for line in e.setting_differences),
    ]
    told = {f"engine.{name}" for name in fields}
    changed = [line for line in e.changed(*sections) if line.partition(":")[0] not in told]
    evidence += [f"changed in the fingerprint: {line}" for line in changed]
    others = e.header_a.lane.engine != e.header_b.lane.engine
    if others:
        evidence.insert(0, f"engines: {e.header_a.lane.engine} in A, {e.header_b.lane.engine} in B")
    if not evidence or not e.differs:
        return None
    found = circumstance(e, evidence, e.drift())
    # Whatever else differs comes with the other engine.
    return replace(found, confidence="high") if others else found


def graph(e: Evidence) -> Finding | None:
    """One side ran eagerly, the other as a captured graph or compiled."""
    evidence = e.settings_named(*_GRAPH)
    if e.channels_differ:
        evidence.append(f"observed as: {e.header_a.channel} in A, {e.header_b.channel} in B")
    if not evidence or not e.differs:
        return None
    return circumstance(e, evidence, e.replay_as_a(*_GRAPH) or e.drift())


def parallel(e: Evidence) -> Finding | None:
    evidence = e.settings_named(*_PARALLEL)
    evidence += [f"changed in the fingerprint: {name}" for name in e.changed("parallelism")]
    if not evidence or not e.differs:
        return None
    return circumstance(e, evidence, e.replay_as_a(*_PARALLEL) or e.drift())
