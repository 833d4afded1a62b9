"""From a tally to the four levels: which hold, which fail and where, which cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

from ...schemas.claim import LEVELS, Level
from ...schemas.verdict import FirstSite, FirstToken, LevelVerdict
from ..present.format import does, plural
from .agreement import unseeded
from .align import describe
from .pairing import Pairing, TextPair
from .tally import Tally


def levels(
    tally: Tally, token: FirstToken | None, site: FirstSite | None, pairing: Pairing
) -> dict[str, LevelVerdict]:
    """The verdict on each level.

    bitwise   every compared row hash and logits hash is equal, and so are the tokens
    numeric   every known logit difference is within the tolerance; without one only a bitwise tie holds
    token     the token ids are equal; forced tokens are judged by each side's own first choice. Equal texts
              do not prove equal ids, and an engine without a seed is held to none
    semantic  the generated texts are equal; otherwise a scorer would be needed

    Where runs were not finished no level holds: what is there may be equal, the rest is not known.
    """
    bitwise = _bitwise(tally, token, site)
    found = {
        "bitwise": bitwise,
        "numeric": _numeric(tally, bitwise),
        "token": _unseeded(pairing) or _token(tally, token, pairing.texts),
        "semantic": _semantic(tally, pairing, token),
    }
    missing = pairing.missing
    if pairing.texts:
        why = f"{plural(len(pairing.texts), 'sequence')} could be compared as text only"
        for name in ("bitwise", "numeric"):
            if found[name].state == "holds":
                found[name] = LevelVerdict(state="not comparable", why=f"{why}; {found[name].why}")
    if any(missing):
        lacking = "; ".join(
            f"{side} is incomplete: {plural(count, 'position')} of it {'is' if count == 1 else 'are'} missing"
            for side, count in zip("AB", missing, strict=True)
            if count
        )
        for name, level in found.items():
            if level.state == "holds":
                why = lacking + (f"; {level.why}" if level.why else "")
                found[name] = LevelVerdict(state="not comparable", why=why)
    return found


def strongest(found: dict[str, LevelVerdict]) -> Level | None:
    """The strongest level that holds."""
    return next((level for level in LEVELS if found[level].state == "holds"), None)


def place(tally: Tally, pair: int, position: int) -> str:
    """A position of a pair in words."""
    return f"{describe(tally.pairs[pair].pair.a.key)} position {position}"


def _chosen(tally: Tally, pair: int, row: int) -> str:
    """A distribution in words: it is named by the token that it chose, which comes behind the row."""
    return place(tally, pair, row + 1)


def _bitwise(tally: Tally, token: FirstToken | None, site: FirstSite | None) -> LevelVerdict:
    sketched = int(tally.plan.by_sketch.sum())
    if not tally.rows and not tally.logits_compared and not sketched:
        return LevelVerdict(state="not comparable", why="no row hash and no logits hash is in both traces")
    logits, rows = plural(tally.logits_compared, "logits hash"), plural(tally.rows, "row hash")
    by_sketch = f"; {plural(sketched, 'site')} compared by sketch" if sketched else ""
    hashed = tally.rows or not sketched  # with another dtype at every site no row has a hash to compare
    counted = f"{f'{rows} and ' if hashed else ''}{logits} compared{by_sketch}"
    if site is not None and (tally.rows_differing or tally.logits_differing):
        moved = f"{plural(tally.rows_differing, 'row')} and " if hashed else ""
        why = f"{moved}{tally.logits_differing:,} logits differ; {counted}"
        return LevelVerdict(state="fails", where=_site_place(site), why=why)
    dtypes = zip(tally.plan.sites, tally.plan.dtypes_b, strict=True)
    if retyped := sum(site.dtype != dtype for site, dtype in dtypes):
        why = f"{plural(retyped, 'site')} with another dtype: no bits of theirs can be equal"
        return LevelVerdict(state="fails", why=why)
    if sketched and site is not None:
        return LevelVerdict(state="fails", where=_site_place(site), why=f"sketches differ; {counted}")
    if token is not None:
        where = f"request {token.request_id!r} sample {token.sample} position {token.position}"
        return LevelVerdict(state="fails", where=where, why=f"the tokens differ; {counted}, all equal")
    if sketched:
        why = f"the traces use different row hashes, so equal bits cannot be proved; {counted}"
        return LevelVerdict(state="not comparable", why=why)
    return LevelVerdict(state="holds", why=counted)


def _site_place(site: FirstSite) -> str:
    occurrence = f"#{site.occurrence}" if site.occurrence else ""
    label = f"{site.site}{occurrence}" + (f":{site.part}" if site.part else "")
    return f"request {site.request_id!r} sample {site.sample} position {site.position} site {label}"


def _numeric(tally: Tally, bitwise: LevelVerdict) -> LevelVerdict:
    at = f" at {_chosen(tally, *tally.largest_at)}" if tally.largest_at else ""
    over = f"over {tally.steps_with_logits:,} of {tally.positions:,} comparable positions"
    measured = f"largest {tally.kind} difference {tally.largest:.4g}{at}, {over}"
    if tally.kind == "logprob" and tally.steps_identical == tally.steps_with_logits:
        measured = f"the candidates' logprobs are equal bit for bit, {over}"
    if bitwise.state == "holds":
        return LevelVerdict(state="holds", why=f"bitwise holds; {measured}")
    if not tally.steps_with_logits:
        return LevelVerdict(
            state="not comparable",
            why="no position has a candidate that both traces list with its logit or logprob",
        )
    if tally.tolerance is None:
        return LevelVerdict(state="not stated", why=f"no tolerance was stated; {measured}")
    stated = f"{measured}; tolerance {tally.tolerance:g}"
    if tally.over is not None:
        return LevelVerdict(state="fails", where=_chosen(tally, *tally.over), why=stated)
    return LevelVerdict(state="holds", why=stated)


def _unseeded(pairing: Pairing) -> LevelVerdict | None:
    """No verdict on tokens, where no run can be asked to come again; None: it can."""
    sides = zip("AB", (pairing.a.trace.header, pairing.b.trace.header), strict=True)
    without = [f"{header.lane.engine} ({side})" for side, header in sides if unseeded(header)]
    if not without:
        return None
    takes = "take" if len(without) > 1 else "takes"
    why = f"{' and '.join(without)} {takes} no seed, so no run can be held to tokens: see the agreement"
    return LevelVerdict(state="not comparable", why=why)


def _semantic(tally: Tally, pairing: Pairing, token: FirstToken | None) -> LevelVerdict:
    in_prompt = token is not None and token.step is None
    if in_prompt or any(text.same_prompt is False for text in pairing.texts):
        return LevelVerdict(state="not comparable", why="the prompts are not the same")
    forced = [outputs.trace.header.mode != "free" for outputs in (pairing.a, pairing.b)]
    if tally.forced or any(forced):
        return LevelVerdict(state="not comparable", why="the texts were forced, not generated")
    parted = [state.pair for state in tally.pairs if state.pair.divergence is not None]
    equal = [pairing.texts_equal(pair) for pair in parted]
    texts = [text.difference is None for text in pairing.texts]
    if False in equal or False in texts:
        why = "the texts differ and nothing scored them"
    elif None in equal:
        why = "the tokens differ, and the texts are not recorded"
    elif parted:
        return LevelVerdict(state="holds", why="the texts are equal, though their token ids are not")
    else:
        by_ids = "the token ids are identical" if tally.pairs else ""
        by_text = f"{plural(len(texts), 'text')} compared: equal" if texts else ""
        return LevelVerdict(state="holds", why="; ".join(filter(None, (by_ids, by_text))))
    return LevelVerdict(state="not comparable", why=why)


def _texts(texts: Sequence[TextPair]) -> LevelVerdict:
    """The token level of sequences that are compared as text."""
    differing = [text for text in texts if text.difference is not None]
    provable = [text for text in differing if text.same_prompt]
    if provable:
        first = provable[0]
        where = f"{describe(first.key)} character {first.difference}"
        count = f"{len(differing):,} of {plural(len(texts), 'text')} {does(len(differing), 'differ')}"
        why = f"the prompts are the same, and {count}"
        return LevelVerdict(state="fails", where=where, why=why)
    told = f"{plural(len(texts), 'sequence')} compared as text only"
    if not differing:
        why = f"{told}: equal texts do not prove equal tokens"
    elif any(text.same_prompt is None for text in differing):
        why = f"{told}: texts differ, and whether the prompts are the same is not known"
    else:
        why = f"{told}: texts differ, and so do the prompts"
    return LevelVerdict(state="not comparable", why=why)


def _token(tally: Tally, token: FirstToken | None, texts: Sequence[TextPair]) -> LevelVerdict:
    if token is not None:
        where = f"request {token.request_id!r} sample {token.sample} position {token.position}"
        return LevelVerdict(
            state="fails", where=where + (f" step {token.step}" if token.step is not None else "")
        )
    if texts:
        return _texts(texts)
    if not tally.forced:
        return LevelVerdict(state="holds")
    flips = [state for state in tally.pairs if state.flip is not None]
    forced = f"{tally.forced:,} of {tally.generated:,} generated tokens were forced: that proves nothing"
    if flips and flips[0].flip is not None:
        where = place(tally, flips[0].pair.index, flips[0].flip)
        return LevelVerdict(
            state="fails", where=where, why=f"{forced}; there the two sides' own most likely tokens differ"
        )
    if tally.forced_unknown == tally.forced:
        return LevelVerdict(state="not comparable", why=f"{forced}, and no own choices are recorded")
    seen, unknown = tally.forced - tally.forced_unknown, tally.forced_unknown
    agree = f"agree at all {seen:,}" if not unknown else f"agree at {seen:,} and are not told at {unknown:,}"
    return LevelVerdict(state="holds", why=f"{forced}; the sides' own most likely tokens {agree} of them")
