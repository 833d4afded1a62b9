"""What a comparison could not see, as data."""

from __future__ import annotations

from ...schemas.findings.unseen import (
    AfterDivergence,
    HashesMissing,
    LogprobKinds,
    Note,
    NotRecorded,
    NotSeen,
    ObserverChanged,
    TextOnly,
)
from ...schemas.trace import TraceHeader
from ..reading.load import Trace
from .pairing import Outputs, Pairing
from .tally import Tally


def not_seen(tally: Tally, a: Trace, b: Trace, pairing: Pairing) -> list[NotSeen]:
    """Everything that limits what the verdict says.

    Args:
        tally: What was compared.
        a: The trace A.
        b: The trace B.
        pairing: Which sequences were compared.
    """
    found: list[NotSeen] = [
        *a.unread,
        *b.unread,
        *pairing.left_out,
        *_texts(pairing),
        *tally.plan.limits,
    ]
    if tally.pairs:
        found += _rows(tally, a, b)
    found += _logprobs(a.header, b.header, tally.steps_by_logprob > 0)
    for trace in (a, b):
        name, observer = trace.path.name, trace.header.observer
        if trace.header.fingerprint is None:
            found.append(NotRecorded(what="fingerprint", trace=name))
        if observer.state == "changed":
            found.append(ObserverChanged(trace=name, why=observer.why))
        found += [Note(trace=name, note=note) for note in trace.header.not_seen]
    return [one for index, one in enumerate(found) if one not in found[:index]]


def _texts(pairing: Pairing) -> list[NotSeen]:
    if not pairing.texts:
        return []

    def lacks(outputs: Outputs) -> bool:
        return any(text.key not in outputs.sequences for text in pairing.texts)

    names = [outputs.trace.path.name for outputs in (pairing.a, pairing.b) if lacks(outputs)]
    return [TextOnly(sequences=len(pairing.texts), traces=names)]


def _rows(tally: Tally, a: Trace, b: Trace) -> list[NotSeen]:
    unseen: list[NotSeen] = []
    length = sum(state.pair.length for state in tally.pairs)
    if tally.positions < length:
        unseen.append(
            AfterDivergence(
                positions=length - tally.positions,
                of=length,
                sequences=sum(state.pair.divergence is not None for state in tally.pairs),
                can_force=any(_forces(trace.header) for trace in (a, b)),
            )
        )
    hashed = len(tally.plan.sites) - int(tally.plan.by_sketch.sum())
    if missing := tally.positions * hashed - tally.rows:
        unseen.append(HashesMissing(count=missing))
    if not tally.logits_compared:
        unseen.append(NotRecorded(what="logits hash"))
    if not tally.steps_with_logits:
        unseen.append(NotRecorded(what="common candidates"))
    return unseen


def _forces(header: TraceHeader) -> bool:
    return header.abilities is None or "golden-decode" in header.abilities.modes


def _logprobs(a: TraceHeader, b: TraceHeader, compared: bool) -> list[NotSeen]:
    """A warning where log-probabilities of different kinds, or of an unknown kind, were compared."""
    one, other = (header.abilities.logprobs if header.abilities else "raw" for header in (a, b))
    if not compared or one == other == "raw" or one == "none" or other == "none":
        return []
    return [LogprobKinds(a=one, b=other)]
