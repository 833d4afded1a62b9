"""Causes in earlier passes: the KV cache, and a decode path that prefill does not take."""

from __future__ import annotations

from ....schemas.findings.evidence import Conclusion, Evidence
from ....schemas.findings.rows import CacheBoundary, CachedTokensRead, PrefillEqual
from ..evidence import Basis
from ..observe.rounding import ROUNDING, in_ulps
from ..observe.row_pattern import RowPattern
from ..settings import ONLY_PASSES
from .describe_module import (
    beyond_rounding,
    drift_size,
    far_off,
    is_attention,
    others,
    stands_alone,
    subject,
)
from .finding import Finding

_BLOCKS = (256, 128, 64, 32, 16)
"""Tokens in a block of a KV cache, as engines have them."""


def kv_cache(basis: Basis) -> Finding | None:
    """An attention read something else than was written: its inputs are equal, its output is far off."""
    pattern, cached = basis.observed.pattern, basis.shape("cached_tokens")
    if pattern is None or cached is None or max(cached) == 0 or not basis.only_cached_is_unseen:
        return None
    drift_before = None
    if pattern.site.part == "attn" and beyond_rounding(pattern):
        site, drift = pattern.site, pattern.drift
    elif _jumps_in_attention(pattern) and pattern.jump is not None:
        site, drift, drift_before = pattern.jump.site, pattern.jump.drift, pattern.jump.before
    else:
        return None
    assert drift is not None
    length, steps = max(cached), pattern.position - pattern.prompt_length
    evidence: list[Evidence] = [
        far_off(site, pattern.position, drift),
        CachedTokensRead(
            cached_tokens=length, drift_before=drift_before, decode_steps=steps if steps >= 0 else None
        ),
        Conclusion(what="cache entries"),
    ]
    if length == pattern.position and steps < 0:
        evidence.append(boundary(basis, length))
    evidence += others(pattern)
    several = set(basis.circumstances) - ONLY_PASSES
    return Finding(
        evidence,
        "medium" if several else "high",
        confirm=basis.commands.replay(),
        direct=not several,
    )


def _jumps_in_attention(pattern: RowPattern) -> bool:
    """The drift is rounding up to an attention, and no rounding behind it."""
    jump = pattern.jump
    if jump is None or jump.site.part != "attn":
        return False
    before, after = (in_ulps(jump.site.dtype, drift) or 0.0 for drift in (jump.before, jump.drift))
    return before <= ROUNDING < after


def boundary(basis: Basis, length: int, exactly: bool = False) -> CacheBoundary:
    """What a number of cached tokens is in blocks."""
    stated = [value for name in ("block_size", "page_size") if (value := basis.number_of(name))]
    sizes = [size for size in dict.fromkeys((*stated, *_BLOCKS)) if length % size == 0]
    return CacheBoundary(cached_tokens=length, block_sizes=sizes, exactly=exactly)


def decode_path(basis: Basis) -> Finding | None:
    """Prefill agrees, decoding does not, from its first step on."""
    pattern = basis.observed.pattern
    if not stands_alone(basis) or pattern is None or pattern.position != pattern.prompt_length:
        return None
    tokens = basis.shape("num_tokens")
    if not pattern.equal_before or (tokens is not None and max(tokens) > 1):
        return None
    far = beyond_rounding(pattern)
    if far and pattern.others is not None and pattern.others.equal:
        return None  # other sequences were decoded rightly
    attention = is_attention(pattern)
    evidence: list[Evidence] = [
        PrefillEqual(site=pattern.site.label(), rows=pattern.equal_before),
        Conclusion(what="decode kernel" if attention else "decode kernel or weights"),
        *drift_size(pattern),
        *others(pattern),
    ]
    return Finding(
        evidence,
        "medium" if attention and far else "high",
        confirm=basis.commands.replay("golden-prefill"),
        subject=subject(pattern, "decoding").model_copy(update={"within_rounding": not far}),
    )
