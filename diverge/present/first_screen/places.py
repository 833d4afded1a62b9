"""Where a difference begins, how large it is, and where it grows: rows of the first screen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from ....schemas.findings.rows import DriftSize, OriginsAbsorbed
from ..findings.parts import times, ulp_size
from ..findings.rows import origins_absorbed
from ..findings.sentences import unseen_before
from ..format import drift_size, number, plain, request_name, site_label
from .screen import Course, Row

if TYPE_CHECKING:
    from ....schemas.verdict import Cause, FirstSite, Place, Verdict

_READINGS = {
    "below resolution": "rounding-sized",
    "within rounding": "rounding-sized",
    "fewer bits": "as of fewer bits",
    "beyond rounding": "beyond rounding",
    "other values": "other values, no rounding",
}


def site_course(folder: Path) -> Course:
    """The median drift of every site of a result, and whether jumps of it were looked for."""
    columns = ["site", "compared", "by_sketch", "differing", "drift_p50"]
    totals = pq.read_table(folder / "site_totals.parquet", columns=columns).to_pylist()
    found: list[float | None] = []
    for site in sorted(totals, key=lambda one: one["site"]):
        value = site["drift_p50"]
        if not site["compared"] and not site["by_sketch"]:
            found.append(None)
        elif value is not None and not math.isfinite(value):
            found.append(math.inf)
        else:
            found.append(value or 0.0)
    by_sketch = any(site["by_sketch"] for site in totals)
    return Course(tuple(found), "jumps: not judged (compared by sketch)" if by_sketch else "no jump")


def place_rows(verdict: Verdict, course: Course) -> list[Row]:
    """Where the difference begins and grows.

    Args:
        course: Of the whole result, see `site_course`.
    """
    site = verdict.first_site
    if site is None:
        return _without_site(verdict)
    grows = _growing(verdict)
    size, far = _size(verdict, site)
    shown = replace(course, end="") if grows or (far and course.end == "no jump") else course
    token = verdict.first_token
    elsewhere = token is not None and token.sequence != site.sequence
    where = f" of {request_name(*site.sequence)}" if elsewhere else ""
    text = f"{site_label(site)}, token {site.position}{where}"
    rows = [Row("begins", text, size, course=shown if any(shown.drifts) and len(shown.drifts) > 1 else None)]
    if not site.is_origin:
        unseen = plain(unseen_before(site) or "not all could be compared").rstrip(".")
        rows.append(Row("", f"first observed; earlier rows are unknown: {unseen}"))
    rows += [Row("", plain(origins_absorbed(one))) for one in _absorbed(verdict)[:1]]
    for at, place in grows:
        text = f"{times(place.factor or 0)} at {plain(place.site)}, token {place.position}"
        size = _size_of(place)
        rows.append(Row("grows", text, f"{size}, cause {at}" if size else f"cause {at}"))
    return rows


def _growing(verdict: Verdict) -> list[tuple[int, Place]]:
    """Where the drift jumps: each place once, with the number of the first cause that acts there."""
    found: dict[tuple[str, int], tuple[int, Place]] = {}
    for at, cause in enumerate(verdict.causes, start=1):
        place = cause.place
        if place is not None and place.role == "grows":
            found.setdefault((place.site, place.position), (at, place))
    return list(found.values())


def _absorbed(verdict: Verdict) -> list[OriginsAbsorbed]:
    evidence = (one for cause in verdict.causes for one in cause.evidence)
    return [one for one in evidence if isinstance(one, OriginsAbsorbed)]


def _size(verdict: Verdict, site: FirstSite) -> tuple[str, bool]:
    """How large the first difference is: in ULP where that is known; and whether it is no rounding."""
    for cause in verdict.causes:
        if cause.place is not None and cause.place.role == "begins" and (said := _size_of(cause.place)):
            return said, cause.place.within_rounding is False
    for cause in verdict.causes:
        if (found := _measured(cause)) is not None:
            unit = "" if found.reading == "below resolution" else f" ({ulp_size(found.ulps)})"
            far = found.reading not in ("below resolution", "within rounding")
            return f"{_READINGS[found.reading]}{unit}", far
    return "" if site.rel_drift is None else drift_size(site.rel_drift), False


def _measured(cause: Cause) -> DriftSize | None:
    """The size of the first differing row, where a cause rests on it."""
    found = (one for one in cause.evidence if isinstance(one, DriftSize) and one.site is None)
    return next(found, None)


def _size_of(place: Place) -> str:
    if place.within_rounding is None:
        return ""
    said = "rounding-sized" if place.within_rounding else "beyond rounding"
    return said if place.ulps is None else f"{said} ({ulp_size(place.ulps)})"


def _without_site(verdict: Verdict) -> list[Row]:
    """Where it begins as far as distributions show it, or why nobody knows."""
    first, token = verdict.first_logprob, verdict.first_token
    if first is not None:
        at = f"position {first.position}" if first.step is None else f"step {first.step}"
        text = f"in the log-probabilities, {at} of {request_name(*first.sequence)}"
        return [Row("begins", text, f"{number(first.max_abs_diff)} nats")]
    if token is None or token.step is None:
        return []
    if verdict.compared.rows:
        return [Row("begins", "at the choice: no row differs before it")]
    return [Row("begins", "not known: no module output was compared")]
