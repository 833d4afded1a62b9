"""Sentences of what could not be seen: earlier rows, evidence of causes, limits of the whole comparison."""

from __future__ import annotations

from ....schemas.findings.statement import SequenceName
from ....schemas.findings.unseen import (
    AfterDivergence,
    HashesMissing,
    LogprobKinds,
    NoEvidence,
    Note,
    NotRecorded,
    ObserverChanged,
    PartIgnored,
    RowsIgnored,
    RowsUnseen,
    SequencesLeftOut,
    SitesLeftOut,
    SummariesDiffer,
    TextOnly,
    UnfinishedRun,
)
from ..format import does, listed, plural

_SHOWN = 4
"""Kinds of sites that a sentence names."""
MISSING = {
    "no differing row": "no site and no logits hash shows where the numbers begin to differ",
    "forward passes": (
        "the engine's forward passes were not observed, so which sequences shared one is not known"
    ),
    "cached tokens": "how many tokens were read from a cache was not recorded",
    "logits hash": "no logits hash of the deciding row in both traces",
    "draws": "the sampler's draws were not recorded on both sides",
    "finish reasons": "the stop rules read the same in both traces; finish reasons would show which applied",
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
    return f"{found.trace}: {found.note}"


def unfinished_run(found: UnfinishedRun) -> str:
    return f"{found.trace} holds what an unfinished run had flushed, so sequences may end early"


def part_ignored(found: PartIgnored) -> str:
    return f"{found.error}; it was ignored"


def rows_ignored(found: RowsIgnored) -> str:
    return (
        f"{found.trace}: {_request(found.sequence)} has no rows from position {found.sequence.position} to "
        f"{found.last_missing}; later rows were ignored"
    )


def _request(name: SequenceName) -> str:
    cell = "" if name.cell is None else f" cell {name.cell!r}"
    return f"request {name.request_id!r} sample {name.sample}{cell}"


def sequences_left_out(found: SequencesLeftOut) -> str:
    sequences = plural(found.count, "sequence")
    if found.kind == "text forced":
        return f"{sequences} not compared: one trace has text only, and the text in {found.trace} was forced"
    named = [_request(name) for name in found.first]
    return f"{sequences} only in {found.trace}: {listed(named, len(named), found.count)}"


def sites_left_out(found: SitesLeftOut) -> str:
    count = sum(group.count for group in found.groups)
    kinds = [
        f"{group.pattern} ({group.count})" if group.count > 1 else group.pattern for group in found.groups
    ]
    sizes = [
        "unknown" if size is None else str(size)
        for size in (found.tensor_parallel_a, found.tensor_parallel_b)
    ]
    what = {
        "sharded sites": f"{plural(count, 'sharded site')} {does(count, 'are')} compared only under equal "
        f"tensor parallelism (here {' and '.join(sizes)})",
        "different width": f"{plural(count, 'site')} not compared, different width",
        "sites only in one trace": f"{plural(count, 'site')} only in {found.trace}",
    }[found.kind]
    return f"{what}: {listed(kinds, _SHOWN, what='more kinds')}"


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
        "sites": f"{found.trace} was captured without sites, so layers cannot be compared",
        "logits hash": "no logits hash is in both traces, so equal logits cannot be proved",
        "common candidates": (
            "no candidate is in the top-K of both traces, so the drift of logits is not known"
        ),
        "fingerprint": f"{found.trace} has no fingerprint, so changes of its environment are not known",
    }[found.what]


def summaries_differ(found: SummariesDiffer) -> str:
    if found.what == "row hashes":
        return "the traces use different row hashes, so rows are compared by sketch only"
    return "the traces use different sketches, so the size of differences is not known"


def logprob_kinds(found: LogprobKinds) -> str:
    return (
        f"log-probabilities are {_LOGPROBS[found.a]} in A and {_LOGPROBS[found.b]} in B: a difference may "
        "come from sampling settings alone"
    )


def observer_changed(found: ObserverChanged) -> str:
    return f"{found.trace}: observing changed the result ({found.why})"
