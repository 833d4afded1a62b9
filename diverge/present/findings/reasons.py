"""Sentences of the levels: where each fails, and why it is as it is."""

from __future__ import annotations

from ....schemas.findings.reasons import (
    DtypesDiffer,
    HashesCompared,
    Incomplete,
    Measured,
    Plain,
    TextsCompared,
    TokensForced,
    Tolerance,
    Unseeded,
)
from ....schemas.findings.statement import Location, SequenceName
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
from ..format import does, listed, plural, request_name

PLAIN = {
    "no hashes": "no row hash and no logits hash is in both traces",
    "sketches differ": "sketches differ",
    "tokens differ": "the tokens differ",
    "different row hashes": "the traces use different row hashes, so equal bits cannot be proved",
    "bitwise holds": "bitwise holds",
    "no common candidate": "no position has a candidate that both traces list with its logit or logprob",
    "no tolerance": "no tolerance was stated",
    "prompts differ": "the prompts are not the same",
    "texts forced": "the texts were forced, not generated",
    "texts not scored": "the texts differ and nothing scored them",
    "texts not recorded": "the tokens differ, and the texts are not recorded",
    "texts equal, tokens not": "the texts are equal, though their token ids are not",
    "tokens equal": "the token ids are identical",
}


def location(where: Location) -> str:
    """`request r, position 7, site layers.0.mlp`."""
    if where.request_id is None:
        return where.text or ""
    parts = [request_name(where.request_id, where.sample)]
    for name in ("cell", "position", "step", "character", "site"):
        value = getattr(where, name)
        if value is not None:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def plain_reason(found: Plain) -> str:
    return PLAIN[found.kind]


def hashes_compared(found: HashesCompared) -> str:
    return "; ".join(_hashes(found))


def _hashes(found: HashesCompared) -> list[str]:
    parts = []
    if found.rows_differing or found.logits_differing:
        moved = f"{plural(found.rows_differing, 'row')} and " if found.by_hash else ""
        parts.append(f"{moved}{found.logits_differing:,} logits differ")
    rows = f"{plural(found.rows, 'row hash')} and " if found.by_hash else ""
    parts.append(f"{rows}{plural(found.logits, 'logits hash')} compared")
    if found.sites_by_sketch:
        parts.append(f"{plural(found.sites_by_sketch, 'site')} compared by sketch")
    return parts


def shortened(found: HashesCompared) -> str:
    """The most important part."""
    return _hashes(found)[0]


def dtypes_differ(found: DtypesDiffer) -> str:
    return f"{plural(found.sites, 'site')} with a different dtype: none of their bits can be equal"


def measured(found: Measured) -> str:
    over = f"over {found.compared:,} of {found.comparable:,} comparable positions"
    if found.identical:
        return f"the candidates' logprobs are equal bit for bit, {over}"
    where = "" if found.at is None else f" at {location(found.at)}"
    return f"largest {found.of} difference {found.largest:.4g}{where}, {over}"


def tolerance(found: Tolerance) -> str:
    return f"tolerance {found.value:g}"


def incomplete(found: Incomplete) -> str:
    positions = plural(found.positions, "position")
    return f"{found.side} is incomplete: {positions} of it {does(found.positions, 'are')} missing"


def unseeded(found: Unseeded) -> str:
    engines = " and ".join(f"{one.engine} ({one.side})" for one in found.engines)
    take = does(len(found.engines), "take")
    return f"{engines} {take} no seed, so no run can be held to tokens: see the agreement"


def texts_compared(found: TextsCompared) -> str:
    if found.about == "texts":
        return f"{plural(found.texts, 'text')} compared: equal"
    if found.about == "numbers":
        return f"{plural(found.texts, 'sequence')} could be compared as text only"
    if found.same_prompt and found.differing:
        count = f"{found.differing:,} of {plural(found.texts, 'text')} {does(found.differing, 'differ')}"
        return f"the prompts are the same, and {count}"
    text = f"{plural(found.texts, 'sequence')} compared as text only"
    if not found.differing:
        return f"{text}: equal texts do not prove equal tokens"
    if found.same_prompt is None:
        return f"{text}: texts differ, and whether the prompts are the same is not known"
    return f"{text}: texts differ, and so do the prompts"


def tokens_forced(found: TokensForced) -> str:
    text = f"{found.forced:,} of {found.generated:,} generated tokens were forced: that proves nothing"
    if found.choices_differ:
        return f"{text}; there the two sides' own most likely tokens differ"
    if found.unknown == found.forced:
        return f"{text}, and no own choices are recorded"
    known = found.forced - found.unknown
    agree = (
        f"agree at {known:,} and are not recorded at {found.unknown:,}"
        if found.unknown
        else f"agree at all {known:,}"
    )
    return f"{text}; the sides' own most likely tokens {agree} of them"


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
