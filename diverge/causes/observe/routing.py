"""Which experts the routers of a mixture-of-experts model chose, and where the two sides differ in that.

Shapes: P positions of one sequence, S compared sites.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ....schemas.trace import SKETCH_SIZE, Site
from ...comparison.site_plan import SitePlan
from ...comparison.tabulate import PairRowReader, SiteRowReader
from ...comparison.tally import PairState


@dataclass(frozen=True)
class Routing:
    """The first row at which a router chose different experts."""

    position: int
    site: Site
    experts: tuple[list[int], list[int]] | None = None
    """Those that A and B chose, in the router's order; None: they cannot be read from the sketches."""
    differing: int = 1
    """Positions at which the choice differs though everything before is equal."""
    compared: int = 1
    """All positions at which everything before is equal."""


def first_routing(
    plan: SitePlan,
    unlike: np.ndarray,
    both: np.ndarray,
    start: int,
    rows: PairRowReader,
    state: PairState,
) -> Routing | None:
    """The first row, in causal order, at which the chosen experts differ.

    Args:
        plan: The compared sites.
        unlike: bool[P, S], where rows differ.
        both: bool[P, S], where both traces have rows.
        start: The first of the P positions.
        rows: Of both sides.
        state: The pair.
    """
    chosen = np.array([is_choice(site) for site in plan.sites])
    differing = unlike & chosen
    if not differing.any():
        return None
    row = int(differing.any(axis=1).argmax())
    site = int(differing[row].argmax())
    equal_before = both[:, site] & ~unlike[:, :site].any(axis=1)
    counts = int(np.count_nonzero(equal_before & unlike[:, site])), int(np.count_nonzero(equal_before))
    experts = None
    if _is_readable(plan, site):
        (a, _), (b, _) = rows.column(state.pair, np.array([start + row]), site)
        width = plan.sites[site].width
        experts = _indices(a, width)[0].tolist(), _indices(b, width)[0].tolist()
    return Routing(start + row, plan.sites[site], experts, *counts)


def experts_at_fault(
    plan: SitePlan, state: PairState, reader: SiteRowReader, positions: np.ndarray, differs: np.ndarray
) -> list[int]:
    """The experts that every differing row of the first differing site went through, and no equal row did.

    Args:
        plan: The compared sites.
        state: The pair; its first differing site is the output of some experts.
        reader: Of A's rows.
        positions: int[n], where everything before that site is equal, ascending.
        differs: bool[n], where the site differs.
    """
    block = plan.sites[state.first_site].name.rpartition(".")[0]
    chosen_by = [
        index
        for index, site in enumerate(plan.sites[: state.first_site])
        if is_choice(site) and site.name.startswith(f"{block}.") and _is_readable(plan, index)
    ]
    if not chosen_by or differs.all() or not differs.any():
        return []
    sketches, _ = reader.column(state.pair.a, positions, chosen_by[-1])
    chosen = _indices(sketches, plan.sites[chosen_by[-1]].width)
    common = set.intersection(*(set(row) for row in chosen[differs].tolist()))
    return sorted(common - set(chosen[~differs].ravel().tolist()))


def _is_readable(plan: SitePlan, site: int) -> bool:
    """Its indices can be read: no more of them than a sketch has lanes, so each is a lane or its negative."""
    return plan.sketches and plan.sites[site].width <= SKETCH_SIZE


def _indices(sketches: np.ndarray, width: int) -> np.ndarray:
    """int64[n, width]: the chosen experts."""
    found: np.ndarray = np.abs(sketches[:, :width]).astype(np.int64)
    return found


def has_experts(plan: SitePlan, site: int) -> bool:
    """Experts, or what a router chose, were observed in the block of a site."""
    block = f"{plan.sites[site].name.rpartition('.')[0]}."
    beside = [one for one in plan.sites if one.name.startswith(block)]
    return any(is_choice(one) or _EXPERTS.search(one.name) for one in beside)


_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")


def is_choice(site: Site) -> bool:
    """Its rows are indices that a router chose."""
    return site.dtype.startswith(("int", "uint"))
