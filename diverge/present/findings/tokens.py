"""Sentences of evidence in prompts, choices of tokens and ends of outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ....schemas.findings.execution import (
    DtypeDiffers,
    ExecutionDiffers,
    FieldChanged,
    NoSeed,
    PassDiffers,
    SamplingDiffers,
    SettingDiffers,
    SeveralDiffer,
    ShapeDiffers,
    TensorOfModule,
    TensorsChanged,
    VariableChanged,
)
from ....schemas.findings.tokens import (
    CandidateOrder,
    CandidatesFiltered,
    DrawStream,
    LogprobDrift,
    Margins,
    ProcessedLogits,
    PromptsDiffer,
    SameLogits,
    SamplingFilter,
    SequenceEnded,
)
from ....schemas.lane import OF_OPTION
from ..format import listed, number, plural, shortened_pair
from .parts import at

_SHOWN = 8
"""Tokens that a sentence shows."""


def margins(found: Margins) -> str:
    return (
        f"margins {number(found.a)} in A and {number(found.b)} in B, drift of the {found.of} at that step "
        f"{number(found.drift)}: {'the drift alone is enough' if found.enough else 'too little'} for the flip"
    )


def sequence_ended(found: SequenceEnded) -> str:
    text = f"{found.side} ends before position {found.position}, with equal tokens up to there"
    if found.reason is not None:
        text += f"; finish reason {found.reason!r}"
        rule = {
            "stop": f": the stop string {found.rule_value!r} ends its text",
            "stop_token_ids": f": its last token, {found.rule_value}, is one of the stated stop_token_ids",
            "max_tokens": f", where max_tokens={found.rule_value} is stated",
        }
        text += "" if found.rule is None else rule[found.rule]
    if found.other_reason is not None:
        text += f"; the other side went on, finish reason {found.other_reason!r}"
    return text


def same_logits(found: SameLogits) -> str:
    if found.step is None:
        return "the deciding logits are equal"
    tokens = f"the chosen tokens are {found.token_a} in A and {found.token_b} in B"
    text = f"the logits that chose step {found.step} are bit-identical"
    if found.draw_a is None or found.draw_b is None:
        return f"{text}, {tokens}"
    if found.draw_a == found.draw_b:
        return f"{text}, so is the uniform draw ({found.draw_a:.6f}); {tokens}"
    return f"{text}, the uniform draw is {found.draw_a:.6f} in A and {found.draw_b:.6f} in B"


def draw_stream(found: DrawStream) -> str:
    if found.relation == "shifted" and found.ahead is not None:
        return f"it is the same random stream, and {ahead(found.ahead)} in it"
    if found.relation == "other stream":
        return "no shift makes the two series of draws agree: a different stream (a different seed)"
    if found.relation == "different start":
        return f"draws taken before the sequence's first: {found.start_a} in A, {found.start_b} in B"
    starts = ", ".join(str(start) for start in found.starts)
    return (
        f"in {found.side} the sequences share one stream: {starts} draws came before their first; on "
        "the other side every sequence starts its own"
    )


def ahead(count: int) -> str:
    """`B is 2 numbers ahead`."""
    return f"{'B' if count > 0 else 'A'} is {plural(abs(count), 'number')} ahead"


def processed_logits(found: ProcessedLogits) -> str:
    text = (
        "the raw logits are bit-identical; after the logits processors the likeliest is token "
        f"{found.token_a} with {found.logit_a:.5g} in A, token {found.token_b} with {found.logit_b:.5g} in B"
    )
    if found.temperature_a is not None and found.temperature_b is not None:
        return f"{text}; {temperatures(found)} explain that"
    if found.changed_by is None:
        return text
    text += (
        f"; only {found.changed_by} changes the logits there: a penalty, a bias, a bad word or a constraint"
    )
    if found.raw is None:
        return text
    of_a = found.changed_by == "A"
    token, after = (found.token_a, found.logit_a) if of_a else (found.token_b, found.logit_b)
    moved = after - found.raw
    change = f", {moved:+.5g}" if moved else ": others are lowered"
    return f"{text}; token {token} has {found.raw:.5g} before and {after:.5g} after it{change}"


def temperatures(found: ProcessedLogits) -> str:
    """`temperatures of 1 in A and 0.6 in B`."""
    return f"temperatures of {found.temperature_a:.4g} in A and {found.temperature_b:.4g} in B"


def candidate_order(found: CandidateOrder) -> str:
    text = (
        f"over the candidates from the likeliest down the recorded draws give all {found.tested} tokens that "
        f"{found.side} chose; over the candidates by id they do not"
    )
    return f"{text}; on the other side the order by id gives every token" if found.other_by_id else text


def candidates_filtered(found: CandidatesFiltered) -> str:
    return (
        f"the recorded draws give every token of {found.side} with {filters(found.filters)}, and not without"
    )


def filters(found: Sequence[SamplingFilter]) -> str:
    """`top_k=3 or top_p near 0.50`."""
    return " or ".join(_filter(one) for one in found)


def _filter(one: SamplingFilter) -> str:
    if one.name != "top_k":
        return f"{one.name} near {one.low:.2f}"
    return f"top_k={one.low:.0f}" if one.low == one.high else f"top_k from {one.low:.0f} to {one.high:.0f}"


def logprob_drift(found: LogprobDrift) -> str:
    return f"the log-probabilities of the candidates differ by at most {number(found.largest)} there"


def prompts_differ(found: PromptsDiffer) -> str:
    a, b = token_ids(found.tokens_a), token_ids(found.tokens_b)
    if found.how == "tokens":
        return f"the prompts part at position {found.position}: {a} in A, {b} in B"
    if found.how == "same text":
        return (
            f"the prompts have the same text, and {found.length_a} token ids in A and {found.length_b} in B; "
            f"from position {found.position} on: {a} in A, {b} in B"
        )
    if found.how == "inserted":
        text = "" if found.inserted_text is None else f" ({found.inserted_text!r})"
        return (
            f"the prompt of {found.side} has {found.count} more at position {found.position}: "
            f"{a if found.side == 'A' else b}{text}; the rest is equal"
        )
    if found.how == "clock":
        return (
            f"the prompts differ in dates and times only, first {found.clock_a!r} in A and "
            f"{found.clock_b!r} in B: a chat template that reads a clock writes another prompt each time"
        )
    if found.how in ("BOS doubled", "BOS missing"):
        token = token_ids((found.tokens_b or found.tokens_a)[:1])
        if found.how == "BOS missing":
            return f"the prompt of {found.side} is the other's without {token}, which begins a text (BOS)"
        return (
            f"the prompt of {found.side} begins with {found.count} more of {token}, which begins a text "
            "(BOS): a rendered template that holds it was encoded with special tokens again"
        )
    end = "first" if found.how == "first tokens missing" else "last"
    lost = b if found.side == "A" else a
    length = found.length_b if found.side == "A" else found.length_a
    return (
        f"the prompt of {found.side} is the other's without its {end} {found.count} of {length} tokens "
        f"({lost})"
    )


def token_ids(ids: Sequence[int]) -> str:
    """`tokens 3, 4, …`."""
    if not ids:
        return "no token"
    shown = ", ".join(str(token) for token in ids[:_SHOWN])
    return f"token{'s' * (len(ids) > 1)} {shown}{', …' if len(ids) > _SHOWN else ''}"


_SHOWN_OF_LANE = 60
"""Characters of a value that a sentence shows."""
_OF = {"engine": "engines", "mode": "modes", "channel": "observed as"}


def setting_differs(found: SettingDiffers) -> str:
    a, b = f"{found.a} in A", f"{found.b} in B"
    values = {
        "A": f"{a}, not stated in B",
        "B": f"{b}, not stated in A",
        "both": f"{a}, {b}",
    }[found.stated_in]
    return f"{'sent together, ' if found.sent_together else ''}{found.name}: {values}"


def sampling_differs(found: SamplingDiffers) -> str:
    stated = {found.source_a, found.source_b} & {"envelope", OF_OPTION}
    return (
        f"{found.name}: {json.dumps(found.a)} ({found.source_a}) in A, {json.dumps(found.b)} "
        f"({found.source_b}) in B{'' if stated else ' (not stated in the envelope)'}"
    )


def shape_differs(found: ShapeDiffers) -> str:
    return f"{found.name}: {found.a} in A, {found.b} in B"


def dtype_differs(found: DtypeDiffers) -> str:
    return f"dtype of the observed rows: {found.a} in A, {found.b} in B"


def execution_differs(found: ExecutionDiffers) -> str:
    return f"{_OF[found.of]}: {found.a} in A, {found.b} in B"


def pass_differs(found: PassDiffers) -> str:
    if found.how == "prefill or decode":
        decoded, prefilled = ("A", "B") if found.a < found.b else ("B", "A")
        return (
            f"{decoded} computed the first differing row alone (decode), {prefilled} in a pass of "
            f"{max(found.a, found.b)} tokens (prefill): {at(found.site, found.position)}"
        )
    return (
        f"golden-prefill computes prompt and answer in one pass: {at(found.site, found.position)} was one of "
        f"{found.a} tokens in A and one of {found.b} in B"
    )


def several_differ(found: SeveralDiffer) -> str:
    return f"several things differ at once: {', '.join(found.names)}"


def field_changed(found: FieldChanged) -> str:
    return f"changed in the fingerprint: {_field(found)}"


def _field(found: FieldChanged) -> str:
    name = ".".join((found.section, found.field, *found.path))
    more = f" (and {found.others} more)" if found.others else ""
    before, after = shortened_pair(found.before, found.after, _SHOWN_OF_LANE)
    return f"{name}: {before} → {after}{more}"


def variable_changed(found: VariableChanged) -> str:
    follows = [_field(one) for one in found.follows]
    return variable(found) + (f"; from it follows {', '.join(follows)}" if follows else "")


def variable(found: VariableChanged) -> str:
    """`OMP_NUM_THREADS: not set → 4`."""
    before, after = ("not set" if value is None else value for value in (found.before, found.after))
    before, after = shortened_pair(before, after, _SHOWN_OF_LANE)
    return f"{found.name}: {before} → {after}"


def tensors_changed(found: TensorsChanged) -> str:
    return f"tensors that changed: {listed(found.names, len(found.names), found.count)}"


def tensor_of_module(found: TensorOfModule) -> str:
    place = at(found.site, found.position)
    what = "the drift grows" if found.role == "grows" else "the difference begins"
    return f"{found.tensor} belongs to the module where {what}: {place}"


def no_seed(found: NoSeed) -> str:
    return f"{found.engine}, the engine of {found.side}, takes no seed: its draws cannot be repeated"
