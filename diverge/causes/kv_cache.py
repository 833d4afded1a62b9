"""Causes that lie in earlier passes: the KV cache, and a decode path that prefill does not take."""

from __future__ import annotations

from .describe_module import beyond_rounding, is_attention, label_of, size_of, stands_alone
from .evidence import Evidence
from .finding import Confidence, Finding
from .row_pattern import Pattern
from .size import ROUNDING, in_epsilons

_BLOCKS = (256, 128, 64, 32, 16)
"""Tokens in a block of a KV cache, as engines have them."""
_OF_PASSES = frozenset({"num_tokens", "cached_tokens", "cache", "prefill_chunk", "enable_prefix_caching"})
"""Circumstances that change in which passes rows are computed, and so no more than their rounding."""


def kv_cache(e: Evidence) -> Finding | None:
    """An attention read something else than was written: its inputs are equal, its output is far off."""
    seen, cached = e.seen.pattern, e.shape("cached_tokens")
    if seen is None or cached is None or max(cached) == 0 or not e.only_cached_is_unseen:
        return None
    if seen.site.part == "attn" and beyond_rounding(seen):
        site, drift = seen.site, seen.drift
        inputs = "its queries, keys and values and every computed row before are equal"
    elif _jumps_in_attention(seen):
        assert seen.jump is not None
        site, drift = seen.jump.site, seen.jump.drift
        inputs = f"before it nothing differs but by rounding ({seen.jump.before:.2g})"
    else:
        return None
    length = max(cached)
    units = in_epsilons(site.dtype, drift) or 0.0
    evidence = [
        f"{site.label()} at position {seen.position} is off by {drift:.2g}, {units:,.0f} units of the last "
        f"place of {site.dtype}: no rounding",
        f"{inputs}, so what it read of the {length} cached tokens is not",
        "stale, foreign or corrupted entries leave that (so would a wrong mask or scale in such passes)",
    ]
    steps = seen.position - seen.prompt_length
    if steps > 0:
        told = "the decode step before it is" if steps == 1 else f"the {steps} decode steps before it are"
        evidence.append(f"{told} equal, so the cache was right up to there")
    elif steps == 0:
        evidence.append("it is the first decode step: the first that reads what the prefill wrote")
    if length == seen.position and steps < 0:
        evidence.append(boundary(e, length))
    evidence += seen.others.told()
    others = set(e.circumstances) - _OF_PASSES
    confidence: Confidence = "medium" if others else "high"
    return Finding(evidence, confidence, confirm=e.replay(), direct=not others)


def _jumps_in_attention(seen: Pattern) -> bool:
    """The drift is rounding up to an attention, and no rounding behind it."""
    jump = seen.jump
    if jump is None or jump.site.part != "attn":
        return False
    before, after = (in_epsilons(jump.site.dtype, drift) or 0.0 for drift in (jump.before, jump.drift))
    return before <= ROUNDING < after


def boundary(e: Evidence, length: int) -> str:
    """What a number of cached tokens is in blocks."""
    told = [value for name in ("block_size", "page_size") if (value := e.number_of(name))]
    sizes = [size for size in (*told, *_BLOCKS) if length % size == 0]
    parts = [f"{length // size} × {size}" for size in dict.fromkeys(sizes)]
    if not parts:
        return f"position {length} is where the cached tokens end: {length}, no multiple of a block of 16"
    return f"position {length} is where the cached tokens end: {length} = {' = '.join(parts)}, whole blocks"


def decode_path(e: Evidence) -> Finding | None:
    """Prefill agrees, decoding does not, from its first step on."""
    seen = e.seen.pattern
    if not stands_alone(e) or seen is None or seen.position != seen.prompt_length or not seen.equal_before:
        return None
    tokens = e.shape("num_tokens")
    if tokens is not None and max(tokens) > 1:
        return None
    far = beyond_rounding(seen)
    if far and seen.others.untouched:
        return None  # other sequences were decoded rightly
    evidence = [
        f"all {seen.equal_before} rows of {label_of(seen)} in the prefill are equal; it differs from the "
        "first decode step on, with equal inputs",
        "decoding has another kernel or a captured graph"
        if is_attention(seen)
        else "so its weights were right in the prefill: decoding has another kernel, a captured graph, or "
        "reads older weights",
        *size_of(seen),
        *seen.others.told(),
    ]
    stale = "" if is_attention(seen) else "stale weights, "
    label = f"Decoding only: {stale}a captured graph or another kernel"
    return Finding(
        evidence,
        "medium" if is_attention(seen) and far else "high",
        confirm=e.replay("golden-prefill"),
        label=label if far else "Decoding only, within rounding: another kernel or a captured graph",
    )
