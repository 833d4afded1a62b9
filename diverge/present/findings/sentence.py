"""The sentence of every finding: one table from its type to the function that words it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....schemas import reference as of_reference
from ....schemas import sequences as of_sequences
from ....schemas.findings import evidence as kinds
from ....schemas.findings import execution as of_execution
from ....schemas.findings import reasons as of_levels
from ....schemas.findings import rows as of_rows
from ....schemas.findings import tokens as of_tokens
from ....schemas.findings import unseen as of_unseen
from ....schemas.findings.command import Command
from ....schemas.findings.statement import Location, Sentence, Statement
from ....schemas.verdict import FirstSite, LevelVerdict
from . import agreement, execution, reasons, reference, rows, tokens, unseen
from .commands import in_shell

CONCLUSIONS = {
    "within one side's own scatter": (
        "so the difference between A and B is within what one side differs from itself"
    ),
    "follows from the routing": "what differs after it follows from that choice",
    "angles of the positions": (
        "position 0 is equal and all after it differ: a different base or scaling of the angles"
    ),
    "module or not repeatable": (
        "so the module itself computes something else, or a run does not repeat itself"
    ),
    "cache entries": (
        "stale, foreign or corrupted entries leave that (so would a wrong mask or scale in such passes)"
    ),
    "decode kernel": "decoding has a different kernel or a captured graph",
    "decode kernel or weights": (
        "so its weights were right in the prefill: decoding has a different kernel, a captured graph, or "
        "reads older weights"
    ),
    "greedy decoding": (
        "the requests were decoded greedily, so draws matter only if the provider ignores that"
    ),
    "sampled tokens": "the tokens were sampled, so the draw decides together with the margin",
    "configuration without weights": (
        "config.json differs while the weights are the same: an epsilon, a base of the positions, a scale, …"
    ),
    "mask of the padding": (
        "it is in an attention, and the batch is padded: the mask of the padding alone may do it; requests "
        "of one length have none"
    ),
    "equal logits of two candidates": (
        "the two likeliest candidates have exactly the same logit: which one is taken is open"
    ),
    "separate random numbers": (
        "the token was drawn on both sides, and the two engines share no random stream: one seed gives "
        "different draws, so different tokens are to be expected"
    ),
    "comparison without draws": (
        "greedy requests, or --mode golden-decode, compare the numbers without the draws"
    ),
}

SENTENCES: dict[type[Statement], Callable[[Any], str]] = {
    Sentence: lambda found: found.text or "",
    kinds.Conclusion: lambda found: CONCLUSIONS[found.what],
    of_execution.SettingDiffers: execution.setting_differs,
    of_execution.SamplingDiffers: execution.sampling_differs,
    of_execution.ShapeDiffers: execution.shape_differs,
    of_execution.DtypeDiffers: execution.dtype_differs,
    of_execution.ExecutionDiffers: execution.execution_differs,
    of_execution.PassDiffers: execution.pass_differs,
    of_execution.SeveralDiffer: execution.several_differ,
    of_execution.FieldChanged: execution.field_changed,
    of_execution.TensorsChanged: execution.tensors_changed,
    of_execution.TensorOfModule: execution.tensor_of_module,
    of_execution.NoSeed: execution.no_seed,
    of_rows.FirstDifferenceAt: rows.first_difference_at,
    of_rows.DriftSize: rows.drift_size,
    of_rows.RowRelation: rows.row_relation,
    of_rows.RowLikeness: rows.row_likeness,
    of_rows.ConstantDifference: rows.constant_difference,
    of_rows.ChannelsDiffering: rows.channels_differing,
    of_rows.ExpertsAtFault: rows.experts_at_fault,
    of_rows.LogitsDiffering: rows.logits_differing,
    of_rows.TokenRow: rows.token_row,
    of_rows.OtherRows: rows.other_rows,
    of_rows.RowsBySize: rows.rows_by_size,
    of_rows.OtherSequences: rows.other_sequences,
    of_rows.EqualSequences: rows.equal_sequences,
    of_rows.RoutingDiffers: rows.routing_differs,
    of_rows.RowsShifted: rows.rows_shifted,
    of_rows.CachedTokensRead: rows.cached_tokens_read,
    of_rows.CacheBoundary: rows.cache_boundary,
    of_rows.NotFinite: rows.not_finite,
    of_rows.PrefillEqual: rows.prefill_equal,
    of_rows.ReferenceDistance: reference.reference_distance,
    of_reference.NotJudged: reference.not_judged,
    of_reference.ReferenceNote: reference.reference_note,
    of_sequences.AgreementNote: agreement.agreement_note,
    of_tokens.Margins: tokens.margins,
    of_tokens.SequenceEnded: tokens.sequence_ended,
    of_tokens.SameLogits: tokens.same_logits,
    of_tokens.DrawStream: tokens.draw_stream,
    of_tokens.ProcessedLogits: tokens.processed_logits,
    of_tokens.CandidateOrder: tokens.candidate_order,
    of_tokens.CandidatesFiltered: tokens.candidates_filtered,
    of_tokens.LogprobDrift: tokens.logprob_drift,
    of_tokens.PromptsDiffer: tokens.prompts_differ,
    of_unseen.RowsUnseen: unseen.rows_unseen,
    of_unseen.NoEvidence: unseen.no_evidence,
    of_unseen.Note: unseen.note,
    of_unseen.UnfinishedRun: unseen.unfinished_run,
    of_unseen.PartIgnored: unseen.part_ignored,
    of_unseen.RowsIgnored: unseen.rows_ignored,
    of_unseen.SequencesLeftOut: unseen.sequences_left_out,
    of_unseen.SitesLeftOut: unseen.sites_left_out,
    of_unseen.AfterDivergence: unseen.after_divergence,
    of_unseen.TextOnly: unseen.text_only,
    of_unseen.HashesMissing: unseen.hashes_missing,
    of_unseen.NotRecorded: unseen.not_recorded,
    of_unseen.SummariesDiffer: unseen.summaries_differ,
    of_unseen.LogprobKinds: unseen.logprob_kinds,
    of_unseen.ObserverChanged: unseen.observer_changed,
    of_levels.Plain: reasons.plain_reason,
    of_levels.HashesCompared: reasons.hashes_compared,
    of_levels.DtypesDiffer: reasons.dtypes_differ,
    of_levels.Measured: reasons.measured,
    of_levels.Tolerance: reasons.tolerance,
    of_levels.Incomplete: reasons.incomplete,
    of_levels.Unseeded: reasons.unseeded,
    of_levels.TextsCompared: reasons.texts_compared,
    of_levels.TokensForced: reasons.tokens_forced,
    Location: reasons.location,
    Command: in_shell,
}


def sentence(found: Statement) -> str:
    """The sentence of a finding; of version 1 what it said. Plain text, as its values are: not escaped."""
    return SENTENCES[type(found)](found)


def where(level: LevelVerdict) -> str:
    """The first place where a level fails; empty: none is known."""
    return "" if level.where is None else sentence(level.where)


def why(level: LevelVerdict) -> str:
    """Why a level is as it is; empty: there is nothing to say."""
    return "; ".join(sentence(reason) for reason in level.why)


def note(level: LevelVerdict) -> str:
    """The same in a few words: the first reason, else the place."""
    if not level.why:
        return where(level)
    first = level.why[0]
    return reasons.shortened(first) if isinstance(first, of_levels.HashesCompared) else sentence(first)


def unseen_before(site: FirstSite) -> str:
    """Which rows before the first difference were not there to compare; empty: all were."""
    return "; ".join(sentence(rows) for rows in site.unseen)
