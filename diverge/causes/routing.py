"""Which experts the routers of a mixture-of-experts model chose, and where the two sides chose otherwise.

Shapes: P positions of one sequence, S compared sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...schemas.trace import SKETCH_SIZE, Site
from ..comparison.site_plan import SitePlan
from ..comparison.site_rows import SiteRowReader
from ..comparison.tally import PairState


@dataclass(frozen=True)
class Routing:
    """The first row at which a router chose other experts."""

    position: int
    site: Site
    experts: tuple[list[int], list[int]] | None = None
    """Those that A and B chose, in the router's order; None: they cannot be read from the sketches."""

    def told(self) -> str:
        """`experts 3, 1 in A and 3, 0 in B`; empty: not known."""
        if self.experts is None:
            return ""
        a, b = (", ".join(map(str, chosen)) for chosen in self.experts)
        return f"{'experts' if len(self.experts[0]) > 1 else 'expert'} {a} in A and {b} in B"


def first_routing(
    plan: SitePlan,
    unlike: np.ndarray,
    start: int,
    rows: tuple[SiteRowReader, SiteRowReader],
    state: PairState,
) -> Routing | None:
    """The first row, in causal order, at which other experts were chosen. `unlike`: bool[P, S]."""
    chosen = np.array([is_choice(site) for site in plan.sites])
    differing = unlike & chosen
    if not differing.any():
        return None
    row = int(differing.any(axis=1).argmax())
    site = int(differing[row].argmax())
    if not plan.sketches or plan.sites[site].width > SKETCH_SIZE:
        return Routing(start + row, plan.sites[site])
    # No more elements than lanes: each lane of the sketch is one index, or its negative.
    a, b = (
        reader.sketches(sequence, start + row, np.array([site]))[0][0, : plan.sites[site].width]
        for reader, sequence in zip(rows, (state.pair.a, state.pair.b), strict=True)
    )
    experts = np.abs(a).astype(int).tolist(), np.abs(b).astype(int).tolist()
    return Routing(start + row, plan.sites[site], experts)


def is_choice(site: Site) -> bool:
    """Its rows are indices that a router chose."""
    return site.dtype.startswith(("int", "uint"))
