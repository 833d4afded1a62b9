"""Sentences of the course of a difference: where it begins and grows, each with the cause that acts there."""

from __future__ import annotations

from ....schemas.findings.rows import OriginsAbsorbed
from ....schemas.verdict import Cause, Place, Verdict
from .labels import label
from .parts import times
from .rows import origins_absorbed


def course(verdict: Verdict) -> str:
    """`begins at layers.0 (ATEN_CPU_CAPABILITY: not set → default, rounding-sized); grows ×1563 at …`.

    Returns:
        Empty where there is no more to say than where the first difference is.
    """
    first: dict[str, Cause] = {}
    for cause in verdict.causes:
        if cause.place is not None:
            first.setdefault(cause.place.role, cause)
    parts = []
    if "grows" in first:
        parts = [_part(first[role]) for role in ("begins", "grows") if role in first]
    absorbed = [one for cause in verdict.causes for one in cause.evidence if isinstance(one, OriginsAbsorbed)]
    return "; ".join([*parts, *(origins_absorbed(one) for one in absorbed[:1])])


def _part(cause: Cause) -> str:
    place = cause.place
    assert place is not None
    # What only says that it grows has no other name.
    what = "" if cause.id == "drift-grows" else label(cause)
    about = ", ".join(one for one in (what, _size(place)) if one)
    said = f" ({about})" if about else ""
    if place.role == "grows":
        return f"grows {times(place.factor or 0)} at {place.site}{said}"
    return f"begins at {place.site}{said}"


def _size(place: Place) -> str:
    if place.within_rounding is None:
        return ""
    return "rounding-sized" if place.within_rounding else "beyond rounding"
