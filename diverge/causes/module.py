"""Causes that the rows around the first difference show: the module itself, positions, routing, single rows,
and rows and runs that do not repeat themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from .around import Twin
from .evidence import Evidence
from .finding import Finding
from .look import (
    beyond_rounding,
    elsewhere,
    is_attention,
    kind_of,
    label_of,
    row_of_b,
    size_of,
    stands_alone,
    what_remains,
)
from .memory import decode_path, kv_cache
from .routing import is_choice


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
    where = "in its batch" if in_one_batch else "in runs of its own"
    evidence = []
    for side, found in zip("AB", unlike, strict=True):
        names = ", ".join(f"{one.request_id} sample {one.sample}" for one in found[:3])
        if found:
            evidence.append(
                f"in {side}, {names} with the same tokens {where} has another row at {e.first_place}"
            )
        else:
            evidence.append(
                f"in {side} all {len(seen.twins)} sequences with the same tokens have the same row there"
            )
    if all(unlike):
        evidence.append("so the difference between A and B is within what one side differs from itself")
    return Finding(evidence, "high", confirm=e.replay(repeat=8), direct=True)


def _equal_in_a(twin: Twin) -> bool:
    return twin.equal_in_a


def _equal_in_b(twin: Twin) -> bool:
    return twin.equal_in_b


def routing(e: Evidence) -> Finding | None:
    """A router whose inputs are equal chose other experts."""
    site, seen = e.first_site, e.seen.pattern
    if site is None or seen is None or not site.is_origin or not is_choice(seen.site):
        return None
    chosen = "" if seen.routing is None else seen.routing.told()
    evidence = [
        f"at {e.first_place} other experts were chosen, and all before is equal, the router's scores too",
        *([chosen] if chosen else []),
        "equal scores and another choice: a tie between experts, another rule of choice, or a wrong index",
        "what differs behind it follows from that choice",
    ]
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True)


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
            f"the {seen.equal_before} positions before are equal",
        ]
        return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True)
    evidence = [f"{e.first_place} differs, and is no row that A has at another position nearby"]
    if seen.position == 1:
        evidence.append("position 0 is equal and all behind it differ: another base or scaling of the angles")
    return Finding(evidence, "high", confirm=e.replay(repeat=3), direct=True)


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
        f"at {seen.equal_before} positions before, {label_of(seen)} gave equal rows, so its weights are "
        f"equal; at position {seen.position} it is off by {seen.drift:.2g}, no rounding",
    ]
    if seen.equal_after:
        evidence.append(
            f"at {seen.equal_after} positions behind, with equal inputs, it gave equal rows again"
        )
    evidence += row_of_b(seen)
    return Finding(evidence, "medium", confirm=e.replay(repeat=3))


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
        "what remains is the module itself (its weights, its kernel) or a run that does not repeat itself",
    ]
    if site.position == 0:
        evidence.append("it differs from the very first position on, as changed weights do")
    if seen is not None:
        evidence += size_of(seen) + row_of_b(seen) + elsewhere(seen)
    missing = (
        []
        if e.has_fingerprints
        else ["no fingerprint in one of the traces, so changed weights cannot be excluded"]
    )
    label = None
    kind = "" if seen is None else kind_of(seen)
    if seen is not None and kind:
        label = f"{kind[0].upper()}{kind[1:]} {label_of(seen)} itself: {what_remains(kind)}"
    return Finding(evidence, "medium", missing, e.replay(repeat=3), label=label)
