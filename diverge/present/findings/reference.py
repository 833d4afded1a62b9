"""Sentences of how two sides lie to a reference, and of what limits that."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....schemas.findings.rows import ReferenceDistance
from ....schemas.findings.statement import other_side
from ....schemas.reference import NotJudged, Reference, ReferenceNote, ReferenceSite
from ..format import listed, plural, request_name

_SHOWN = 3
"""Requests that a sentence names."""


def reference_sentence(found: Reference) -> str:
    """The verdict with its numbers; of a document of version 1 what it said."""
    if found.verdict == "not judged":
        if found.why is None:
            return found.sentence
        return f"Neither side can be judged against the reference: {not_judged(found.why)}."
    if found.single_rows is None:
        return found.sentence
    distance = ReferenceDistance.of(found)
    if distance is None:
        measured = "" if found.output is None else f", {_measured(found.output)} at {found.output.site}"
        return f"Both sides are as close to the reference as their dtypes allow{measured}{_expected(found)}."
    return f"{_farther(distance)}."


def reference_distance(found: ReferenceDistance) -> str:
    """The same as evidence of a cause."""
    text = _farther(found)
    if found.separated:
        text += f"; at {found.first.site} half of its rows are farther than any row of the other side"
    if found.output is not None:
        text += f"; at the end, {found.output.site}, B's distance is {found.output.ratio:.3g} times A's"
    return text


def _farther(found: ReferenceDistance) -> str:
    far, near = found.farther, other_side(found.farther)
    one = found.first if far == "B" else _inverse(found.first)
    place = f"({request_name(one.request_id, one.sample)}, position {one.position})"
    if found.single_rows:
        return (
            f"{far} is farther from the reference than {near} at single rows: {_times(one.ratio)} {near}'s "
            f"largest distance at {one.site} {place}{_expected(found)}"
        )
    count = found.sites_farther
    more = "" if count == 1 else f", and at {count} of {found.sites} sites"
    return (
        f"{far} is farther from the reference than {near} by {_measured(one)} from {one.site} on "
        f"{place}{more}{_expected(found)}"
    )


def _expected(found: Reference | ReferenceDistance) -> str:
    """What the dtypes let expect; empty where it is the same distance."""
    if found.expected_ratio == 1:
        return ""
    return f"; expected for {found.dtype_a} against {found.dtype_b}: {_times(found.expected_ratio)}"


def _measured(site: ReferenceSite) -> str:
    return f"{_times(site.ratio)} ({site.low:.3g} to {site.high:.3g})"


def _inverse(site: ReferenceSite) -> ReferenceSite:
    """The same ratio the other way round."""
    low, high = (math.inf if value == 0 else 1 / value for value in (site.high, site.low))
    ratio = math.inf if site.ratio == 0 else 1 / site.ratio
    return site.model_copy(update={"ratio": ratio, "low": low, "high": high})


def _times(ratio: float) -> str:
    return f"×{ratio:,.0f}" if ratio >= 1000 else f"×{ratio:.3g}"


def not_judged(found: NotJudged) -> str:
    """Why a reference cannot judge, and how to fix it."""
    sides = " and ".join(f"{side}'s {dtype}" for side, dtype in found.coarser_than.items())
    return {
        "nothing shared": (
            "the reference shares neither sites (with sketches of one kind) nor distributions with A and B"
        ),
        "no token ids": "A or B has no token ids, only text, so no tokens can be forced on a reference",
        "different requests": (
            f"it is of different requests: A has {_requests(found.requests_a)}, the reference "
            f"{_requests(found.requests_reference)}; replay A's requests on the reference's lane, with "
            "--golden A.parquet"
        ),
        "different tokens": "it holds none of the compared tokens: make it of A's (--golden A.parquet)",
        "different model": "it was made with a different model than A's and B's, by their fingerprints",
        "too coarse": (
            f"the reference's {found.dtype} is no finer than {sides}, so its own rounding is as large as "
            f"what it should measure; make one with --set dtype={found.enough}"
        ),
        "too few rows": (
            f"the rows of {plural(found.sequences or 0, 'sequence')} are worth {found.independent} "
            f"independent ones, and {found.needed} are needed; replay more or longer requests, or B with A's "
            "tokens forced (--mode golden-decode)"
        ),
    }[found.kind]


def _requests(names: Sequence[str]) -> str:
    return listed(names, _SHOWN) or "none"


def reference_note(found: ReferenceNote) -> str:
    """What limits a comparison with a reference."""
    if found.kind == "some positions":
        return f"{found.rows:,} of {found.covered:,} covered positions were read, evenly chosen"
    if found.kind == "unknown dtypes":
        return f"no epsilon is known of {', '.join(found.dtypes)}, so nothing is expected of the dtypes"
    if found.kind == "few sequences":
        return (
            "few sequences: what belongs to one cannot be told from what belongs to a side, so only a shift "
            "beyond all rows of the other side counts; give more"
        )
    equal = "no repeat of A equals A"
    if found.equal:
        equal = f"{found.equal} of {found.repeats} repeats of A equal A"
    return f"noise: {equal}; the largest distance between A and a repeat is {found.largest or 0:.2g}"
