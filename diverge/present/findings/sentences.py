"""The sentences beside the data: filled into a verdict just before it is written, for people."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

from ....schemas import reference as of_reference
from ....schemas import sequences as of_sequences
from ....schemas.base import Record
from ....schemas.findings import evidence as kinds
from ....schemas.findings import execution as of_execution
from ....schemas.findings import experiments as of_experiments
from ....schemas.findings import reasons as of_levels
from ....schemas.findings import rows as of_rows
from ....schemas.findings import tokens as of_tokens
from ....schemas.findings import unseen as of_unseen
from ....schemas.findings.statement import Command, Location, Sentence, Statement
from ....schemas.sequences import AgreementNote
from ....schemas.verdict import Cause, FirstSite, Interpretation, LevelVerdict, Verdict
from ..format import plural
from . import experiments, reasons, reference, rows, tokens
from .labels import label
from .reference import reference_sentence


def agreement_note(found: AgreementNote) -> str:
    if found.kind == "forced":
        return f"{found.trace} was forced, so its outputs are not counted"
    if found.kind == "unfinished":
        return f"{found.trace} is of an unfinished run, so its outputs are not counted"
    if found.kind == "own seeds":
        return (
            f"{found.trace}: the n samples of {plural(found.requests or 0, 'request')} run on seeds of their "
            "own, so they differ by design and are not counted"
        )
    return "every request ran once, which says little: several samples of each do (--repeat 8)"


def in_shell(command: Command) -> str:
    """A command, and the one to run after it, quoted for a POSIX shell; what no trace holds as a comment."""
    if command.purpose == "not known":
        return command.text or ""
    then = f"; {shlex.join(command.then)}" if command.then else ""
    if command.purpose == "rerun program":
        settings = ", ".join(f"{name}={value}" for name, value in command.settings.items())
        how = f" with {settings}" if settings else ""
        return f"run the program again{how}, tapped into {command.output}{then}"
    hidden = (
        f"  # and --set {' --set '.join(f'{name}=…' for name in command.hidden)}" if command.hidden else ""
    )
    unset = [word for name in command.unset or () for word in ("-u", name)]
    argv = ["env", *unset, *command.argv] if unset else command.argv
    return f"{shlex.join(argv)}{then}{hidden}"


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
    "not of rounding": (
        "rounding of a different batch, kernel or library does not grow so at one module: what it computes "
        "or reads (weights, a state, a mask, positions) is different"
    ),
    "padding attended to": (
        "what the attention is given is equal, its output is beyond rounding: the padding was attended to"
    ),
    "padding in the rows": (
        "a different batch shape leaves rounding only, and this is more: padding reached the rows, as it "
        "does where it passes through the state of a recurrent layer"
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
    of_execution.SettingDiffers: tokens.setting_differs,
    of_execution.SamplingDiffers: tokens.sampling_differs,
    of_execution.ShapeDiffers: tokens.shape_differs,
    of_execution.DtypeDiffers: tokens.dtype_differs,
    of_execution.ExecutionDiffers: tokens.execution_differs,
    of_execution.PassDiffers: tokens.pass_differs,
    of_execution.SeveralDiffer: tokens.several_differ,
    of_execution.FieldChanged: tokens.field_changed,
    of_execution.VariableChanged: tokens.variable_changed,
    of_execution.TensorsChanged: tokens.tensors_changed,
    of_execution.TensorOfModule: tokens.tensor_of_module,
    of_execution.NoSeed: tokens.no_seed,
    of_rows.FirstDifferenceAt: rows.first_difference_at,
    of_rows.DriftSize: rows.drift_size,
    of_rows.DriftGrows: rows.drift_grows,
    of_rows.OriginsAbsorbed: rows.origins_absorbed,
    of_rows.RowRelation: rows.row_relation,
    of_rows.StaleRow: rows.stale_row,
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
    of_rows.RepeatsDiffer: rows.repeats_differ,
    of_rows.RoutingDiffers: rows.routing_differs,
    of_rows.RowsShifted: rows.rows_shifted,
    of_rows.CachedTokensRead: rows.cached_tokens_read,
    of_rows.CacheBoundary: rows.cache_boundary,
    of_rows.NotFinite: rows.not_finite,
    of_rows.PrefillEqual: rows.prefill_equal,
    of_rows.ReferenceDistance: reference.reference_distance,
    of_reference.NotJudged: reference.not_judged,
    of_reference.ReferenceNote: reference.reference_note,
    of_sequences.AgreementNote: agreement_note,
    of_tokens.Margins: tokens.margins,
    of_tokens.SequenceEnded: tokens.sequence_ended,
    of_tokens.SameLogits: tokens.same_logits,
    of_tokens.DrawStream: tokens.draw_stream,
    of_tokens.ProcessedLogits: tokens.processed_logits,
    of_tokens.CandidateOrder: tokens.candidate_order,
    of_tokens.CandidatesFiltered: tokens.candidates_filtered,
    of_tokens.LogprobDrift: tokens.logprob_drift,
    of_tokens.PromptsDiffer: tokens.prompts_differ,
    of_unseen.RowsUnseen: reasons.rows_unseen,
    of_unseen.NoEvidence: reasons.no_evidence,
    of_unseen.Note: reasons.note,
    of_unseen.UnfinishedRun: reasons.unfinished_run,
    of_unseen.PartIgnored: reasons.part_ignored,
    of_unseen.RowsIgnored: reasons.rows_ignored,
    of_unseen.SequencesLeftOut: reasons.sequences_left_out,
    of_unseen.SitesLeftOut: reasons.sites_left_out,
    of_unseen.AfterDivergence: reasons.after_divergence,
    of_unseen.TextOnly: reasons.text_only,
    of_unseen.HashesMissing: reasons.hashes_missing,
    of_unseen.NotRecorded: reasons.not_recorded,
    of_unseen.SummariesDiffer: reasons.summaries_differ,
    of_unseen.LogprobKinds: reasons.logprob_kinds,
    of_unseen.ObserverChanged: reasons.observer_changed,
    of_levels.Plain: reasons.plain_reason,
    of_levels.HashesCompared: reasons.hashes_compared,
    of_levels.DtypesDiffer: reasons.dtypes_differ,
    of_levels.Measured: reasons.measured,
    of_levels.Tolerance: reasons.tolerance,
    of_levels.Incomplete: reasons.incomplete,
    of_levels.Unseeded: reasons.unseeded,
    of_levels.TextsCompared: reasons.texts_compared,
    of_levels.TokensForced: reasons.tokens_forced,
    of_experiments.RunCompared: experiments.run_compared,
    of_experiments.RepeatsCompared: experiments.repeats_compared,
    of_experiments.NotAsAsked: experiments.not_as_asked,
    of_experiments.LargestDrift: experiments.largest_drift,
    of_experiments.BeyondRounding: experiments.beyond_rounding,
    of_experiments.RunFailed: experiments.run_failed,
    of_experiments.Limit: experiments.limit,
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


INTERPRETATIONS: dict[Interpretation, str] = {
    "prompts part": "it lists the tokens at which the prompts part",
    "environment changed": "it lists what changed between the two environments",
    "rows not finite": "it lists the rows that are not finite, the first of them first",
    "same setting as A": (
        "if the new run equals A, this is the cause; if it equals B, the cause is something else"
    ),
    "repeats at the same place": (
        "if every repeat differs from A at the same place, B's lane always does so; if they equal A, it was "
        "a one-off; if they differ from each other, B does not repeat itself"
    ),
    "repeats differ": "repeats that differ from each other confirm it",
    "repeats choose": (
        "if every repeat chooses B's tokens, it is a setting of B (its defaults, its generation config); if "
        "they equal A, it was a one-off; if they differ from each other, it is random state"
    ),
    "ends the same": (
        "if it ends at the same token, the rule is one of B's lane: its defaults or its generation config"
    ),
    "state A's value": (
        "it repeats B as it was; state A's value in B's envelope, and it equals A if this is the cause"
    ),
    "fresh cache": (
        "it has a cache of its own: if it equals A, entries of the recorded run were wrong; if it differs "
        "at the same place, what writes or reads the cache is"
    ),
    "rows of one prefill": "if rows computed in one prefill equal A's, decoding alone is at fault",
    "forced tokens": (
        "with A's tokens forced every step can be compared: logits that differ by no more than here "
        "confirm it"
    ),
    "ratio over all positions": "the same ratio over all positions, with A's tokens forced, confirms it",
    "module computes it otherwise": (
        "if the new run equals A, this module computes a batch wrongly: rounding does not leave that; if it "
        "still differs here, the batch is not the reason"
    ),
    "other padding side": (
        "the padding moves to the other side: if the first difference moves or changes with it, padding is "
        "part of the cause; a batch of requests of one length has none"
    ),
}


def how_to_read(cause: Cause) -> str | None:
    """How to read what the confirming command of a cause gives; None: there is none."""
    if cause.interpretation is None:
        return cause.interpretation_text
    return INTERPRETATIONS[cause.interpretation]


Some = TypeVar("Some", bound=Record)


def with_sentences(verdict: Verdict) -> Verdict:
    """The same verdict, with the sentence of each finding and the label of each cause beside its data."""
    worded = _worded(verdict)
    if worded.reference is None:
        return worded
    said = {"sentence": reference_sentence(worded.reference)}
    return worded.model_copy(update={"reference": worded.reference.model_copy(update=said)})


def _worded(record: Some) -> Some:
    """A record whose findings, at any depth, carry their sentences."""
    changed: dict[str, Any] = {}
    for name in type(record).model_fields:
        value = getattr(record, name)
        new = _of_value(value)
        if new is not value:
            changed[name] = new
    if isinstance(record, Statement):
        changed["text"] = sentence(record)
    if isinstance(record, Cause):
        changed.update(label=label(record), interpretation_text=how_to_read(record))
    return record.model_copy(update=changed) if changed else record


def _of_value(value: Any) -> Any:
    if isinstance(value, Record):
        return _worded(value)
    if isinstance(value, list) and value and isinstance(value[0], Record):
        return [_worded(one) for one in value]
    if isinstance(value, dict) and any(isinstance(one, Record) for one in value.values()):
        return {key: _of_value(one) for key, one in value.items()}
    return value
