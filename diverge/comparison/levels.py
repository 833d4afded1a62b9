"""From a tally to the four levels: which hold, which fail and where, which are not comparable."""

from __future__ import annotations

from collections.abc import Sequence

from ...schemas.claim import LEVELS, Level
from ...schemas.findings.reasons import (
    DtypesDiffer,
    EngineOf,
    HashesCompared,
    Incomplete,
    Measured,
    Plain,
    Reason,
    TextsCompared,
    TokensForced,
    Tolerance,
    Unseeded,
)
from ...schemas.findings.statement import SIDES, Location
from ...schemas.verdict import FirstSite, FirstToken, LevelVerdict, State
from .agreement import unseeded
from .align import SequenceKey
from .pairing import Pairing, TextPair
from .tally import Tally


def levels(
    tally: Tally, token: FirstToken | None, site: FirstSite | None, pairing: Pairing
) -> dict[str, LevelVerdict]:
    """The verdict on each level.

    bitwise   every compared row hash and logits hash is equal, and so are the tokens
    numeric   every known logit difference is within the tolerance; without one only a bitwise tie holds
    token     the token ids are equal; forced tokens are judged by each side's own first choice. Equal texts
              do not prove equal ids, and what was drawn without a seed is held to none
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
    if pairing.texts:
        texts = TextsCompared(texts=len(pairing.texts), about="numbers")
        for name in ("bitwise", "numeric"):
            found[name] = _unless_holds(found[name], [texts])
    incomplete = [
        Incomplete(side=side, positions=count)
        for side, count in zip(SIDES, pairing.missing, strict=True)
        if count
    ]
    return {name: _unless_holds(level, incomplete) if incomplete else level for name, level in found.items()}


def _unless_holds(level: LevelVerdict, limits: Sequence[Reason]) -> LevelVerdict:
    """A level that would hold is not comparable, because of what limits it."""
    if level.state != "holds":
        return level
    return LevelVerdict(state="not comparable", why=[*limits, *level.why])


def strongest(found: dict[str, LevelVerdict]) -> Level | None:
    """The strongest level that holds."""
    return next((level for level in LEVELS if found[level].state == "holds"), None)


def _location(key: SequenceKey, position: int | None = None, character: int | None = None) -> Location:
    request_id, sample, cell = key
    return Location(
        request_id=request_id, sample=sample, cell=cell or None, position=position, character=character
    )


def _chosen(tally: Tally, pair: int, row: int) -> Location:
    """Of a distribution: it is named by the token that it chose, which comes behind the row."""
    return _location(tally.pairs[pair].pair.a.key, row + 1)


def _level(state: State, *why: Reason, where: Location | None = None) -> LevelVerdict:
    return LevelVerdict(state=state, where=where, why=[*why])


def _bitwise(tally: Tally, token: FirstToken | None, site: FirstSite | None) -> LevelVerdict:
    sketched = int(tally.plan.by_sketch.sum())
    if not tally.rows and not tally.logits_compared and not sketched:
        return _level("not comparable", Plain(kind="no hashes"))
    compared = HashesCompared(
        rows=tally.rows,
        rows_differing=tally.rows_differing,
        logits=tally.logits_compared,
        logits_differing=tally.logits_differing,
        sites_by_sketch=sketched,
        # With different dtypes at every site no row has a hash to compare.
        by_hash=bool(tally.rows or not sketched),
    )
    if site is not None and (tally.rows_differing or tally.logits_differing):
        return _level("fails", compared, where=_of_site(site))
    dtypes = zip(tally.plan.sites, tally.plan.dtypes_b, strict=True)
    if retyped := sum(one.dtype != dtype for one, dtype in dtypes):
        return _level("fails", DtypesDiffer(sites=retyped))
    if sketched and site is not None:
        return _level("fails", Plain(kind="sketches differ"), compared, where=_of_site(site))
    if token is not None:
        return _level("fails", Plain(kind="tokens differ"), compared, where=_of_token(token))
    if sketched:
        return _level("not comparable", Plain(kind="different row hashes"), compared)
    return _level("holds", compared)


def _of_site(site: FirstSite) -> Location:
    return Location(request_id=site.request_id, sample=site.sample, position=site.position, site=site.label())


def _of_token(token: FirstToken, step: int | None = None) -> Location:
    return Location(request_id=token.request_id, sample=token.sample, position=token.position, step=step)


def _numeric(tally: Tally, bitwise: LevelVerdict) -> LevelVerdict:
    measured = Measured(
        of=tally.kind,
        largest=tally.largest,
        at=_chosen(tally, *tally.largest_at) if tally.largest_at else None,
        compared=tally.steps_with_logits,
        comparable=tally.positions,
        identical=tally.kind == "logprob" and tally.steps_identical == tally.steps_with_logits,
    )
    if bitwise.state == "holds":
        return _level("holds", Plain(kind="bitwise holds"), measured)
    if not tally.steps_with_logits:
        return _level("not comparable", Plain(kind="no common candidate"))
    if tally.tolerance is None:
        return _level("not stated", Plain(kind="no tolerance"), measured)
    stated = measured, Tolerance(value=tally.tolerance)
    if tally.over is not None:
        return _level("fails", *stated, where=_chosen(tally, *tally.over))
    return _level("holds", *stated)


def _unseeded(pairing: Pairing) -> LevelVerdict | None:
    """No verdict on tokens, where no run can be repeated with the same draws; None: it can."""
    headers = zip(SIDES, (pairing.a.trace.header, pairing.b.trace.header), strict=True)
    without = [EngineOf(side=side, engine=header.lane.engine) for side, header in headers if unseeded(header)]
    return _level("not comparable", Unseeded(engines=without)) if without else None


def _semantic(tally: Tally, pairing: Pairing, token: FirstToken | None) -> LevelVerdict:
    in_prompt = token is not None and token.step is None
    if in_prompt or any(text.same_prompt is False for text in pairing.texts):
        return _level("not comparable", Plain(kind="prompts differ"))
    forced = [outputs.trace.header.mode != "free" for outputs in (pairing.a, pairing.b)]
    if tally.forced or any(forced):
        return _level("not comparable", Plain(kind="texts forced"))
    parted = [state.pair for state in tally.pairs if state.pair.divergence is not None]
    equal = [pairing.texts_equal(pair) for pair in parted]
    texts = [text.difference is None for text in pairing.texts]
    if False in equal or False in texts:
        return _level("not comparable", Plain(kind="texts not scored"))
    if None in equal:
        return _level("not comparable", Plain(kind="texts not recorded"))
    if parted:
        return _level("holds", Plain(kind="texts equal, tokens not"))
    why: list[Reason] = [Plain(kind="tokens equal")] if tally.pairs else []
    if texts:
        why.append(TextsCompared(texts=len(texts), about="texts"))
    return _level("holds", *why)


def _texts(texts: Sequence[TextPair]) -> LevelVerdict:
    """The token level of sequences that are compared as text."""
    differing = [text for text in texts if text.difference is not None]
    provable = [text for text in differing if text.same_prompt]
    prompts = {text.same_prompt for text in differing}
    same = True if provable else None if not differing or None in prompts else False
    compared = TextsCompared(texts=len(texts), differing=len(differing), same_prompt=same, about="tokens")
    if provable:
        where = _location(provable[0].key, character=provable[0].difference)
        return _level("fails", compared, where=where)
    return _level("not comparable", compared)


def _token(tally: Tally, token: FirstToken | None, texts: Sequence[TextPair]) -> LevelVerdict:
    if token is not None:
        return _level("fails", where=_of_token(token, token.step))
    if texts:
        return _texts(texts)
    if not tally.forced:
        return _level("holds")
    flips = [state for state in tally.pairs if state.flip is not None]
    forced = TokensForced(
        forced=tally.forced,
        generated=tally.generated,
        unknown=tally.forced_unknown,
        choices_differ=bool(flips),
    )
    if flips:
        return _level("fails", forced, where=_location(flips[0].pair.a.key, flips[0].flip))
    return _level("not comparable" if tally.forced_unknown == tally.forced else "holds", forced)
