"""The table of causes and their order: for each the rule that finds it, and how its confirmation is read.

Several causes apply at once: one explains where numbers begin to differ, a second why a token flipped.
docs/causes.md explains the table to people; the names of causes for readers are made in present/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...schemas.verdict import Cause, Interpretation
from .evidence import Basis
from .rules import execution, model, module, prompt, sampling
from .rules.describe_module import beginning
from .rules.finding import Confidence, Finding

_ORDER: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}
_NO_ROUNDING = frozenset(
    {
        "weights",
        "model-config",
        "positions",
        "kv-cache",
        "non-finite",
        "moe-routing",
        "beyond-rounding",
        "drift-grows",
        "stale-output",
    }
)
"""Causes whose drift is no rounding, so that what it swaps was no tie."""
_AS_A: frozenset[Interpretation] = frozenset({"environment changed", "state A's value", "prompts part"})
"""Interpretations of the table for causes that no run can confirm; where one can, it has what A had."""
_OF_ROWS = frozenset(
    {
        "model-config",
        "dtype",
        "not-repeatable",
        "batch-rows",
        "stale-output",
        "moe-routing",
        "positions",
        "kv-cache",
        "batch-shape",
        "padding",
        "prefill-decode",
        "cache-boundary",
        "prefill-chunk",
        "attention-backend",
        "threads",
        "parallel-topology",
        "graph-path",
        "kernel",
        "decode-path",
        "one-row",
        "module",
    }
)
"""Causes that act at the first differing row, where they name no other place."""
_OF_A_LIST: frozenset[Interpretation] = frozenset({"prompts part", "rows not finite"})
"""How the lists of differing tokens and rows are read; any other list is of changes of the environment."""


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    id: str
    find: Callable[[Basis], Finding | list[Finding] | None]
    """A list: several causes of one kind, each with its own evidence."""
    interpretation: Interpretation
    """How to read what the confirming command gives."""


def rank(basis: Basis) -> list[Cause]:
    """All causes that apply: direct proofs first, then by confidence, then in the order of the table; what
    only says why a token flipped comes after what says where the numbers began to differ."""
    found = [(entry, finding) for entry in TABLE for finding in _found(entry, basis)]
    if any(entry.id in _NO_ROUNDING for entry, _ in found):
        found = [one for one in found if one[0].id != "near-tie"]
    found.sort(
        key=lambda item: (not item[1].direct, item[1].of_choice, _ORDER[item[1].confidence]),
    )
    return [
        Cause(
            id=entry.id,
            subject=finding.subject,
            place=finding.place or (beginning(basis) if entry.id in _OF_ROWS else None),
            evidence=finding.evidence,
            missing=[*finding.missing, *model.without_reference(entry.id, basis)],
            confidence=finding.confidence,
            confirm=finding.confirm,
            interpretation=finding.interpretation or _interpretation(entry, finding),
        )
        for entry, finding in found
    ]


def _found(entry: Entry, basis: Basis) -> list[Finding]:
    found = entry.find(basis)
    return found if isinstance(found, list) else [] if found is None else [found]


def _interpretation(entry: Entry, finding: Finding) -> Interpretation | None:
    """Where no run can confirm it here, the command lists what changed."""
    if finding.confirm is None:
        return None
    if finding.confirm.changes and entry.interpretation in _AS_A:
        return "same setting as A"
    listed = finding.confirm.purpose == "show" and entry.interpretation not in _OF_A_LIST
    return "environment changed" if listed else entry.interpretation


TABLE: tuple[Entry, ...] = (
    Entry("tokenizer", prompt.tokenizer, "prompts part"),
    Entry("prompt-clock", prompt.clock, "prompts part"),
    Entry("prompt-truncated", prompt.truncated, "prompts part"),
    Entry("prompt-insertion", prompt.insertion, "prompts part"),
    Entry("prompt", prompt.prompt, "prompts part"),
    Entry("length-limit", prompt.length_limit, "ends the same"),
    Entry("stop-rule", prompt.stop_rule, "ends the same"),
    Entry("length", prompt.length, "ends the same"),
    Entry("non-finite", module.not_finite, "rows not finite"),
    Entry("sampling-contract", sampling.contract, "state A's value"),
    Entry("no-seed", sampling.no_seed, "repeats differ"),
    Entry("seed-scope", sampling.seed_scope, "repeats choose"),
    Entry("rng", sampling.rng, "repeats choose"),
    Entry("logits-processing", sampling.logits_processing, "repeats choose"),
    Entry("candidate-order", sampling.candidate_order, "repeats choose"),
    Entry("sampling-filter", sampling.sampling_filter, "repeats choose"),
    Entry("sampler", sampling.sampler, "repeats choose"),
    Entry("not-repeatable", module.not_repeatable, "repeats differ"),
    Entry("weights", model.weights, "environment changed"),
    Entry("model-config", model.config, "environment changed"),
    Entry("dtype", model.dtype, "same setting as A"),
    Entry("batch-rows", module.batch_rows, "repeats differ"),
    Entry("stale-output", module.stale_output, "repeats at the same place"),
    Entry("moe-routing", module.routing, "repeats at the same place"),
    Entry("positions", module.positions, "repeats at the same place"),
    Entry("kv-cache", execution.kv_cache, "fresh cache"),
    Entry("drift-grows", module.drift_grows, "repeats at the same place"),
    Entry("batch-shape", execution.batch, "same setting as A"),
    Entry("padding", execution.padding, "same setting as A"),
    Entry("prefill-decode", execution.paths, "same setting as A"),
    Entry("cache-boundary", execution.cache, "same setting as A"),
    Entry("prefill-chunk", execution.chunks, "same setting as A"),
    Entry("attention-backend", execution.attention, "same setting as A"),
    Entry("threads", execution.threads, "same setting as A"),
    Entry("parallel-topology", execution.parallel, "same setting as A"),
    Entry("graph-path", execution.graph, "same setting as A"),
    Entry("kernel", execution.kernels, "environment changed"),
    Entry("beyond-rounding", model.beyond_rounding, "ratio over all positions"),
    Entry("decode-path", execution.decode_path, "rows of one prefill"),
    Entry("one-row", module.one_row, "repeats at the same place"),
    Entry("module", module.module, "repeats at the same place"),
    Entry("moe-routing-behind", module.routing_behind, "forced tokens"),
    Entry("own-draws", sampling.own_draws, "forced tokens"),
    Entry("near-tie", sampling.near_tie, "forced tokens"),
)
