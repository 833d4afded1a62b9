"""Sentences on a reference trace: which side is farther from it, by how much, and what that rests on."""

from __future__ import annotations

import math

from ...schemas.reference import Reference, ReferenceSite
from .format import plural


def reference_lines(found: Reference) -> list[str]:
    """The verdict and what it rests on."""
    lines = [found.sentence]
    if found.rows:
        dtypes = f"{found.dtype_a} in A, {found.dtype_b} in B, {found.dtype_reference} in the reference"
        lines.append(
            f"{plural(found.rows, 'position')} × {plural(found.sites, 'site')}"
            + (f"; {dtypes}" if found.dtype_a else "")
        )
    if found.separated and found.first is not None:
        lines.append(f"at {found.first.site} half of its rows are farther than any row of the other side")
    return [*lines, *found.notes]


def sentence(
    verdict: str,
    first: ReferenceSite | None,
    output: ReferenceSite | None,
    count: int,
    sites: int,
    dtypes: tuple[str, str, str],
    expected: float,
    single: bool,
) -> str:
    """The verdict with its numbers.

    Args:
        verdict: As `Reference.verdict`.
        first: The first site at which a side is farther.
        output: The last site.
        count: Sites at which that side is farther.
        sites: All of them.
        dtypes: Of A, B and the reference.
        expected: Ratio of the distances that the dtypes let expect.
        single: Only single rows are farther.
    """
    beside = ""
    if expected != 1:
        beside = f"; expected for {dtypes[0]} against {dtypes[1]}: {_times(expected)}"
    if first is None:
        measured = "" if output is None else f", {_measured(output)} at {output.site}"
        return f"Both sides are as close to the reference as their dtypes allow{measured}{beside}."
    far, near = ("B", "A") if verdict == "B is farther" else ("A", "B")
    one = first if far == "B" else _inverse(first)
    if single:
        return (
            f"{far} is farther from the reference than {near} at single rows: {_times(one.ratio)} {near}'s "
            f"largest distance at `{one.site}` (request {one.request_id!r} sample {one.sample} position "
            f"{one.position}){beside}."
        )
    more = "" if count == 1 else f", and at {count} of {sites} sites"
    return (
        f"{far} is farther from the reference than {near} by {_measured(one)} from `{one.site}` on "
        f"(request {one.request_id!r} sample {one.sample} position {one.position}){more}{beside}."
    )


def _measured(site: ReferenceSite) -> str:
    return f"{_times(site.ratio)} ({site.low:.3g} to {site.high:.3g})"


def _inverse(site: ReferenceSite) -> ReferenceSite:
    """The same ratio the other way round."""
    low, high = (math.inf if value == 0 else 1 / value for value in (site.high, site.low))
    ratio = math.inf if site.ratio == 0 else 1 / site.ratio
    return site.model_copy(update={"ratio": ratio, "low": low, "high": high})


def _times(ratio: float) -> str:
    return f"×{ratio:,.0f}" if ratio >= 1000 else f"×{ratio:.3g}"
