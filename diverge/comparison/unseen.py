"""What a comparison could not see, in sentences."""

from __future__ import annotations

from ...schemas.trace import TraceHeader
from ..present.format import plural
from ..reading.load import Trace
from .pairing import Outputs, Pairing
from .tally import Tally

_LOGPROBS = {
    "raw": "raw",
    "processed": "those after the logits processors and the temperature",
    "unknown": "raw or processed, its engine does not say",
}


def not_seen(tally: Tally, a: Trace, b: Trace, pairing: Pairing) -> list[str]:
    """Everything that limits what the verdict says.

    Args:
        tally: What was compared.
        a: The trace A.
        b: The trace B.
        pairing: Which sequences were compared.
    """
    unseen = [*a.notes, *b.notes, *pairing.notes, *_texts(pairing), *tally.plan.notes]
    if tally.pairs:
        unseen += _rows(tally, a, b)
    unseen += _logprobs(a.header, b.header, tally.steps_by_logprob > 0)
    for trace in (a, b):
        if trace.header.fingerprint is None:
            unseen.append(
                f"{trace.path.name} has no fingerprint, so changes of its environment are not known"
            )
        if trace.header.observer.state == "changed":
            unseen.append(f"{trace.path.name}: observing changed the result ({trace.header.observer.why})")
        unseen += [f"{trace.path.name}: {line}" for line in trace.header.not_seen]
    return list(dict.fromkeys(unseen))


def _texts(pairing: Pairing) -> list[str]:
    if not pairing.texts:
        return []

    def lacks(outputs: Outputs) -> bool:
        return any(text.key not in outputs.sequences for text in pairing.texts)

    names = [outputs.trace.path.name for outputs in (pairing.a, pairing.b) if lacks(outputs)]
    hold = "hold" if len(names) > 1 else "holds"
    return [
        f"{plural(len(pairing.texts), 'sequence')} compared as text only: {' and '.join(names)} {hold} no "
        "token ids of them"
    ]


def _rows(tally: Tally, a: Trace, b: Trace) -> list[str]:
    unseen = []
    length = sum(state.pair.length for state in tally.pairs)
    if tally.positions < length:
        parted = sum(state.pair.divergence is not None for state in tally.pairs)
        forces = any(_forces(trace.header) for trace in (a, b))
        unseen.append(
            f"{length - tally.positions:,} of {length:,} positions come after the tokens part in "
            f"{plural(parted, 'sequence')}, so their numbers cannot be compared"
            + (": force one side's tokens on the other (--mode golden-decode)" if forces else "")
        )
    hashed = len(tally.plan.sites) - int(tally.plan.by_sketch.sum())
    absent = tally.positions * hashed - tally.rows
    if absent:
        unseen.append(
            f"{plural(absent, 'row hash')} not computed on both sides (cached, or never fed to the model)"
        )
    if not tally.logits_compared:
        unseen.append("no logits hash is in both traces, so equal logits cannot be proved")
    if not tally.steps_with_logits:
        unseen.append("no candidate is in the top-K of both traces, so the drift of logits is not known")
    return unseen


def _forces(header: TraceHeader) -> bool:
    return header.abilities is None or "golden-decode" in header.abilities.modes


def _logprobs(a: TraceHeader, b: TraceHeader, compared: bool) -> list[str]:
    """A warning where log-probabilities of different kinds, or of a kind that nobody tells, were compared."""
    kinds = [header.abilities.logprobs if header.abilities else "raw" for header in (a, b)]
    if not compared or kinds == ["raw", "raw"] or "none" in kinds:
        return []
    said = [f"{_LOGPROBS[kind]} in {side}" for kind, side in zip(kinds, "AB", strict=True)]
    may = "a difference may come from sampling settings alone"
    return [f"log-probabilities are {' and '.join(said)}: {may}"]
