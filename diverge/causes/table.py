"""The table of causes: for each its evidence, what is missing, how sure it is, and the command to confirm it.

A cause is an entry with one function that looks at the evidence and answers with a finding or None. Several
apply at once: one explains where numbers began to differ, another why a token flipped. docs/causes.md tells
the table to people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...schemas.verdict import Cause
from . import circumstances, memory, tokens
from . import module as modules
from . import prompt as prompts
from . import reference as references
from . import sampler as samplers
from .evidence import Evidence
from .finding import Confidence, Finding

_ORDER: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    id: str
    label: str
    find: Callable[[Evidence], Finding | None]


def rank(evidence: Evidence) -> list[Cause]:
    """All causes that apply: direct proofs first, then by confidence, then in the order of the table; what
    only tells why a token flipped comes behind what tells where the numbers began to differ."""
    found = [(entry, finding) for entry in TABLE if (finding := entry.find(evidence)) is not None]
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
        )
        for entry, finding in found
    ]


TABLE: tuple[Entry, ...] = (
    Entry("tokenizer", "Equal prompt text, other token ids", prompts.tokenizer),
    Entry("prompt-truncated", "One prompt is a part of the other", prompts.truncated),
    Entry("prompt-insertion", "Tokens were put into the prompt or left out", prompts.insertion),
    Entry("prompt", "The prompts differ", prompts.prompt),
    Entry("length-limit", "One output is longer: another output limit", samplers.length_limit),
    Entry("stop-rule", "One output is longer: a stop rule was not heeded", samplers.stop_rule),
    Entry("length", "One output is longer: a stop rule or a length limit", samplers.length),
    Entry("non-finite", "Non-finite values", tokens.nonfinite),
    Entry("sampling-contract", "The sampling contract differs", tokens.sampling),
    Entry("no-seed", "The engine takes no seed", tokens.no_seed),
    Entry("seed-scope", "Equal logits: the stream of draws is shared between requests", samplers.seed_scope),
    Entry("rng", "Equal logits, another draw: random state", samplers.rng),
    Entry(
        "logits-processing",
        "Equal logits, processed otherwise: temperature, penalty, bias or constraint",
        samplers.logits_processing,
    ),
    Entry(
        "candidate-order", "Equal logits and draw: another order of the candidates", samplers.candidate_order
    ),
    Entry(
        "sampling-filter", "Equal logits and draw: candidates filtered otherwise", samplers.sampling_filter
    ),
    Entry("sampler", "Equal logits, another token: sampler or random state", samplers.sampler),
    Entry("weights", "The weights differ", tokens.weights),
    Entry("dtype", "Another dtype or quantization", circumstances.dtype),
    Entry("not-repeatable", "A run that does not repeat itself", modules.non_repeating),
    Entry("batch-rows", "Identical rows of one batch differ", modules.batch_rows),
    Entry("moe-routing", "Other experts were chosen", modules.routing),
    Entry("positions", "Other positions, or another table of them", modules.positions),
    Entry("kv-cache", "The KV cache: stale, foreign or corrupted entries", memory.kv_cache),
    Entry("batch-shape", "Another batch shape", circumstances.batch),
    Entry("padding", "Another padding", circumstances.padding),
    Entry("prefill-decode", "Prefill against decode path", circumstances.paths),
    Entry("cache-boundary", "Another cache or chunk boundary", circumstances.cache),
    Entry("prefill-chunk", "Another prefill chunking", circumstances.chunks),
    Entry("attention-backend", "Another attention backend", circumstances.attention),
    Entry("threads", "Other CPU threads or instruction set", circumstances.threads),
    Entry("parallel-topology", "Another parallel topology", circumstances.parallel),
    Entry("graph-path", "Eager against graph or compiled", circumstances.graph),
    Entry("kernel", "Another engine, library or kernel", circumstances.kernels),
    Entry(
        "beyond-rounding",
        "Beyond rounding: one side is farther from the reference",
        references.beyond_rounding,
    ),
    Entry("decode-path", "Decoding only: its kernel, its graph or stale weights", memory.decode_path),
    Entry("one-row", "Single wrong rows of a module", modules.one_row),
    Entry("module", "The module itself", modules.module),
    Entry("moe-routing-behind", "The difference makes routers choose other experts", modules.routing_behind),
    Entry("own-draws", "Drawn tokens: each engine has random numbers of its own", samplers.own_draws),
    Entry("near-tie", "A near tie: rounding flips the choice", tokens.near_tie),
)
