"""Sentences of what could not be seen: earlier rows, evidence of causes, limits of the whole comparison."""

from __future__ import annotations

from ....schemas.findings.unseen import (
    AfterDivergence,
    HashesMissing,
    LogprobKinds,
    NoEvidence,
    Note,
    NotRecorded,
    ObserverChanged,
    RowsUnseen,
    TextOnly,
)
from ..format import does, plural

MISSING = {
    "no differing row": "no site and no logits hash shows where the numbers begin to differ",
    "forward passes": (
        "the engine's forward passes were not observed, so which sequences shared one is not known"
    ),
    "cached tokens": "how many tokens came from a cache was not recorded",
    "logits hash": "no logits hash of the deciding row in both traces",
    "draws": "the sampler's draws were not recorded on both sides",
    "finish reasons": "the stop rules read the same in both traces; finish reasons would tell",
    "repeats": "no repeats of A's lane (--noise), so its own scatter is not known",
    "reference": "no reference trace (--reference) shows whether this is rounding or a fault",
}
_WITHOUT_FINGERPRINT = {
    "weights": "changed weights cannot be excluded",
    "tokenizer and template": "tokenizer and template are unknown",
}
_LOGPROBS = {
    "raw": "raw",
    "processed": "those after the logits processors and the temperature",
    "unknown": "raw or processed, its engine does not say",
}


def rows_unseen(found: RowsUnseen) -> str:
    count = found.count or 0
    return {
        "no sites": "no sites were compared, so the layers before the logits were not seen",
        "by sketch": f"{plural(count, 'site')} at or before it could be compared by sketch only",
        "not in both": "earlier sites that only one of the traces holds, or that could not be compared",
        "not computed": f"{plural(count, 'earlier row')} {does(count, 'were')} not computed in both runs (a "
        f"cached prefix?), the first at position {found.position} site {found.site}",
        "filtered": f"{found.trace} observed only sites that match {found.pattern!r}",
    }[found.kind]


def no_evidence(found: NoEvidence) -> str:
    if found.kind == "not an origin":
        rows = "; ".join(
            rows_unseen(one) if isinstance(one, RowsUnseen) else one.text or "" for one in found.unseen
        )
        return f"not an origin: {rows}"
    if found.kind == "fingerprint":
        so = _WITHOUT_FINGERPRINT[found.of or "weights"]
        return f"no fingerprint in one of the traces, so {so}"
    return MISSING[found.kind]


def note(found: Note) -> str:
    return found.note if found.trace is None else f"{found.trace}: {found.note}"


def after_divergence(found: AfterDivergence) -> str:
    text = (
        f"{found.positions:,} of {found.of:,} positions come after the tokens diverge in "
        f"{plural(found.sequences, 'sequence')}, so their numbers cannot be compared"
    )
    how = ": force one side's tokens on the other (--mode golden-decode)" if found.can_force else ""
    return text + how


def text_only(found: TextOnly) -> str:
    names, holds = " and ".join(found.traces), does(len(found.traces), "hold")
    return (
        f"{plural(found.sequences, 'sequence')} compared as text only: {names} {holds} no token ids of them"
    )


def hashes_missing(found: HashesMissing) -> str:
    return f"{plural(found.count, 'row hash')} not computed on both sides (cached, or never fed to the model)"


def not_recorded(found: NotRecorded) -> str:
    return {
        "logits hash": "no logits hash is in both traces, so equal logits cannot be proved",
        "common candidates": (
            "no candidate is in the top-K of both traces, so the drift of logits is not known"
        ),
        "fingerprint": f"{found.trace} has no fingerprint, so changes of its environment are not known",
    }[found.what]


def logprob_kinds(found: LogprobKinds) -> str:
    return (
        f"log-probabilities are {_LOGPROBS[found.a]} in A and {_LOGPROBS[found.b]} in B: a difference may "
        "come from sampling settings alone"
    )


def observer_changed(found: ObserverChanged) -> str:
    return f"{found.trace}: observing changed the result ({found.why})"
