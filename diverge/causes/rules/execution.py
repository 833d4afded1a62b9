"""Causes in how the rows were computed: shapes of passes, settings of the lane, the environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....schemas.findings.evidence import Conclusion, Evidence
from ....schemas.findings.execution import ExecutionDiffers, PassDiffers
from ....schemas.findings.rows import CacheBoundary, CachedTokensRead, PrefillEqual
from ....schemas.findings.statement import Command
from ....schemas.findings.unseen import NoEvidence
from ..commands import reading
from ..evidence import Basis
from ..observe.changed_logits import ROUNDING, in_ulps
from ..observe.course import Jump
from ..observe.row_pattern import RowPattern
from ..settings import (
    DTYPE_FIELDS,
    LANE_SETTINGS,
    ONLY_PASSES,
    WITHOUT_CAUSE,
    Group,
    group_of,
    names_of,
    normal,
)
from .describe_module import (
    beyond_rounding,
    drift_beyond_rounding,
    drift_size,
    is_attention,
    others,
    place_of,
    stands_alone,
    subject,
)
from .finding import Finding, circumstance

_BLOCKS = (256, 128, 64, 32, 16)
"""Tokens in a block of a KV cache, as engines have them."""


def kv_cache(basis: Basis) -> Finding | None:
    """An attention read something else than was written: its inputs are equal, its output is far off."""
    pattern, cached = basis.observed.pattern, basis.shape("cached_tokens")
    if pattern is None or cached is None or max(cached) == 0 or not basis.only_cached_is_unseen:
        return None
    drift_before, place = None, None
    if pattern.site.part == "attn" and beyond_rounding(pattern):
        site, drift = pattern.site, pattern.drift
    elif (jump := _in_attention(pattern)) is not None:
        site, drift, drift_before, place = jump.site, jump.drift, jump.before, place_of(jump)
    else:
        return None
    assert drift is not None
    length, steps = max(cached), pattern.position - pattern.prompt_length
    evidence: list[Evidence] = [
        drift_beyond_rounding(site, pattern.position, drift),
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
        place=place,
    )


def _in_attention(pattern: RowPattern) -> Jump | None:
    """The drift is rounding up to an attention of the first differing row, and no rounding behind it."""
    for jump in pattern.jumps:
        if jump.site.part == "attn" and jump.position == pattern.position:
            return jump if (in_ulps(jump.site.dtype, jump.before) or 0.0) <= ROUNDING else None
    return None


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
        confirm=basis.commands.in_mode("golden-prefill"),
        subject=subject(pattern, "decoding").model_copy(update={"within_rounding": not far}),
    )


_SECTIONS = ("engine", "frameworks", "libraries", "kernels", "determinism", "gpus", "driver")
"""Sections of a fingerprint that say which kernels run."""


def batch(basis: Basis) -> Finding | None:
    """Other sequences shared the pass, or were sent together."""
    shapes = basis.shape_differences("batch_size")
    if shapes and basis.differs:
        evidence: list[Evidence] = [*shapes, basis.first_difference()]
        if basis.shape_differences("padded_tokens") and is_attention(basis.observed.pattern):
            evidence.append(Conclusion(what="mask of the padding"))
        return circumstance(basis, evidence, _batch_as_a(basis))
    # What shared a pass was not observed; what was sent together is known.
    settings = basis.settings_of("batch")
    if not settings or not basis.differs or basis.shape("batch_size") is not None:
        return None
    sent: list[Evidence] = [one.model_copy(update={"sent_together": True}) for one in settings]
    found = _circumstance_of(basis, sent, "batch")
    return replace(found, missing=[*found.missing, NoEvidence(kind="forward passes")])


def _batch_as_a(basis: Basis) -> Command:
    """A's batch and neighbours, where the lanes state others; else every sequence alone."""
    alone: dict[str, object] = {"neighbours": 0, "batch_size": 1}
    sides = [
        {name: reading(lane.settings[name]) if name in lane.settings else one for name, one in alone.items()}
        for lane in basis.lanes
    ]
    return basis.commands.replay(**(sides[0] if sides[0] != sides[1] else alone))


def padding(basis: Basis) -> Finding | None:
    """Padded tokens or the padding side differ."""
    settings = basis.settings_of("padding")
    evidence: list[Evidence] = [*settings, *basis.shape_differences("padded_tokens")]
    if not evidence or not basis.differs:
        return None
    evidence.append(basis.first_difference())
    if settings:
        confirm = basis.commands.replay_as_a("padding") or basis.commands.replay()
        return circumstance(basis, evidence, confirm)
    side = basis.lanes[1].settings.get("padding_side")
    if side is None and "batch_size" in basis.lanes[1].settings:  # an engine that has no such setting
        return circumstance(basis, evidence, _batch_as_a(basis))
    other = "left" if side is not None and side.resolved == "right" else "right"
    found = circumstance(basis, evidence, basis.commands.replay(padding_side=other))
    # Padding comes with neighbours: where the batch differs too, the two cannot be distinguished.
    if not basis.shape_differences("batch_size"):
        return found
    # What padding alone changes is the mask, so the kernel and the sums of an attention: beyond rounding it
    # is the padding itself that was attended to, or that passed through the state of a recurrent layer. A
    # different batch shape leaves no more than rounding there.
    pattern = basis.observed.pattern
    by_mask, far = is_attention(pattern), beyond_rounding(pattern)
    found = replace(
        found, interpretation="other padding side", confidence="medium" if by_mask or far else "low"
    )
    if not far:
        return found
    said = Conclusion(what="padding attended to" if by_mask else "padding in the rows")
    return replace(found, evidence=[*found.evidence, said], confidence="high" if by_mask else "medium")


def paths(basis: Basis) -> Finding | None:
    """One side decoded what the other computed in one pass."""
    tokens = basis.shape("num_tokens")
    if tokens is None or tokens[0] == tokens[1] or not basis.differs or basis.prompts_differ:
        return None  # prompts of different lengths run in different passes
    if min(tokens) != 1 and not basis.scored_differently:
        return None
    at = basis.first_difference()
    evidence: list[Evidence] = [
        PassDiffers(
            how="prefill or decode" if min(tokens) == 1 else "prompt and answer in one pass",
            a=tokens[0],
            b=tokens[1],
            site=at.site,
            position=at.position,
        )
    ]
    modes = [header.mode for header in basis.headers]
    if modes[0] != modes[1]:
        evidence.append(ExecutionDiffers(of="mode", a=modes[0], b=modes[1]))
    return circumstance(basis, evidence, basis.commands.in_mode("golden-decode"))


def cache(basis: Basis) -> Finding | None:
    """Cached tokens differ."""
    cached, tokens = basis.shape("cached_tokens"), basis.shape("num_tokens")
    settings: list[Evidence] = [*basis.settings_of("cache")]
    if cached is None and settings and basis.differs:
        found = _circumstance_of(basis, settings, "cache")
        return replace(found, missing=[*found.missing, NoEvidence(kind="cached tokens")])
    if cached is None or cached[0] == cached[1] or not basis.differs or basis.prompts_differ:
        return None
    if not settings and _is_chunked(basis):
        return None
    if tokens is not None and min(tokens) == 1:
        return None
    evidence: list[Evidence] = [
        *basis.shape_differences("cached_tokens", "num_tokens"),
        *settings,
        basis.first_difference(),
    ]
    if basis.first_site is not None and basis.first_site.position in cached:
        evidence.append(boundary(basis, basis.first_site.position, exactly=True))
    as_a = basis.commands.replay_as_a("cache", "chunk")
    found = circumstance(basis, evidence, as_a or basis.commands.replay(), cached=True)
    return found if as_a else replace(found, interpretation="fresh cache")


def _is_chunked(basis: Basis) -> bool:
    """Both sides computed all rows, or found as many cached: passes end elsewhere, no cache does."""
    taken = basis.from_cache
    return taken is not None and taken[0] == taken[1]


def chunks(basis: Basis) -> Finding | None:
    """The prefill was cut in other chunks."""
    tokens = basis.shape("num_tokens")
    evidence: list[Evidence] = [*basis.settings_of("chunk")]
    # Where the cached prefix differs too, the boundary says more: cache; a mode is the cause `paths`.
    cache_differs = basis.shape_differences("cached_tokens") and not _is_chunked(basis)
    one_pass_only = basis.scored_differently or cache_differs
    if tokens is not None and min(tokens) > 1 and not one_pass_only and not basis.prompts_differ:
        evidence += basis.shape_differences("num_tokens", "cached_tokens")
    if not evidence or not basis.differs:
        return None
    confirm = basis.commands.replay_as_a("chunk") or basis.commands.replay(**_chunk_of_a(basis))
    return circumstance(basis, [*evidence, basis.first_difference()], confirm)


_CHUNK_SETTINGS = {
    "hf": "prefill_chunk",
    "vllm": "max_num_batched_tokens",
    "sglang": "chunked_prefill_size",
    "llama.cpp": "n_ubatch",
}
"""By engine: the setting that says how many prompt tokens a pass takes."""


def _chunk_of_a(basis: Basis) -> dict[str, Any]:
    """A's passes as a setting of B's engine, where it has one and A's rows tell."""
    tokens, cached = basis.shape("num_tokens"), basis.shape("cached_tokens")
    engine = basis.lanes[1].engine
    name = next((name for known, name in _CHUNK_SETTINGS.items() if engine.startswith(known)), None)
    if name is None or tokens is None or cached is None:
        return {}
    pattern = basis.observed.pattern
    # A whole prompt in one pass is no chunk: `hf` says 0 to it, a server needs room for as many tokens.
    whole = pattern is not None and cached[0] == 0 and tokens[0] == pattern.prompt_length
    return {name: 0 if whole and engine == "hf" else tokens[0]}


def attention(basis: Basis) -> list[Finding]:
    """The attention backend differs."""
    evidence: list[Evidence] = [
        *basis.settings_of("attention"),
        *basis.changed("engine", fields=("attention_backend",)),
    ]
    variables = _of_variables(basis, "attention")
    if not evidence or not basis.differs:
        return variables
    if basis.first_site is not None and "attn" in basis.first_site.label():
        evidence.append(basis.first_difference("attention"))
    return [*variables, _circumstance_of(basis, evidence, "attention")]


def threads(basis: Basis) -> list[Finding]:
    """CPU threads or the instruction set differ."""
    evidence: list[Evidence] = [*basis.settings_of("threads"), *basis.changed("cpu")]
    variables = _of_variables(basis, "threads")
    if not evidence or not basis.differs:
        return variables
    if basis.first_site is not None:
        evidence.append(basis.first_difference())
    return [*variables, _circumstance_of(basis, evidence, "threads")]


def _of_variables(basis: Basis, group: Group | None) -> list[Finding]:
    """A cause for each changed environment variable of a group."""
    found: list[Finding] = []
    for variable in basis.variables if basis.differs else []:
        if group_of(variable.name) != group:
            continue
        evidence: list[Evidence] = [variable]
        if basis.first_site is not None:
            evidence.append(basis.first_difference())
        confirm = basis.commands.variable_as_a(variable.name) or basis.commands.show_changes()
        found.append(circumstance(basis, evidence, confirm))
    return found


def parallel(basis: Basis) -> Finding | None:
    """The parallel topology differs."""
    evidence: list[Evidence] = [*basis.settings_of("parallel"), *basis.changed("parallelism")]
    if not evidence or not basis.differs:
        return None
    return _circumstance_of(basis, evidence, "parallel")


def graph(basis: Basis) -> Finding | None:
    """One side ran eagerly, the other as a captured graph or compiled."""
    evidence: list[Evidence] = [*basis.settings_of("graph")]
    if basis.channels_differ:
        a, b = (header.channel for header in basis.headers)
        evidence.append(ExecutionDiffers(of="channel", a=a, b=b))
    if not evidence or not basis.differs:
        return None
    return _circumstance_of(basis, evidence, "graph")


def kernels(basis: Basis) -> list[Finding]:
    """Engine, libraries or settings differ that no other cause names."""
    named = names_of(*LANE_SETTINGS) | {*WITHOUT_CAUSE}
    evidence: list[Evidence] = [
        setting for setting in basis.setting_differences if normal(setting.name) not in named
    ]
    # What a setting or a different cause already says is no second difference.
    known = {
        "attention_backend",
        *DTYPE_FIELDS,
        *(normal(setting.name) for setting in basis.setting_differences),
    }
    evidence += [
        change
        for change in basis.changed(*_SECTIONS)
        if change.section != "engine" or change.field not in known
    ]
    a, b = (lane.engine for lane in basis.lanes)
    if a != b:
        evidence.insert(0, ExecutionDiffers(of="engine", a=a, b=b))
    variables = _of_variables(basis, None)
    if not evidence or not basis.differs:
        return variables
    confirm = basis.commands.rest_as_a() or basis.commands.show_changes()
    found = circumstance(basis, evidence, confirm)
    # Whatever else differs comes with the other engine.
    sure = a != b and not beyond_rounding(basis.observed.pattern)
    return [*variables, replace(found, confidence="high") if sure else found]


def _circumstance_of(basis: Basis, evidence: list[Evidence], group: Group) -> Finding:
    """A circumstance that A's settings of a group would confirm."""
    commands = basis.commands
    return circumstance(basis, evidence, commands.replay_as_a(group) or commands.show_changes())
