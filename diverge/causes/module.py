"""Causes that the rows around the first difference show: the module itself, positions, routing, single rows,
and rows and runs that do not repeat themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from ..present.format import plural
from .describe_module import (
    beyond_rounding,
    elsewhere,
    is_attention,
    kind_of,
    label_of,
    moved_tokens,
    row_of_b,
    size_of,
    stands_alone,
    what_is_wrong,
)
from .evidence import Evidence
from .finding import Finding
from .kv_cache import decode_path, kv_cache
from .routing import is_choice
from .row_pattern import Pattern, Twin


def non_repeating(e: Evidence) -> Finding | None:
    """Runs of one request on one side give different rows."""
    return _of_twins(e, in_one_batch=False)


def batch_rows(e: Evidence) -> Finding | None:
    """Sequences with the same tokens in one batch give different rows on one side."""
    return _of_twins(e, in_one_batch=True)


def _of_twins(e: Evidence, in_one_batch: bool) -> Finding | None:
    seen, batch = e.seen.pattern, e.shape("batch_size")
    if seen is None or not seen.twins or (batch is not None and min(batch) > 1) != in_one_batch:
        return None
    unlike = [[one for one in seen.twins if not equal(one)] for equal in (_equal_in_a, _equal_in_b)]
    if not any(unlike):
        return None
    where = "of the same batch" if in_one_batch else "run once more"
    evidence = []
    for side, found in zip("AB", unlike, strict=True):
        count = len(seen.twins)
        if not found:
            told = f"in {side} every sequence with the same tokens, {where}, has the same row there"
        elif len(found) == count:
            told = (
                f"in {side} the row of {_name(e)} at {e.first_place} is unlike that of {_twins(found)}, "
                f"the same tokens {where}"
            )
        else:
            told = (
                f"in {side} the row of {_twins(found)} at {e.first_place} is unlike that of {_name(e)} and "
                f"{plural(count - len(found), 'other sequence')}, the same tokens {where}"
            )
        evidence.append(told)
    if all(unlike):
        evidence.append("so the difference between A and B is within what one side differs from itself")
    return Finding([*evidence, *size_of(seen)], "high", confirm=e.replay(repeat=8), direct=True)


def _name(e: Evidence) -> str:
    """The sequence that the first difference is of."""
    site = e.first_site
    assert site is not None
    return f"{site.request_id} sample {site.sample}" if site.sample else site.request_id


def _twins(found: list[Twin]) -> str:
    names = [f"{one.request_id} sample {one.sample}" if one.sample else one.request_id for one in found]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _equal_in_a(twin: Twin) -> bool:
    return twin.equal_in_a


def _equal_in_b(twin: Twin) -> bool:
    return twin.equal_in_b


def routing(e: Evidence) -> Finding | None:
    """A router whose inputs are equal chose other experts."""
    site, seen = e.first_site, e.seen.pattern
    if site is None or seen is None or not site.is_origin or not is_choice(seen.site):
        return None
    told = "" if seen.routing is None else seen.routing.told()
    chosen = f"chose {told}" if told else "chose other experts"
    evidence = [
        f"the router {chosen} in {e.first_place}, though its scores and all before are equal: a tie between "
        "experts, another rule of choice, or a wrong index",
        *_how_often(seen),
        "what differs behind it follows from that choice",
    ]
    label = f"Other experts were chosen with equal scores: {told}" if told else None
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True, label=label)


def _how_often(seen: Pattern) -> list[str]:
    """At how many positions a router chose otherwise, of those where it got equal inputs."""
    if seen.routing is None:
        return []
    count, compared = seen.routing.differing, seen.routing.compared
    told = f"that is so at {count} of {plural(compared, 'position')} where its inputs are equal"
    return [told, *seen.others.told()]


def routing_behind(e: Evidence) -> Finding | None:
    """A difference from elsewhere made a router choose other experts, which makes it large."""
    seen = e.seen.pattern
    if seen is None or seen.routing is None or routing(e) is not None:
        return None
    place = f"{seen.routing.site.label()} at position {seen.routing.position}"
    chosen = seen.routing.told()
    evidence = [
        f"from {place} on, other experts are chosen{f' ({chosen})' if chosen else ''}: "
        "what differs behind that is no rounding any more",
        f"the difference itself began before, at {e.first_place}",
    ]
    return Finding(evidence, "medium", confirm=e.replay("golden-decode"))


def positions(e: Evidence) -> Finding | None:
    """The table of positions gives other rows: other position ids, or another table."""
    site, seen = e.first_site, e.seen.pattern
    if site is None or seen is None or not site.is_origin or kind_of(seen) != "the table of positions":
        return None
    if seen.shift is not None:
        many = f"{abs(seen.shift)} {'higher' if seen.shift > 0 else 'lower'}"
        evidence = [
            f"from position {seen.position} on, {label_of(seen)} has in B the rows that A has "
            f"{abs(seen.shift)} {'later' if seen.shift > 0 else 'earlier'}: the position ids are {many} in B",
            *([f"{_before(seen)} equal"] if seen.equal_before else []),
            *seen.others.told(),
        ]
        label = f"Position ids are {many} in B from position {seen.position} on"
        return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True, label=label)
    evidence = [f"{e.first_place} differs, and is no row that A has at another position nearby"]
    if seen.position == 1:
        evidence.append("position 0 is equal and all behind it differ: another base or scaling of the angles")
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True)


def _before(seen: Pattern) -> str:
    one = seen.equal_before == 1
    return "the row before is" if one else f"the {seen.equal_before} rows before are"


def one_row(e: Evidence) -> Finding | None:
    """A module without memory gave wrong rows at some positions only."""
    seen = e.seen.pattern
    if not stands_alone(e) or seen is None or not seen.equal_before or not beyond_rounding(seen):
        return None
    if (
        is_attention(seen)
        or kind_of(seen) in _LOOKED_UP
        or any(f(e) for f in (decode_path, positions, batch_rows, non_repeating))
    ):
        return None
    evidence = [
        f"{_before(seen)} equal, so its weights are; at position {seen.position} it is off by "
        f"{seen.drift:.2g}, no rounding",
    ]
    later = seen.equal_after + seen.differing_after
    if later:
        differ = f"{seen.differing_after} differ" if seen.differing_after else "none differs"
        evidence.append(f"of {plural(later, 'later row')} with equal inputs {differ}")
    evidence += row_of_b(seen) + ([told] if (told := seen.along.told()) else []) + seen.others.told()
    name = f"{kind_of(seen) or 'the module'} {label_of(seen)}"
    if not seen.differing_after:
        label = f"A single wrong row of {name}" + (f": it is {_of_a(seen)}" if seen.relation else "")
    elif seen.equal_after:
        label = f"Single wrong rows of {name}"
    else:
        label = f"Wrong rows of {name} from position {seen.position} on"
    return Finding(evidence, "medium", confirm=e.replay(repeat=3), label=label)


def _of_a(seen: Pattern) -> str:
    return f"{seen.relation} A's" if seen.relation.endswith("times") else seen.relation


_LOOKED_UP = ("the table of embeddings", "the experts", "the table of positions", "the output head")
"""What uses other weights for other tokens."""
_TOLD: tuple[Callable[[Evidence], Finding | None], ...] = (
    non_repeating,
    batch_rows,
    routing,
    positions,
    kv_cache,
    decode_path,
    one_row,
)
"""Causes that tell more than `module`."""


def module(e: Evidence) -> Finding | None:
    """An origin with equal inputs, shapes and settings, of which nothing tells more."""
    site = e.first_site
    if site is None or not site.is_origin or not stands_alone(e):
        return None
    seen = e.seen.pattern
    if any(found(e) is not None for found in _TOLD):
        return None
    evidence = [
        f"{e.first_place} is an origin: its inputs, execution shape and recorded settings are equal, "
        "its output is not",
    ]
    if seen is not None:
        evidence += size_of(seen) + row_of_b(seen) + moved_tokens(e, seen) + elsewhere(seen)
    evidence.append("so the module itself computes something else, or a run does not repeat itself")
    missing = (
        []
        if e.has_fingerprints
        else ["no fingerprint in one of the traces, so changed weights cannot be excluded"]
    )
    label = None if seen is None else what_is_wrong(seen)
    return Finding(evidence, "medium", missing, e.replay(repeat=3), label=label)
