"""Sentences of evidence in the rows around a first difference."""

from __future__ import annotations

from ....schemas.findings.rows import (
    CacheBoundary,
    CachedTokensRead,
    ChannelsDiffering,
    ConstantDifference,
    DriftGrows,
    DriftSize,
    EqualSequences,
    ExpertsAtFault,
    FirstDifferenceAt,
    LogitsDiffering,
    MovedLogit,
    NotFinite,
    OriginsAbsorbed,
    OtherRows,
    OtherSequences,
    PrefillEqual,
    RepeatsDiffer,
    RoutingDiffers,
    RowLikeness,
    RowRelation,
    RowsBySize,
    RowsShifted,
    StaleRow,
    TokenRow,
)
from ..format import does, plural
from .parts import at, experts, sequence, sequences, spans, times, ulps

_SHOWN_CHANNELS = 3
_READINGS = {
    "within rounding": (
        "consistent with rounding: different kernel or summation order, or the last bit of a weight"
    ),
    "fewer bits": (
        "more than rounding in this dtype; fewer bits in the weights or in the computation leave as much "
        "(bfloat16 about 0.002, 8 bits about 0.005)"
    ),
    "beyond rounding": "more than rounding in this dtype",
    "other values": "most of the row is different, so it is not a loss of precision",
}


def first_difference_at(found: FirstDifferenceAt) -> str:
    place = at(found.site, found.position)
    return {
        "here": f"at the first differing row, {place}",
        "origin": f"{place} is an origin: its inputs, execution shape and recorded settings are equal, its "
        "output is not",
        "begins": f"the difference begins at {place}",
        "earlier": f"the difference itself began earlier, at {place}",
        "attention": f"the first difference is in attention: {place}",
    }[found.role]


def drift_size(found: DriftSize) -> str:
    if found.reading == "below resolution":
        return f"drift below the sketch's resolution: consistent with rounding of {found.dtype}"
    size = f"{found.rel_drift:.2g}, {ulps(found.ulps, found.dtype)}: {_READINGS[found.reading]}"
    if found.site is None:
        return f"drift {size}"
    return f"{at(found.site, found.position)} is off by {size}"


def drift_grows(found: DriftGrows) -> str:
    size = f"{found.rel_drift:.2g}, {ulps(found.ulps, found.dtype)}"
    place = at(found.site, found.position)
    return (
        f"the drift grows {times(found.factor)} at {place}, from {found.before:.2g} (median of the sites "
        f"before) to {size}: more than rounding"
    )


def origins_absorbed(found: OriginsAbsorbed) -> str:
    origins = plural(found.count, "origin")
    if found.site is None:
        return f"{origins} {does(found.count, 'were')} absorbed: the layer's output is equal all the same"
    return (
        f"{origins} before it {does(found.count, 'were')} absorbed (the layer's output is equal); the first "
        f"that survives: {at(found.site, found.position)}"
    )


def row_relation(found: RowRelation) -> str:
    return f"B's row is {relation(found)}"


def relation(found: RowRelation) -> str:
    """What B's row is of A's."""
    return {
        "negative": "the negative of A's row",
        "zeros": "all zeros",
        "scaled": f"{found.factor or 0:.4g} times A's row",
        "signs flipped": "of equal norm: signs flipped",
        "signs flipped or reordered": "of equal norm: signs flipped or elements in a different order",
    }[found.relation]


def stale_row(found: StaleRow) -> str:
    return (
        f"B's row of {at(found.site, found.position)} repeats the one that it gave for position "
        f"{found.earlier}, though its inputs differ"
    )


def row_likeness(found: RowLikeness) -> str:
    return f"B's row is {found.norm_ratio:.3g} times as long as A's, at a cosine of about {found.cosine:.1f}"


def constant_difference(found: ConstantDifference) -> str:
    return f"the difference is one and the same vector at all {found.positions} positions that differ"


def channels_differing(found: ChannelsDiffering) -> str:
    if len(found.lanes) == 1:
        first = ", ".join(str(found.lanes[0] + k * found.modulus) for k in range(_SHOWN_CHANNELS))
        return f"only one output channel differs: one of {first}, and so on"
    return f"only a few output channels differ, at most {len(found.lanes)} of {found.modulus}"


def experts_at_fault(found: ExpertsAtFault) -> str:
    names = f"expert{'s' * (len(found.experts) > 1)} {' and '.join(map(str, found.experts))}"
    return f"every differing row went through {names}, no equal row did"


def logits_differing(found: LogitsDiffering) -> str:
    if not found.tokens:
        return f"the logits of {found.differing} of {found.common} candidates that both list differ there"
    tokens = ", ".join(_moved(one) for one in found.tokens)
    return (
        f"of {found.common} candidates that both list, only {plural(found.differing, 'logit')} "
        f"{does(found.differing, 'differ')}: {tokens}"
    )


def _moved(one: MovedLogit) -> str:
    text = "" if one.token_text is None else f" {one.token_text!r}"
    ratio = f", {one.b / one.a:.4g} times" if one.a else ""
    return f"token {one.token}{text} from {one.a:.4g} to {one.b:.4g}{ratio}"


def token_row(found: TokenRow) -> str:
    later = found.later_positions
    stands = f", which is at {plural(later, 'later position')} too" if later else ""
    return f"it is looked up by token {found.token}{stands}"


def other_rows(found: OtherRows) -> str:
    parts = []
    if found.equal_before == 1:
        parts.append("its row at the position before is equal")
    elif found.equal_before:
        parts.append(f"its rows at all {found.equal_before:,} earlier positions are equal")
    if found.later_equal is not None and found.later_differing is not None:
        later = found.later_equal + found.later_differing
        said = f"{found.later_differing} {does(found.later_differing, 'differ')}"
        said += f" and {found.later_equal} {does(found.later_equal, 'are')} equal"
        if not found.later_differing:
            said = "none differs"
        elif not found.later_equal:
            said = "all differ" if later > 1 else "it differs"
        parts.append(f"of {plural(later, 'later row')} with equal inputs {said}")
    return "; ".join(parts)


def rows_by_size(found: RowsBySize) -> str:
    count = len(found.beyond)
    where = f"position{'s' * (count > 1)} {spans(found.beyond)}"
    return (
        f"of {plural(count + found.within, 'row')} that differ with equal inputs, {count} "
        f"{does(count, 'are')} beyond rounding ({where}), {found.within} within it"
    )


def other_sequences(found: OtherSequences) -> str:
    parts = []
    if found.same_position and not found.same_site and not found.other_site:
        names = sequences(found.same_position)
        begin = does(len(found.same_position), "begin")
        parts.append(f"{names} {begin} to differ at the same site and position")
    else:
        same = [f"{sequences(found.same_position)} at the same position"] if found.same_position else []
        same += [sequences(found.same_site, with_position=True)] if found.same_site else []
        if same:
            parts.append(f"it begins at this site in {' and '.join(same)} too")
        if found.other_site:
            parts.append(
                f"it begins at a different site in {sequences(found.other_site, with_position=True)}"
            )
    if found.equal:
        parts.append(f"nothing differs in {sequences(found.equal)}")
    return "; ".join(parts)


def equal_sequences(found: EqualSequences) -> str:
    where = "of the same batch" if found.in_one_batch else "run several times"
    own, differing = sequence(found.sequence), sequences(found.differing)
    place = at(found.site, found.position)
    if not found.differing:
        return f"in {found.side} every sequence with the same tokens, {where}, has the same row there"
    if len(found.differing) == found.compared:
        return (
            f"in {found.side} the row of {own} at {place} differs from that of {differing}, the same tokens "
            f"{where}"
        )
    rest = plural(found.compared - len(found.differing), "other sequence")
    return (
        f"in {found.side} the row of {differing} at {place} differs from that of {own} and {rest}, the same "
        f"tokens {where}"
    )


def repeats_differ(found: RepeatsDiffer) -> str:
    passes = {
        "equal": "in passes of equal shape",
        "one pass": "as rows of one batch",
        "not known": "in passes that were not observed",
    }[found.passes]
    text = (
        f"in {found.side} {found.request_id} ran {found.samples} times, {passes}, and gave "
        f"{plural(found.unique, 'different output')}"
    )
    if found.repeated == 1:
        return text
    return f"{text}; so do {found.requests} of {plural(found.repeated, 'repeated request')}"


def routing_differs(found: RoutingDiffers) -> str:
    chosen, place = experts(found.experts_a, found.experts_b), at(found.site, found.position)
    if found.same_experts:
        order = f"from {place} on, the same experts are chosen in a different order ({chosen}): "
        why = "a tie between their scores, or a different order" if found.inputs_equal else "their weights"
        return f"{order}{why}; which experts compute a token is not changed"
    if not found.inputs_equal:
        return (
            f"from {place} on, different experts are chosen{f' ({chosen})' if chosen else ''}: differences "
            "after that are not rounding any more"
        )
    many = (
        f"; that is so at {found.differing} of {plural(found.compared, 'position')} with equal inputs"
        if found.differing is not None and found.compared is not None
        else ""
    )
    return (
        f"the router chose {chosen or 'different experts'} in {place}, though its scores and everything "
        f"before are equal: a tie between experts, a different rule of choice, or a wrong index{many}"
    )


def rows_shifted(found: RowsShifted) -> str:
    if found.shift is None:
        text = f"{at(found.site, found.position)} differs, and equals no row that A has at a nearby position"
        if found.padded is None:
            return text
        return (
            f"{text}; B's row has {plural(abs(found.padded), 'padded token')} "
            f"{'more' if found.padded > 0 else 'fewer'}: positions that count them are off by as many"
        )
    higher = found.shift > 0
    text = (
        f"from position {found.position} on, {found.site} has in B the rows that A has {abs(found.shift)} "
        f"{'later' if higher else 'earlier'}: the position ids are {shift(found.shift)} in B"
    )
    if found.padded == found.shift:
        return (
            f"{text}, exactly by the {plural(abs(found.shift), 'padded token')}: padding is counted in them"
        )
    return text


def shift(count: int) -> str:
    """`2 higher`."""
    return f"{abs(count)} {'higher' if count > 0 else 'lower'}"


def cached_tokens_read(found: CachedTokensRead) -> str:
    inputs = (
        "its queries, keys and values and every computed row before are equal"
        if found.drift_before is None
        else f"before it nothing differs but by rounding ({found.drift_before:.2g})"
    )
    text = f"{inputs}, so what it read of the {found.cached_tokens} cached tokens is not"
    if found.decode_steps == 0:
        return f"{text}; it is the first decode step, the first that reads what the prefill wrote"
    if found.decode_steps is not None:
        steps = plural(found.decode_steps, "decode step")
        return f"{text}; the {steps} before it {does(found.decode_steps, 'are')} equal"
    return text


def cache_boundary(found: CacheBoundary) -> str:
    length = found.cached_tokens
    parts = [f"{length // size} × {size}" for size in found.block_sizes]
    blocks = f"{length} = {' = '.join(parts)}, whole blocks" if parts else f"{length}, no multiple of 16"
    exactly = "the first difference is exactly at a boundary: " if found.exactly else ""
    return f"{exactly}position {length} is where the cached tokens end: {blocks}"


def not_finite(found: NotFinite) -> str:
    if found.site is None:
        return f"the logits that chose position {found.position} are not finite on one side"
    return f"{at(found.site, found.position)} is not finite in {found.side}: its norm is {found.norm}"


def prefill_equal(found: PrefillEqual) -> str:
    return (
        f"all {found.rows} rows of {found.site} in the prefill are equal; it differs from the first decode "
        "step on, with equal inputs"
    )
