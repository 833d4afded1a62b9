"""From a tally to the four levels: which hold, which fail and where, which cannot be told."""

from __future__ import annotations

from ..schemas.claim import LEVELS, Level
from ..schemas.verdict import FirstSite, FirstToken, LevelVerdict
from .align import describe
from .report_words import plural
from .tally import Tally


def levels(
    tally: Tally, token: FirstToken | None, site: FirstSite | None, missing: tuple[int, int] = (0, 0)
) -> dict[str, LevelVerdict]:
    """The verdict on each level.

    bitwise   every compared row hash and logits hash is equal, and so are the tokens
    numeric   every known logit difference is within the tolerance; without one only a bitwise tie holds
    token     the token ids are equal; forced tokens are judged by each side's own first choice
    semantic  equal ids mean equal text; otherwise a scorer would be needed

    `missing`: positions that A and that B lack because their runs were not finished. Then no level holds:
    what is there may be equal, the rest is not known.
    """
    token_level = _token(tally, token)
    bitwise = _bitwise(tally, token, site)
    forced = token is None and tally.forced > 0
    if token is None and not forced:
        semantic = LevelVerdict(state="holds", why="the token ids are identical")
    else:
        reason = (
            "the texts were forced, not generated" if forced else "the texts differ and nothing scored them"
        )
        semantic = LevelVerdict(state="not comparable", why=reason)
    found = {
        "bitwise": bitwise,
        "numeric": _numeric(tally, bitwise),
        "token": token_level,
        "semantic": semantic,
    }
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


def _bitwise(tally: Tally, token: FirstToken | None, site: FirstSite | None) -> LevelVerdict:
    sketched = int(tally.plan.by_sketch.sum())
    if not tally.rows and not tally.logits_compared and not sketched:
        return LevelVerdict(state="not comparable", why="no row hash and no logits hash is in both traces")
    logits, rows = plural(tally.logits_compared, "logits hash"), plural(tally.rows, "row hash")
    by_sketch = f"; {plural(sketched, 'site')} compared by sketch" if sketched else ""
    counted = f"{rows} and {logits} compared{by_sketch}"
    if site is not None and (tally.rows_differing or tally.logits_differing):
        why = f"{plural(tally.rows_differing, 'row')} and {tally.logits_differing:,} logits differ; {counted}"
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
    kind = "logprob" if tally.by_logprob else "logit"
    at = f" at {place(tally, *tally.largest_at)}" if tally.largest_at else ""
    measured = (
        f"largest {kind} difference {tally.largest:.4g}{at}, over {tally.steps_with_logits:,} of "
        f"{tally.positions:,} comparable positions"
    )
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
        return LevelVerdict(state="fails", where=place(tally, *tally.over), why=stated)
    return LevelVerdict(state="holds", why=stated)


def _token(tally: Tally, token: FirstToken | None) -> LevelVerdict:
    if token is not None:
        where = f"request {token.request_id!r} sample {token.sample} position {token.position}"
        return LevelVerdict(
            state="fails", where=where + (f" step {token.step}" if token.step is not None else "")
        )
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
    seen = tally.forced - tally.forced_unknown
    return LevelVerdict(
        state="holds", why=f"{forced}; the sides' own most likely tokens agree at {seen:,} of them"
    )
