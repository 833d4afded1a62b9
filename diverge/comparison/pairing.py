"""Which sequences of two traces are compared: by tokens, or as text where a side has no tokens.

Sequences are paired by (request_id, sample), and by cell where both traces have cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ...schemas.errors import BadInput, NothingCompared
from ...schemas.findings.unseen import RowsIgnored, SequencesLeftOut
from ...schemas.trace import TraceHeader
from ..reading.load import Trace
from .align import (
    IndexedSequence,
    Pair,
    SequenceKey,
    describe,
    duplicate_sequence_error,
    first_divergence,
    index_sequences,
    sequence_name,
)

Value = TypeVar("Value")

_NAMED = 3
"""Sequences that are named where many are left out."""


@dataclass(frozen=True)
class Outputs:
    """What one trace holds of its sequences, by their keys."""

    trace: Trace
    sequences: dict[SequenceKey, IndexedSequence]
    """Those with rows."""
    texts: dict[SequenceKey, str]
    """The generated text, where the trace holds it."""

    def all_keys(self) -> list[SequenceKey]:
        """All sequences, those with rows first."""
        return list(dict.fromkeys([*self.sequences, *self.texts]))


@dataclass(frozen=True)
class TextPair:
    """Two sequences that are compared as text, because a side has no token ids."""

    key: SequenceKey
    a: str
    b: str
    same_prompt: bool | None
    """Whether both have the same prompt; None: not recorded."""
    difference: int | None
    """First differing character; None: the texts are equal."""


@dataclass(frozen=True)
class Pairing:
    """What is compared."""

    a: Outputs
    b: Outputs
    pairs: list[Pair]
    """In A's order."""
    keys: list[SequenceKey]
    """Of the pairs."""
    texts: list[TextPair]
    left_out: list[RowsIgnored | SequencesLeftOut]
    """What cannot be compared."""
    missing: tuple[int, int]
    """Positions that the other trace has and that A and B lack because their runs were not finished."""

    def texts_equal(self, pair: Pair) -> bool | None:
        """Whether both sides of a pair generated the same text; None where a text is not recorded."""
        key = self.keys[pair.index]
        one, other = self.a.texts.get(key), self.b.texts.get(key)
        return None if one is None or other is None else one == other


def pair_sequences(a: Trace, b: Trace) -> Pairing:
    """Pair the sequences of two traces.

    Raises:
        NothingCompared: No position and no text is in both traces.
        BadInput: One trace has matrix cells, the other none, and a key is thereby ambiguous.
    """
    in_a, ignored_a = index_sequences(a)
    in_b, ignored_b = index_sequences(b)
    left_out: list[RowsIgnored | SequencesLeftOut] = [*ignored_a, *ignored_b]
    by_cell = any(key[2] for key in in_a) and any(key[2] for key in in_b)
    one, other = (
        Outputs(
            trace,
            _keyed(trace, sequences, by_cell),
            _keyed(trace, _texts(trace, sequences), by_cell),
        )
        for trace, sequences in ((a, in_a), (b, in_b))
    )
    pairs: list[Pair] = []
    keys: list[SequenceKey] = []
    for key, mine in one.sequences.items():
        theirs = other.sequences.get(key)
        if theirs is not None and min(mine.length, theirs.length):
            pairs.append(_pair(len(pairs), mine, theirs, a, b))
            keys.append(key)
    texts, forced = _text_pairs(one, other)
    left_out += [forced] if forced else []
    for mine_, theirs_ in ((one, other), (other, one)):
        known = set(theirs_.all_keys())
        alone = [key for key in mine_.all_keys() if key not in known]
        if alone:
            left_out.append(_left_out("only in one trace", mine_.trace, alone))
    if not pairs and not texts:
        raise _nothing(one, other)
    return Pairing(one, other, pairs, keys, texts, left_out, (_missing(one, other), _missing(other, one)))


def _left_out(
    kind: Literal["only in one trace", "text forced"], trace: Trace, keys: list[SequenceKey]
) -> SequencesLeftOut:
    first = [sequence_name(key) for key in keys[:_NAMED]]
    return SequencesLeftOut(kind=kind, trace=trace.path.name, count=len(keys), first=first)


def _nothing(one: Outputs, other: Outputs) -> NothingCompared:
    if set(one.all_keys()) & set(other.all_keys()):
        return NothingCompared(
            "nothing is in both traces: one has text only, the text of the other is forced or not recorded",
            "compare two free runs of the same requests (--mode free)",
        )
    names_a, names_b = (sorted({key[0] for key in outputs.all_keys()})[:2] for outputs in (one, other))
    return NothingCompared(
        f"the traces have no row in common: {one.trace.path.name} holds {names_a}…, "
        f"{other.trace.path.name} {names_b}…",
        "compare traces of the same requests: sequences are paired by request_id and sample",
    )


def _texts(trace: Trace, sequences: dict[SequenceKey, IndexedSequence]) -> dict[SequenceKey, str]:
    """The texts of a trace's results, each under the key of its rows where it has any."""
    keys = {known.number: key for key, known in sequences.items()}
    found: dict[SequenceKey, str] = {}
    for result in trace.header.results:
        key = keys.get(result.sequence, (result.request_id, result.sample, ""))
        if key in found:
            raise duplicate_sequence_error(trace, key)
        if result.text is not None:
            found[key] = result.text
    return found


def _text_pairs(one: Outputs, other: Outputs) -> tuple[list[TextPair], SequencesLeftOut | None]:
    """The sequences that both have and not both have tokens of; of a forced text nothing is compared."""
    keys = [
        key
        for key in one.all_keys()
        if key in other.texts and key in one.texts and not (key in one.sequences and key in other.sequences)
    ]
    forced = [trace for trace in (one.trace, other.trace) if trace.header.mode != "free"]
    if keys and forced:
        return [], _left_out("text forced", forced[0], keys)
    envelopes = _envelopes(one.trace.header), _envelopes(other.trace.header)
    pairs = [
        TextPair(
            key,
            one.texts[key],
            other.texts[key],
            _same_prompt(envelopes[0].get(key[0]), envelopes[1].get(key[0])),
            first_difference(one.texts[key], other.texts[key]),
        )
        for key in keys
    ]
    return pairs, None


def first_difference(a: str, b: str) -> int | None:
    """First character at which two texts differ; a strict prefix differs at its end; None: equal."""
    if a == b:
        return None
    same = zip(a, b, strict=False)
    return next((index for index, (x, y) in enumerate(same) if x != y), min(len(a), len(b)))


def _envelopes(header: TraceHeader) -> dict[str, dict[str, Any]]:
    """By request: its envelope, or only the envelope's digest."""
    return {
        request.request_id: {**(request.envelope or {}), "digest": request.envelope_sha256}
        for request in header.requests
    }


def _same_prompt(a: dict[str, Any] | None, b: dict[str, Any] | None) -> bool | None:
    if a is None or b is None:
        return None
    if a["digest"] == b["digest"]:
        return True
    for fields in (("prompt_token_ids",), ("messages", "tools"), ("prompt_text",)):
        if a.get(fields[0]) is not None and b.get(fields[0]) is not None:
            return all(a.get(field) == b.get(field) for field in fields)
    return None


def _pair(index: int, one: IndexedSequence, other: IndexedSequence, a: Trace, b: Trace) -> Pair:
    divergence = first_divergence(one.tokens, other.tokens)
    shorter = a if one.length < other.length else b
    if shorter.unfinished and divergence == min(one.length, other.length):
        return Pair(index, one, other, None, cut=True)
    return Pair(index, one, other, divergence)


def _missing(mine: Outputs, theirs: Outputs) -> int:
    """Positions of requests of this trace that only the other one has, where this run was not finished."""
    if not mine.trace.unfinished:
        return 0
    requests = {request.request_id for request in mine.trace.header.requests}
    missing = 0
    for key, other in theirs.sequences.items():
        here = mine.sequences[key].tokens if key in mine.sequences else np.empty(0, np.int32)
        if key[0] in requests and first_divergence(here, other.tokens) == len(here):
            missing += other.length - len(here)
    return missing


def _keyed(trace: Trace, found: dict[SequenceKey, Value], by_cell: bool) -> dict[SequenceKey, Value]:
    keyed: dict[SequenceKey, Value] = {}
    for (request_id, sample, cell), value in found.items():
        key = (request_id, sample, cell if by_cell else "")
        if key in keyed:
            raise BadInput(
                f"{trace.path}: {describe(key)} ran in several cells, and the other trace has no cells",
                "compare traces that both have cells, or a trace of one cell",
            )
        keyed[key] = value
    return keyed
