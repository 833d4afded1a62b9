"""The table of causes: for each its evidence, what is missing, how sure it is, and the command to confirm it.

A cause is an entry with one function that looks at the evidence and answers with a finding or None. Several
apply at once: one explains where numbers began to differ, another why a token flipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..schemas.verdict import Cause
from . import cause_circumstances as circumstances
from . import cause_tokens as tokens
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


TABLE: tuple[Entry, ...] = (
    Entry("prompt", "The prompts differ", tokens.prompt),
    Entry("length", "One output is longer: a stop rule or a length limit", tokens.length),
    Entry("non-finite", "Non-finite values", tokens.nonfinite),
    Entry("sampling-contract", "The sampling contract differs", tokens.sampling),
    Entry("no-seed", "The engine takes no seed", tokens.no_seed),
    Entry("sampler", "Equal logits, another token: sampler or random state", tokens.sampler),
    Entry("weights", "The weights differ", tokens.weights),
    Entry("dtype", "Another dtype or quantization", circumstances.dtype),
    Entry("batch-shape", "Another batch shape", circumstances.batch),
    Entry("padding", "Another padding", circumstances.padding),
    Entry("prefill-decode", "Prefill against decode path", circumstances.paths),
    Entry("cache-boundary", "Another cache or chunk boundary", circumstances.cache),
    Entry("prefill-chunk", "Another prefill chunking", circumstances.chunks),
    Entry("attention-backend", "Another attention backend", circumstances.attention),
    Entry("threads", "Other CPU threads or instruction set", circumstances.threads),
    Entry("parallel-topology", "Another parallel topology", circumstances.parallel),
    Entry("kernel", "Another engine, library or kernel", circumstances.kernels),
    Entry("module", "The module itself", tokens.unexplained),
    Entry("near-tie", "A near tie: rounding flips the choice", tokens.near_tie),
)
