"""The table of causes: for each its evidence, what is missing, how sure it is, and the command to confirm it.

A cause is an entry with one function that looks at the evidence and answers with a finding or None. Several
apply at once: one explains where numbers began to differ, another why a token flipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from ..schemas.verdict import Cause
from .evidence import Evidence

Confidence = Literal["high", "medium", "low"]
_ORDER: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}
_DTYPE_FIELDS = ("dtype", "quantization", "quantization_method")
"""Fingerprint fields that say in which numbers the model was computed."""


@dataclass(frozen=True)
class Finding:
    """What one look at the evidence found."""

    evidence: list[str]
    confidence: Confidence
    missing: list[str] = field(default_factory=list)
    confirm: str | None = None
    direct: bool = False
    """The trace itself proves it; no inference from circumstances."""


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    id: str
    label: str
    find: Callable[[Evidence], Finding | None]


def rank(evidence: Evidence) -> list[Cause]:
    """All causes that apply: direct proofs first, then by confidence, then in the order of the table."""
    found = [(entry, finding) for entry in TABLE if (finding := entry.find(evidence)) is not None]
    found.sort(key=lambda item: (not item[1].direct, _ORDER[item[1].confidence]))
    return [
        Cause(
            id=entry.id,
            label=entry.label,
            evidence=finding.evidence,
            missing=finding.missing,
            confidence=finding.confidence,
            confirm=finding.confirm,
        )
        for entry, finding in found
    ]


def _prompt(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or token.step is not None or e.ended:
        return None
    evidence = [
        f"the prompts part at position {token.position}: token {token.token_a} in A, {token.token_b} in B"
    ]
    changed = e.changed("tokenizer", "template")
    evidence += [f"changed in the fingerprint: {name}" for name in changed]
    missing = (
        []
        if changed or e.has_fingerprints
        else ["no fingerprint in one of the traces, so tokenizer and template are unknown"]
    )
    return Finding(evidence, "high", missing, e.query_differing_tokens(), direct=True)


def _length(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or not e.ended:
        return None
    evidence = [f"{e.ended} ends before position {token.position}; up to there all tokens are equal"]
    stops = [
        line
        for line in e.sampling_differences
        if line.startswith(("max_tokens", "stop", "ignore_eos", "min_tokens"))
    ]
    evidence += stops
    missing = [] if stops else ["the stop rules read the same in both traces: finish reasons would tell"]
    return Finding(evidence, "high", missing, e.replay(), direct=True)


def _nonfinite(e: Evidence) -> Finding | None:
    if not e.nonfinite:
        return None
    return Finding(e.nonfinite, "high", confirm=e.query_norms(), direct=True)


def _sampling(e: Evidence) -> Finding | None:
    if not e.sampling_differences or e.first_token is None or e.first_token.step is None:
        return None
    if e.logits_equal:
        return Finding(
            [*e.sampling_differences, "the deciding logits are equal"], "high", [], e.replay(), direct=True
        )
    missing = [] if e.logits_equal is not None else ["no logits hash of the deciding row in both traces"]
    return Finding(e.sampling_differences, "medium", missing, e.replay())


def _sampler(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or token.step is None or e.ended or not e.logits_equal:
        return None
    evidence = [
        f"the logits that chose step {token.step} are bit-identical, the chosen tokens are "
        f"{token.token_a} in A and {token.token_b} in B"
    ]
    drawn = [side.sampler for side in e.deciding] if e.deciding else [None, None]
    missing = []
    if drawn[0] and drawn[1]:
        for name, word in (
            ("draw", "uniform draw"),
            ("rng_offset", "draws before it"),
            ("top1_id", "processed top-1"),
        ):
            if drawn[0].get(name) != drawn[1].get(name):
                evidence.append(f"{word}: {drawn[0].get(name)} in A, {drawn[1].get(name)} in B")
    else:
        missing.append("the sampler's draws were not recorded on both sides")
    return Finding(evidence, "high", missing, e.replay(repeat=3), direct=True)


def _near_tie(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or token.step is None or e.ended or e.logits_equal:
        return None
    margins = [margin for margin in (token.margin_a, token.margin_b) if margin is not None]
    drift = token.max_abs_logit_diff
    if len(margins) < 2 or not drift or min(margins) > drift:
        return None
    evidence = [
        f"margins {token.margin_a:.4g} in A and {token.margin_b:.4g} in B, drift of the logits at that step "
        f"{drift:.4g}: the drift alone is enough for the flip"
    ]
    if not e.greedy:
        evidence.append("the tokens were sampled, so the draw decides together with the margin")
    confidence: Confidence = "high" if e.greedy and max(margins) <= drift else "medium"
    return Finding(evidence, confidence, confirm=e.replay("golden-decode"))


def _weights_changed(e: Evidence) -> Finding | None:
    changed = e.changed_fields("model", ("sha256", "weights", "tensors"))
    if not changed or not e.differs:
        return None
    return Finding(
        [f"changed in the fingerprint: {name}" for name in changed], "high", confirm=e.drift(), direct=True
    )


def _dtype(e: Evidence) -> Finding | None:
    evidence = [line for line in e.setting_differences if line.startswith(("dtype", "quantization"))]
    evidence += e.dtype_differences
    evidence += [
        f"changed in the fingerprint: {name}"
        for section in ("model", "engine")
        for name in e.changed_fields(section, _DTYPE_FIELDS)
    ]
    if not evidence or not e.differs:
        return None
    return Finding(evidence, "high", confirm=e.replay_as_a("dtype"), direct=True)


def _batch(e: Evidence) -> Finding | None:
    evidence = e.shape_differences("batch_size")
    if not evidence or not e.differs:
        return None
    return _circumstance(
        e,
        [*evidence, f"at the first differing row, {e.first_place}"],
        e.replay(neighbours=0, batch_size=1),
    )


def _padding(e: Evidence) -> Finding | None:
    evidence = e.shape_differences("padded_tokens")
    if not evidence or not e.differs:
        return None
    side = e.header_b.lane.settings.get("padding_side")
    other = "left" if side is not None and side.resolved == "right" else "right"
    found = _circumstance(
        e,
        [*evidence, f"at the first differing row, {e.first_place}"],
        e.replay(padding_side=other),
    )
    # Padding comes with neighbours: where the batch differs too, the one cannot be told from the other.
    weaker: Confidence = "low" if found.confidence == "low" else "medium"
    return replace(found, confidence=weaker) if e.shape_differences("batch_size") else found


def _paths(e: Evidence) -> Finding | None:
    tokens = e.shape("num_tokens")
    if tokens is None or tokens[0] == tokens[1] or not e.differs:
        return None
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
    return _circumstance(e, evidence, e.replay("golden-decode"))


def _cache(e: Evidence) -> Finding | None:
    cached, tokens = e.shape("cached_tokens"), e.shape("num_tokens")
    if cached is None or cached[0] == cached[1] or not e.differs or (tokens is not None and min(tokens) == 1):
        return None
    evidence = [
        *e.shape_differences("cached_tokens"),
        *e.shape_differences("num_tokens"),
        f"at {e.first_place}",
    ]
    if e.first_site is not None and e.first_site.position in cached:
        evidence.append(f"the first difference sits exactly at a boundary: position {e.first_site.position}")
    return _circumstance(e, evidence, e.replay_as_a("prefill_chunk"))


def _chunks(e: Evidence) -> Finding | None:
    tokens = e.shape("num_tokens")
    evidence = [line for line in e.setting_differences if line.startswith("prefill_chunk")]
    # Where the cached prefix differs too, the boundary tells more: _cache; a mode is told by _paths.
    one_pass_only = e.scored_differently or e.shape_differences("cached_tokens")
    if tokens is not None and min(tokens) > 1 and not one_pass_only:
        evidence += e.shape_differences("num_tokens")
    if not evidence or not e.differs:
        return None
    return _circumstance(
        e, [*evidence, f"at the first differing row, {e.first_place}"], e.replay_as_a("prefill_chunk")
    )


def _attention(e: Evidence) -> Finding | None:
    evidence = [line for line in e.setting_differences if line.startswith("attention")]
    evidence += [
        f"changed in the fingerprint: {name}" for name in e.changed_fields("engine", ("attention_backend",))
    ]
    if not evidence or not e.differs:
        return None
    if e.first_site is not None and "attn" in f"{e.first_site.site}:{e.first_site.part}":
        evidence.append(f"the first difference lies in attention: {e.first_place}")
    return _circumstance(e, evidence, e.replay_as_a("attention"))


def _threads(e: Evidence) -> Finding | None:
    evidence = [line for line in e.setting_differences if line.startswith("threads")]
    evidence += [f"changed in the fingerprint: {name}" for name in e.changed("cpu")]
    if not evidence or not e.differs:
        return None
    return _circumstance(e, evidence, e.replay_as_a("threads"))


def _kernels(e: Evidence) -> Finding | None:
    known = (
        "attention",
        "threads",
        "dtype",
        "quantization",
        "batch_size",
        "neighbours",
        "repeat",
        "tensor_parallel",
        "prefill_chunk",
    )
    evidence = [line for line in e.setting_differences if not line.startswith(known)]
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
    if e.header_a.lane.engine != e.header_b.lane.engine:
        evidence.append(f"engines: {e.header_a.lane.engine} in A, {e.header_b.lane.engine} in B")
    if not evidence or not e.differs:
        return None
    return _circumstance(e, evidence, e.drift())


def _parallel(e: Evidence) -> Finding | None:
    evidence = [line for line in e.setting_differences if line.startswith("tensor_parallel")]
    evidence += [f"changed in the fingerprint: {name}" for name in e.changed("parallelism")]
    return _circumstance(e, evidence, e.drift()) if evidence and e.differs else None


def _unexplained(e: Evidence) -> Finding | None:
    site = e.first_site
    if site is None or not site.is_origin or e.setting_differences or e.circumstances or e.shapes_differ:
        return None
    evidence = [
        f"{e.first_place} is an origin: its inputs, execution shape and recorded settings are equal, "
        "its output is not",
        "what remains is the module itself (its weights, its kernel) or a run that does not repeat itself",
    ]
    if site.position == 0:
        evidence.append("it differs from the very first position on, as changed weights do")
    missing = (
        []
        if e.has_fingerprints
        else ["no fingerprint in one of the traces, so changed weights cannot be excluded"]
    )
    return Finding(evidence, "medium", missing, e.replay(repeat=3))


def _circumstance(e: Evidence, evidence: list[str], confirm: str | None) -> Finding:
    """A difference in how the row was computed: the fewer others there are, the surer it is the cause."""
    missing = [] if e.first_site is not None and e.first_site.is_origin else [e.not_an_origin]
    others = len(e.circumstances) > 1
    confidence: Confidence = (
        "high" if not others and not missing else "medium" if not others or not missing else "low"
    )
    if others:
        evidence = [*evidence, f"several things differ at once: {', '.join(e.circumstances)}"]
    return Finding(evidence, confidence, missing, confirm)


TABLE: tuple[Entry, ...] = (
    Entry("prompt", "The prompts differ", _prompt),
    Entry("length", "One output is longer: a stop rule or a length limit", _length),
    Entry("non-finite", "Non-finite values", _nonfinite),
    Entry("sampling-contract", "The sampling contract differs", _sampling),
    Entry("sampler", "Equal logits, another token: sampler or random state", _sampler),
    Entry("weights", "The weights differ", _weights_changed),
    Entry("dtype", "Another dtype or quantization", _dtype),
    Entry("batch-shape", "Another batch shape", _batch),
    Entry("padding", "Another padding", _padding),
    Entry("prefill-decode", "Prefill against decode path", _paths),
    Entry("cache-boundary", "Another cache or chunk boundary", _cache),
    Entry("prefill-chunk", "Another prefill chunking", _chunks),
    Entry("attention-backend", "Another attention backend", _attention),
    Entry("threads", "Other CPU threads or instruction set", _threads),
    Entry("parallel-topology", "Another parallel topology", _parallel),
    Entry("kernel", "Another engine, library or kernel", _kernels),
    Entry("module", "The module itself", _unexplained),
    Entry("near-tie", "A near tie: rounding flips the choice", _near_tie),
)
