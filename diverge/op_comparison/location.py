"""Where two re-runs differ first, and which of their sites can be compared.

Causal order is position ascending, then site in execution order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...schemas.trace import Site
from ...schemas.verdict import FirstSite
from ...schemas.zoom import SideRun
from ..comparison.tally import LOGITS_SITE
from ..reading.load import SiteKey, site_key

HEAD = r"^(?!layers\.)"
"""Modules whose ops are compared where all sites agree and only logits differ: those outside layers."""


@dataclass(frozen=True)
class OpLocation:
    """One row of a sequence, or its logits.

    Attributes:
        position: The position.
        site: Key of the site; None: the logits, behind equal rows.
    """

    position: int
    site: SiteKey | None

    @property
    def label(self) -> str:
        """Of the site; empty for the logits."""
        return "" if self.site is None else label_of(self.site)

    @property
    def scope(self) -> str:
        """Pattern for the modules whose ops are compared."""
        return HEAD if self.site is None else rf"^{re.escape(self.site[0])}(\.|$)"


def location_of(first: FirstSite) -> OpLocation:
    """The location that a verdict names."""
    key = first.site, first.occurrence, first.part
    return OpLocation(first.position, None if key == (LOGITS_SITE, 0, "") else key)


def label_of(key: SiteKey) -> str:
    """The label of a site."""
    return Site(name=key[0], occurrence=key[1], part=key[2]).label()


def first_difference(a: SideRun, b: SideRun) -> OpLocation | None:
    """The first differing row of two runs in causal order, or where logits differ behind equal rows.

    Sites that one side lacks are passed over, and so are those that have another dtype there.
    """
    common = common_sites(a, b)
    for position, (row_a, row_b) in enumerate(zip(a.row_hashes, b.row_hashes, strict=False)):
        for in_a, in_b, key in common:
            if row_a[in_a] and row_b[in_b] and row_a[in_a] != row_b[in_b]:
                return OpLocation(position, key)
        logits = a.logits_hashes[position], b.logits_hashes[position]
        if None not in logits and logits[0] != logits[1]:
            return OpLocation(position, None)
    return None


def differ_at(a: SideRun, b: SideRun, location: OpLocation) -> bool:
    """Whether both runs computed this row, or these logits, and they are not equal."""
    if location.position >= min(len(a.row_hashes), len(b.row_hashes)):
        return False
    if location.site is None:
        logits = a.logits_hashes[location.position], b.logits_hashes[location.position]
        return None not in logits and logits[0] != logits[1]
    for in_a, in_b, key in common_sites(a, b):
        if key == location.site:
            rows = a.row_hashes[location.position][in_a], b.row_hashes[location.position][in_b]
            return all(rows) and rows[0] != rows[1]
    return False


def common_sites(a: SideRun, b: SideRun) -> list[tuple[int, int, SiteKey]]:
    """Sites that both observe in the same dtype: their indices in A and in B."""
    in_b = {site_key(site): index for index, site in enumerate(b.sites)}
    return [
        (index, in_b[site_key(site)], site_key(site))
        for index, site in enumerate(a.sites)
        if site_key(site) in in_b and b.sites[in_b[site_key(site)]].dtype == site.dtype
    ]


def origin_of(location: OpLocation, patched: SideRun) -> OpLocation:
    """The location itself where a row of A had to be put in; else the first at which one had to be.

    A row that differs in B and no longer differs once the rows before it are A's has no fault of its own. It
    may stand at an earlier position than the one that moved it: a mask does not hold NaN back, and experts
    compute the tokens of a pass together.

    Args:
        location: The first difference of the re-runs.
        patched: B's run with A's rows.
    """
    origins = [
        OpLocation(position, site_key(patched.sites[index])) for position, index in sorted(patched.patched)
    ]
    return location if location.site is None or location in origins or not origins else origins[0]
