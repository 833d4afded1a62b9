"""The table of causes: for each its evidence, what is missing, how sure it is, and the command to confirm it.

A cause is an entry with one function that looks at the evidence and answers with a finding or None. Several
apply at once: one explains where numbers began to differ, another why a token flipped. docs/causes.md tells
the table to people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...schemas.verdict import Cause
from . import circumstances, interpretation, kv_cache, length, tokens
from . import module as modules
from . import prompt as prompts
from . import reference as references
from . import sampler as samplers
from .evidence import Evidence
from .finding import Confidence, Finding

_ORDER: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}
_NO_ROUNDING = frozenset(
    {"weights", "model-config", "positions", "kv-cache", "non-finite", "moe-routing", "beyond-rounding"}
)
"""Causes whose drift is no rounding, so that what it swaps was no tie."""


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    id: str
    label: str
    find: Callable[[Evidence], Finding | None]
    tells: str
    """How to read what the confirming command gives."""


def rank(evidence: Evidence) -> list[Cause]:
    """All causes that apply: direct proofs first, then by confidence, then in the order of the table; what
    only tells why a token flipped comes behind what tells where the numbers began to differ."""
    found = [(entry, finding) for entry in TABLE if (finding := entry.find(evidence)) is not None]
    if any(entry.id in _NO_ROUNDING for entry, _ in found):
        found = [one for one in found if one[0].id != "near-tie"]
    found.sort(
        key=lambda item: (not item[1].direct, item[1].of_choice, _ORDER[item[1].confidence]),
    )
    return [
        Cause(
            id=entry.id,
            label=finding.label or entry.label,
            evidence=finding.evidence,
            missing=[*finding.missing, *references.without_reference(entry.id, evidence)],
            confidence=finding.confidence,
            confirm=finding.confirm,
            tells=finding.tells or _tells(entry, finding.confirm),
        )
        for entry, finding in found
    ]


def _tells(entry: Entry, command: str | None) -> str | None:
    """Where no run can confirm it here, the command lists what changed."""
    if command is None:
        return None
    listed = command.startswith("rip query") and entry.tells not in (
        interpretation.PARTING,
        interpretation.NOT_FINITE,
    )
    return interpretation.CHANGED if listed else entry.tells


TABLE: tuple[Entry, ...] = (
    Entry("tokenizer", "Equal prompt text, other token ids", prompts.tokenizer, interpretation.PARTING),
    Entry("prompt-truncated", "One prompt is a part of the other", prompts.truncated, interpretation.PARTING),
    Entry(
        "prompt-insertion",
        "Tokens were put into the prompt or left out",
        prompts.insertion,
        interpretation.PARTING,
    ),
    Entry("prompt", "The prompts differ", prompts.prompt, interpretation.PARTING),
    Entry(
        "length-limit",
        "One output is longer: another output limit",
        length.length_limit,
        interpretation.ENDED,
    ),
    Entry(
        "stop-rule",
        "One output is longer: a stop rule was not heeded",
        length.stop_rule,
        interpretation.ENDED,
    ),
    Entry(
        "length", "One output is longer: a stop rule or a length limit", length.length, interpretation.ENDED
    ),
    Entry("non-finite", "Non-finite values", tokens.nonfinite, interpretation.NOT_FINITE),
    Entry("sampling-contract", "The sampling contract differs", tokens.sampling, interpretation.STATED),
    Entry("no-seed", "The engine takes no seed", tokens.no_seed, interpretation.UNLIKE),
    Entry(
        "seed-scope",
        "Equal logits: the stream of draws is shared between requests",
        samplers.seed_scope,
        interpretation.CHOSEN,
    ),
    Entry("rng", "Equal logits, another draw: random state", samplers.rng, interpretation.CHOSEN),
    Entry(
        "logits-processing",
        "Equal logits, processed otherwise: temperature, penalty, bias or constraint",
        samplers.logits_processing,
        interpretation.CHOSEN,
    ),
    Entry(
        "candidate-order",
        "Equal logits and draw: another order of the candidates",
        samplers.candidate_order,
        interpretation.CHOSEN,
    ),
    Entry(
        "sampling-filter",
        "Equal logits and draw: candidates filtered otherwise",
        samplers.sampling_filter,
        interpretation.CHOSEN,
    ),
    Entry(
        "sampler",
        "Equal logits, another token: sampler or random state",
        samplers.sampler,
        interpretation.CHOSEN,
    ),
    Entry("weights", "The weights differ", tokens.weights, interpretation.CHANGED),
    Entry("model-config", "The model's configuration differs", tokens.config, interpretation.CHANGED),
    Entry("dtype", "Another dtype or quantization", circumstances.dtype, interpretation.AS_A),
    Entry(
        "not-repeatable", "A run that does not repeat itself", modules.non_repeating, interpretation.UNLIKE
    ),
    Entry("batch-rows", "Identical rows of one batch differ", modules.batch_rows, interpretation.UNLIKE),
    Entry("moe-routing", "Other experts were chosen", modules.routing, interpretation.REPEATED),
    Entry(
        "positions", "Other positions, or another table of them", modules.positions, interpretation.REPEATED
    ),
    Entry(
        "kv-cache",
        "The KV cache: stale, foreign or corrupted entries",
        kv_cache.kv_cache,
        interpretation.CACHED,
    ),
    Entry("batch-shape", "Another batch shape", circumstances.batch, interpretation.AS_A),
    Entry("padding", "Another padding", circumstances.padding, interpretation.AS_A),
    Entry("prefill-decode", "Prefill against decode path", circumstances.paths, interpretation.AS_A),
    Entry("cache-boundary", "Another cache or chunk boundary", circumstances.cache, interpretation.AS_A),
    Entry("prefill-chunk", "Another prefill chunking", circumstances.chunks, interpretation.AS_A),
    Entry("attention-backend", "Another attention backend", circumstances.attention, interpretation.AS_A),
    Entry("threads", "Other CPU threads or instruction set", circumstances.threads, interpretation.AS_A),
    Entry("parallel-topology", "Another parallel topology", circumstances.parallel, interpretation.AS_A),
    Entry("graph-path", "Eager against graph or compiled", circumstances.graph, interpretation.AS_A),
    Entry("kernel", "Another engine, library or kernel", circumstances.kernels, interpretation.CHANGED),
    Entry(
        "beyond-rounding",
        "Beyond rounding: one side is farther from the reference",
        references.beyond_rounding,
        interpretation.MEASURED,
    ),
    Entry(
        "decode-path",
        "Decoding only: its kernel, its graph or stale weights",
        kv_cache.decode_path,
        interpretation.PREFILLED,
    ),
    Entry("one-row", "Single wrong rows of a module", modules.one_row, interpretation.REPEATED),
    Entry("module", "The module itself", modules.module, interpretation.REPEATED),
    Entry(
        "moe-routing-behind",
        "The difference makes routers choose other experts",
        modules.routing_behind,
        interpretation.FORCED,
    ),
    Entry(
        "own-draws",
        "Drawn tokens: each engine has random numbers of its own",
        samplers.own_draws,
        interpretation.FORCED,
    ),
    Entry("near-tie", "A near tie: the drift flips the choice", tokens.near_tie, interpretation.FORCED),
)
