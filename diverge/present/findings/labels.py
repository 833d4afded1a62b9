"""What a cause is called: from its id, its subject and its evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ....schemas.findings.execution import FieldChanged, VariableChanged
from ....schemas.findings.rows import (
    ChannelsDiffering,
    DriftGrows,
    ExpertsAtFault,
    LogitsDiffering,
    NotFinite,
    RoutingDiffers,
    RowRelation,
    RowsShifted,
    StaleRow,
)
from ....schemas.findings.statement import Statement, other_side
from ....schemas.findings.tokens import (
    CandidatesFiltered,
    DrawStream,
    ProcessedLogits,
    PromptsDiffer,
    SequenceEnded,
)
from ....schemas.verdict import Cause, Subject
from ..format import plural
from .parts import at, experts, module, times
from .rows import relation, shift
from .tokens import ahead, filters, temperatures, variable

Found = TypeVar("Found", bound=Statement)

LABELS = {
    "tokenizer": "Same prompt text, different token ids",
    "prompt-clock": "The prompts differ only in a date or time: a template reads the clock",
    "prompt-truncated": "One prompt is a part of the other",
    "prompt-insertion": "Tokens were inserted into the prompt or left out",
    "prompt": "The prompts differ",
    "length-limit": "One output is longer: different output limit",
    "stop-rule": "One output is longer: a stop rule was not applied",
    "length": "One output is longer: a stop rule or a length limit",
    "non-finite": "Non-finite values",
    "sampling-contract": "Different sampling settings",
    "no-seed": "The engine takes no seed",
    "seed-scope": "Equal logits: the random stream is shared between requests",
    "rng": "Equal logits, different draw: random state",
    "logits-processing": "Equal logits, processed differently: temperature, penalty, bias or constraint",
    "candidate-order": "Equal logits and draw: different order of the candidates",
    "sampling-filter": "Equal logits and draw: candidates filtered differently",
    "sampler": "Equal logits, different token: a sampler or random state",
    "weights": "Different weights",
    "model-config": "Different model configuration",
    "dtype": "Different dtype or quantization",
    "not-repeatable": "A run that does not repeat itself",
    "batch-rows": "Identical rows of one batch differ",
    "moe-routing": "Different experts were chosen",
    "positions": "Different positions, or a different position table",
    "kv-cache": "KV cache: stale, foreign or corrupted entries",
    "batch-shape": "Different batch shape",
    "padding": "Different padding",
    "prefill-decode": "Prefill against decode path",
    "cache-boundary": "Different cache or chunk boundary",
    "prefill-chunk": "Different prefill chunking",
    "attention-backend": "Different attention backend",
    "threads": "Different CPU threads or instruction set",
    "parallel-topology": "Different parallel topology",
    "graph-path": "Eager against graph or compiled",
    "kernel": "Different engine, library or kernel",
    "drift-grows": "A module whose drift is no rounding",
    "beyond-rounding": "Beyond rounding: one side is farther from the reference",
    "decode-path": "Decoding only: its kernel, its graph or stale weights",
    "stale-output": "Stale output: a row repeats an earlier one",
    "one-row": "Single wrong rows of a module",
    "module": "The module itself",
    "moe-routing-behind": "The difference makes routers choose different experts",
    "own-draws": "Drawn tokens: each engine has random numbers of its own",
    "near-tie": "Near tie: the drift flips the choice",
}
"""By id, where the evidence names nothing more exact."""


def label(cause: Cause) -> str:
    """A cause's name; of a document of version 1, or of an unknown cause, the one it was written with."""
    if cause.id not in LABELS or (cause.label and all(one.kind == "sentence" for one in cause.evidence)):
        return cause.label or cause.id
    exact = _EXACT.get(cause.id)
    return (exact and exact(cause)) or LABELS[cause.id]


def _of(cause: Cause, kind: type[Found]) -> Found | None:
    """The first evidence of a kind."""
    return next((one for one in cause.evidence if isinstance(one, kind)), None)


def _prompt(cause: Cause) -> str | None:
    found = _of(cause, PromptsDiffer)
    if found is None or found.how == "same text":
        return None
    other = other_side(found.side or "B")
    count = plural(found.count, "token")
    if found.how in ("BOS doubled", "BOS missing"):
        if found.how == "BOS missing":
            return f"{found.side}'s prompt begins without the token that begins a text (BOS)"
        return f"{found.side}'s prompt begins with the token that begins a text (BOS) twice"
    if found.how == "tokens":
        text = f"the prompts part at position {found.position}"
    elif found.how == "inserted":
        text = f"{found.side}'s prompt has {count} at position {found.position} that {other}'s does not have"
    else:
        end = "first" if found.how == "first tokens missing" else "last"
        text = f"{found.side}'s prompt lacks the {end} {count} of {other}'s"
    changed = any(isinstance(one, FieldChanged) and one.section == "template" for one in cause.evidence)
    return f"Different chat template: {text}" if changed else f"{text[0].upper()}{text[1:]}"


def _ended(cause: Cause) -> str | None:
    """Which side did not keep to what both requests state."""
    found = _of(cause, SequenceEnded)
    if found is None:
        return None
    early = found.step is not None and found.limit is not None and found.step < found.limit
    if found.reason == "length" and early:
        return f"{found.side} stopped after {found.step} of the {found.limit} tokens that are stated"
    if found.reason == "stop" and found.rule is not None and found.same_limit:
        other = other_side(found.side)
        return f"{other} went on where a stated stop rule ended {found.side}"
    return None


def _not_finite(cause: Cause) -> str | None:
    found = _of(cause, NotFinite)
    if found is None or found.site is None:
        return None
    return f"Non-finite values, first in {at(found.site, found.position)}"


def _routing(cause: Cause) -> str | None:
    found = _of(cause, RoutingDiffers)
    if found is not None and found.same_experts:
        return "The same experts in a different order, with equal scores: their weights or their order"
    chosen = "" if found is None else experts(found.experts_a, found.experts_b)
    return f"Different experts were chosen with equal scores: {chosen}" if chosen else None


def _routing_behind(cause: Cause) -> str | None:
    found = _of(cause, RoutingDiffers)
    if found is None or not found.same_experts:
        return None
    return "The difference changes the order or the weights of the chosen experts, not which they are"


def _positions(cause: Cause) -> str | None:
    found = _of(cause, RowsShifted)
    if found is None or found.shift is None:
        return None
    if found.padded == found.shift:
        side = "B" if found.shift > 0 else "A"
        return f"Padding is counted in {side}'s positions: they are {shift(found.shift)} in B"
    return f"Position ids are {shift(found.shift)} in B from position {found.position} on"


def _rng(cause: Cause) -> str | None:
    found = _of(cause, DrawStream)
    if found is None:
        return None
    if found.relation == "shifted" and found.ahead is not None:
        return f"Equal logits, different draw: {ahead(found.ahead)} in the same random stream"
    if found.relation == "other stream":
        return "Equal logits, different draw: a different random stream, as of a different seed"
    return None


def _logits_processing(cause: Cause) -> str | None:
    found = _of(cause, ProcessedLogits)
    if found is None:
        return None
    if found.temperature_a is not None and found.temperature_b is not None:
        return f"Equal logits, scaled as by {temperatures(found)}"
    if found.not_applied is not None and found.changed_by is not None:
        other = other_side(found.changed_by)
        return f"Equal logits: {found.not_applied}, which both requests state, is not applied in {other}"
    return None


def _filtered(cause: Cause) -> str | None:
    found = [one for one in cause.evidence if isinstance(one, CandidatesFiltered)]
    sides = [f"{one.side}'s candidates are filtered, as by {filters(one.filters)}" for one in found]
    return f"Equal logits and draw: {' and '.join(sides)}" if sides else None


def _variable(cause: Cause) -> str | None:
    found = _of(cause, VariableChanged)
    return None if found is None else variable(found)


def _config(cause: Cause) -> str | None:
    subject = cause.subject
    return None if subject is None else f"{LABELS['model-config']}, acting first in {subject.site}"


def _grows(cause: Cause) -> str | None:
    found = _of(cause, DriftGrows)
    if found is None:
        return None
    return f"Beyond rounding: the drift grows {times(found.factor)} in {at(found.site, found.position)}"


def _decode_path(cause: Cause) -> str | None:
    subject = cause.subject
    if subject is None:
        return None
    if subject.within_rounding:
        return "Decoding only, within rounding: different kernel or a captured graph"
    stale = "" if subject.module == "attention" else "stale weights, "
    return f"Decoding only: {stale}a captured graph or a different kernel"


def _stale(cause: Cause) -> str | None:
    found = _of(cause, StaleRow)
    if found is None:
        return None
    place = at(found.site, found.position)
    return f"Stale output: {place} repeats B's own row of position {found.earlier}"


def _one_row(cause: Cause) -> str | None:
    subject, found = cause.subject, _of(cause, RowRelation)
    if subject is None:
        return None
    name = module(subject.module, subject.site)
    if subject.fault == "single row":
        return f"A single wrong row of {name}" + (f": it is {relation(found)}" if found else "")
    if subject.fault == "some rows":
        return f"Single wrong rows of {name}"
    return f"Wrong rows of {name} from position {subject.position} on"


def _module(cause: Cause) -> str | None:
    """The module and what is wrong with it, as far as the rows show it."""
    if cause.subject is None:
        return None
    name = module(cause.subject.module, cause.subject.site)
    return f"{name[0].upper()}{name[1:]}{_fault(cause, cause.subject)}"


def _fault(cause: Cause, subject: Subject) -> str:
    row, experts_, logits = (_of(cause, kind) for kind in (RowRelation, ExpertsAtFault, LogitsDiffering))
    if subject.fault == "row relation" and isinstance(row, RowRelation):
        channels = _of(cause, ChannelsDiffering)
        if row.relation == "signs flipped" and channels is not None and len(channels.lanes) == 1:
            return ": the sign of one output channel is flipped"
        return f": B's row is {relation(row)}"
    if subject.fault == "constant":
        return ": a constant is added or missing, as a bias is"
    if subject.fault == "experts" and isinstance(experts_, ExpertsAtFault):
        numbers = experts_.experts
        return f": only rows of expert{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} differ"
    if subject.fault == "token rows" and isinstance(logits, LogitsDiffering):
        tokens = [str(one.token) for one in logits.tokens]
        return f": the row{'s' * (len(tokens) > 1)} of token {', '.join(tokens)}"
    if subject.fault == "one channel":
        within = ", within rounding" if subject.within_rounding else ""
        return f": one output channel is off{within}, as one row of weights or one bias moves it"
    if subject.fault == "rounding":
        weights = "" if subject.module == "attention" else ", or the last bit of a weight"
        return f", consistent with rounding: different kernel or summation order{weights}"
    return f" itself: {_suspects(subject)}"


def _suspects(subject: Subject) -> str:
    """What of a module can be wrong where its inputs are equal and its output is beyond rounding."""
    if subject.module == "attention":
        if subject.position == 0:
            return "its values, heads or kernel: with one key, mask, scale and positions play no part"
        if subject.position == 1:
            return "its scale, mask or positions: the row that sees one key only is equal"
        if subject.equal_before:
            return f"its mask, window or positions: the first {subject.equal_before} rows are equal"
        return "its kernel, mask, scale or positions"
    if subject.other_values and subject.module in ("linear layer", "output head"):
        return "its weights"
    if subject.module == "norm":
        precision = "" if subject.other_values else " or the precision it is computed in"
        return f"its weights{' or' if subject.other_values else ','} its epsilon{precision}"
    if subject.module == "embeddings":
        return f"its row of token {subject.token}"
    if subject.module == "activation":
        return "a different function"
    if subject.module == "module":
        return "something that it adds to what its parts compute"
    return "its weights, or the precision they are computed in"


_EXACT: dict[str, Callable[[Cause], str | None]] = {
    "prompt": _prompt,
    "prompt-truncated": _prompt,
    "prompt-insertion": _prompt,
    "length-limit": _ended,
    "stop-rule": _ended,
    "length": _ended,
    "non-finite": _not_finite,
    "moe-routing": _routing,
    "moe-routing-behind": _routing_behind,
    "positions": _positions,
    "rng": _rng,
    "logits-processing": _logits_processing,
    "sampling-filter": _filtered,
    "model-config": _config,
    "attention-backend": _variable,
    "threads": _variable,
    "kernel": _variable,
    "decode-path": _decode_path,
    "drift-grows": _grows,
    "stale-output": _stale,
    "one-row": _one_row,
    "module": _module,
}
