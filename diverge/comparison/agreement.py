"""How often outputs agree where requests ran several times: unique outputs, TARr@N, pairs, Wilson intervals.

Shares and intervals only: no hypothesis is tested, so nothing is claimed about whether two traces differ more
than each does within itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...schemas.lane import Setting
from ...schemas.sequences import (
    Agreement,
    AgreementLimit,
    AgreementNote,
    RequestAgreement,
    TraceAgreement,
)
from ...schemas.trace import TraceHeader
from ..reading.columns import RowReader
from ..statistics import wilson
from .align import SequenceKey, row_of
from .pairing import Outputs, Pairing

Group = tuple[str, str]
"""request_id, cell."""


def unseeded(header: TraceHeader) -> bool:
    """Whether tokens were drawn on an engine that takes no seed, so that no run of it can be repeated.

    What is greedy or forced is not drawn: it is held to its tokens as on any engine.
    """
    takes_seeds = header.abilities is None or header.abilities.seed
    drawn = header.mode == "free" and any(_is_drawn(request.sampling) for request in header.requests)
    return drawn and not takes_seeds


@dataclass
class _Samples:
    """What one trace generated for one request, by sample."""

    tokens: dict[int, bytes] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)

    def own(self) -> Sequence[bytes | str]:
        """The outputs to compare among themselves: token ids where there are any, else texts."""
        return list(self.tokens.values()) or list(self.texts.values())

    @property
    def has_texts_only(self) -> bool:
        return not self.tokens


def agreement(pairing: Pairing) -> Agreement | None:
    """How the outputs of two traces agree, within each trace and between the two.

    Returns:
        None where every request ran once and either is greedy or ran on an engine that takes a seed, or its
        samples were drawn from seeds of their own: the other levels say everything then.
    """
    traces = (pairing.a, pairing.b)
    several = any(_has_several(outputs) for outputs in traces)
    if not several and not any(unseeded(outputs.trace.header) for outputs in traces):
        return None
    sides = [_samples(outputs) for outputs in traces]
    shared = [group for group in sides[0] if group in sides[1]]
    requests = [_request(group, sides[0][group], sides[1][group]) for group in shared]
    counted = [found for found in requests if found is not None]
    pairs, equal = sum(found.pairs for found in counted), sum(found.pairs_equal for found in counted)
    return Agreement(
        a=_within([(len(found.own()), len(set(found.own()))) for found in sides[0].values()]),
        b=_within([(len(found.own()), len(set(found.own()))) for found in sides[1].values()]),
        both=_within([(found.samples_a + found.samples_b, found.unique_both) for found in counted]),
        pairs=wilson(equal, pairs) if pairs else None,
        requests=counted,
        notes=_notes(pairing, several),
    )


def _within(requests: list[tuple[int, int]]) -> TraceAgreement | None:
    """From (samples, different outputs) of each request."""
    counts = [(samples, unique) for samples, unique in requests if samples > 1]
    if not counts:
        return None
    sizes = [samples for samples, _ in counts]
    return TraceAgreement(
        samples=min(sizes),
        most_samples=max(sizes),
        all_agree=wilson(sum(unique == 1 for _, unique in counts), len(counts)),
    )


def _request(group: Group, a: _Samples, b: _Samples) -> RequestAgreement | None:
    """One request in both traces; None where they have nothing of one kind."""
    by_text = a.has_texts_only or b.has_texts_only
    one: dict[int, bytes] | dict[int, str] = a.texts if by_text else a.tokens
    other: dict[int, bytes] | dict[int, str] = b.texts if by_text else b.tokens
    if not one or not other:
        return None
    both = sorted(set(one) & set(other))
    return RequestAgreement(
        request_id=group[0],
        by="text" if by_text else "token ids",
        samples_a=len(one),
        unique_a=len(set(a.own())),
        samples_b=len(other),
        unique_b=len(set(b.own())),
        unique_both=len({*one.values(), *other.values()}),
        pairs=len(both),
        pairs_equal=sum(one[sample] == other[sample] for sample in both),
    )


def _counts(outputs: Outputs) -> bool:
    """False for a run that forced its tokens, or was not finished: its outputs show nothing here."""
    return outputs.trace.header.mode == "free" and not outputs.trace.unfinished


def _has_several(outputs: Outputs) -> bool:
    """Whether some request ran more than once with the same seed."""
    drawn = _own_seeds(outputs.trace.header)
    groups = [(request_id, cell) for request_id, _, cell in outputs.all_keys() if request_id not in drawn]
    return _counts(outputs) and len(set(groups)) < len(groups)


def _samples(outputs: Outputs) -> dict[Group, _Samples]:
    """What a trace generated, by request; without samples that were drawn from seeds of their own."""
    found: dict[Group, _Samples] = {}
    if not _counts(outputs):
        return found
    drawn = _own_seeds(outputs.trace.header)
    for (request_id, sample, cell), tokens in _generated(outputs).items():
        if request_id not in drawn:
            found.setdefault((request_id, cell), _Samples()).tokens[sample] = tokens
    for (request_id, sample, cell), text in outputs.texts.items():
        if request_id not in drawn:
            found.setdefault((request_id, cell), _Samples()).texts[sample] = text
    return found


def _generated(outputs: Outputs) -> dict[SequenceKey, bytes]:
    """The generated token ids of every sequence with rows, as bytes."""
    known = [(key, sequence) for key, sequence in outputs.sequences.items() if sequence.length]
    last = [(row_of(outputs.trace, sequence, sequence.length - 1), 1) for _, sequence in known]
    steps = RowReader(outputs.trace, ["step"]).read(last).column("step").to_pylist()
    found: dict[SequenceKey, bytes] = {}
    for (key, sequence), step in zip(known, steps, strict=True):
        count = 0 if step is None else step + 1  # the last token's step shows where the prompt ends
        found[key] = np.ascontiguousarray(sequence.tokens[sequence.length - count :]).tobytes()
    return found


def _notes(pairing: Pairing, several: bool) -> list[AgreementLimit]:
    notes: list[AgreementLimit] = []
    for outputs in (pairing.a, pairing.b):
        header, name = outputs.trace.header, outputs.trace.path.name
        if header.mode != "free":
            notes.append(AgreementNote(kind="forced", trace=name))
        elif outputs.trace.unfinished:
            notes.append(AgreementNote(kind="unfinished", trace=name))
        elif seeds := _own_seeds(header):
            notes.append(AgreementNote(kind="own seeds", trace=name, requests=len(seeds)))
    if not several:
        notes.append(AgreementNote(kind="one sample"))
    return notes


def _own_seeds(header: TraceHeader) -> set[str]:
    """Requests whose samples are drawn, each from a seed of its own: they differ by design."""
    if unseeded(header):
        return set()
    return {request.request_id for request in header.requests if _has_drawn_samples(request.sampling)}


def _has_drawn_samples(sampling: Mapping[str, Setting]) -> bool:
    n = sampling["n"].resolved if "n" in sampling else 1
    return isinstance(n, int) and n > 1 and _is_drawn(sampling)


def _is_drawn(sampling: Mapping[str, Setting]) -> bool:
    return "temperature" not in sampling or sampling["temperature"].resolved != 0
