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
from ....schemas.findings.statement import Location
from ..format import does, plural, request_name

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
