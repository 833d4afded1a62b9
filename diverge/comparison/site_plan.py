"""Which sites of two traces are compared, by hash or by sketch only, and which are not and why."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from ...schemas.findings.unseen import NotRecorded, SiteGroup, SitesLeftOut, SummariesDiffer
from ...schemas.trace import Site
from ..reading.load import Trace, site_key

Limit = SitesLeftOut | SummariesDiffer | NotRecorded
"""What limits the comparison of sites."""


@dataclass(frozen=True)
class SitePlan:
    """The sites that are compared, in A's execution order."""

    sites: list[Site]
    """As A describes them."""
    dtypes_b: list[str]
    of_a: np.ndarray
    """int64[sites]: index in A's header."""
    of_b: np.ndarray
    by_sketch: np.ndarray
    """bool[sites]: no hash can be equal (dtype or row hash differ), so only sketches are compared."""
    sketches: bool
    """Both traces' sketches are of one kind; without that no drift is known."""
    unproven_before: np.ndarray
    """int64[sites]: sites before this one, in either trace's order, that no hash was compared for."""
    limits: list[Limit]


def plan_sites(a: Trace, b: Trace) -> SitePlan:
    """Pair the sites of two traces."""
    equal_hash = a.header.row_hash == b.header.row_hash
    equal_sketch = a.header.sketch == b.header.sketch
    pairs, limits = _pair_sites(a, b)
    if a.header.sites and b.header.sites:
        if not equal_hash:
            limits.append(SummariesDiffer(what="row hashes"))
        if not equal_sketch:
            limits.append(SummariesDiffer(what="sketches"))
    of_a, of_b = np.array(pairs, np.int64).reshape(-1, 2).T
    dtypes = [(a.header.sites[i].dtype, b.header.sites[j].dtype) for i, j in pairs]
    by_sketch = np.array([dtype != other or not equal_hash for dtype, other in dtypes], np.bool_)
    if not equal_sketch:
        of_a, of_b, by_sketch = of_a[~by_sketch], of_b[~by_sketch], by_sketch[~by_sketch]
    here = np.arange(len(of_a))
    unproven = of_a - here + np.cumsum(by_sketch) - by_sketch
    if np.all(np.diff(of_b) > 0):  # in a different order "before" means nothing in B
        unproven = unproven + of_b - here
    return SitePlan(
        sites=[a.header.sites[i] for i in of_a],
        dtypes_b=[b.header.sites[i].dtype for i in of_b],
        of_a=of_a,
        of_b=of_b,
        by_sketch=by_sketch,
        sketches=equal_sketch,
        unproven_before=unproven,
        limits=limits,
    )


def _pair_sites(a: Trace, b: Trace) -> tuple[list[tuple[int, int]], list[Limit]]:
    """Indices in both headers of the sites that can be compared, and what is left out."""
    index_b = {site_key(site): index for index, site in enumerate(b.header.sites)}
    sizes = tensor_parallel_size(a), tensor_parallel_size(b)
    comparable_shards = sizes[0] == sizes[1] and sizes[0] is not None
    pairs: list[tuple[int, int]] = []
    sharded, resized = _sharded_alone(a, b), list[str]()
    for index, site in enumerate(a.header.sites):
        other_index = index_b.get(site_key(site))
        if other_index is None:
            continue
        other = b.header.sites[other_index]
        if (site.sharded or other.sharded) and not comparable_shards and not _SHARD.search(site.part):
            sharded.append(site)
        elif site.width and other.width and site.width != other.width:
            resized.append(site.label())
        else:
            pairs.append((index, other_index))
    limits: list[Limit] = []
    if sharded:
        groups = _groups([site.label() for site in sharded])
        limits.append(
            SitesLeftOut(
                kind="sharded sites", groups=groups, tensor_parallel_a=sizes[0], tensor_parallel_b=sizes[1]
            )
        )
    if resized:
        limits.append(SitesLeftOut(kind="different width", groups=_groups(resized)))
    return pairs, limits + _only_in_one(a, b, {id(site) for site in sharded})


def _only_in_one(a: Trace, b: Trace, sharded: set[int]) -> list[Limit]:
    """Sites that one trace lacks, but for sharded ones, of which more is known."""
    limits: list[Limit] = []
    for trace, other in ((a, b), (b, a)):
        if not trace.header.sites:
            limits.append(NotRecorded(what="sites", trace=trace.path.name))
        elif other.header.sites:
            keys = {site_key(site) for site in other.header.sites}
            alone = [
                site.label()
                for site in trace.header.sites
                if site_key(site) not in keys and id(site) not in sharded
            ]
            if alone:
                limits.append(
                    SitesLeftOut(kind="sites only in one trace", groups=_groups(alone), trace=trace.path.name)
                )
    return limits


def layer_number(label: str) -> int | None:
    """The layer in a site's label: 4 of `layers.4.self_attn:attn`."""
    found = re.search(r"(?:^|\.)(\d+)(?:[.#:]|$)", label)
    return int(found[1]) if found else None


def tensor_parallel_size(trace: Trace) -> int | None:
    """The tensor parallel size a trace ran under, or None where it does not say."""
    stated = {name.replace("-", "_"): known for name, known in trace.header.lane.settings.items()}
    setting = stated.get("tensor_parallel_size")
    if setting is not None:
        for reading in (setting.observed, setting.resolved):
            if isinstance(reading, int):
                return reading
    known = trace.header.fingerprint and trace.header.fingerprint.get("parallelism", "tensor_parallel_size")
    return known.value if known and isinstance(known.value, int) else None


_SHARD = re.compile(r"(^|\.)tp\d+of\d+$")
"""The part of a site that is one rank's shard: two of one name are of equal tensor parallelism."""


def _sharded_alone(a: Trace, b: Trace) -> list[Site]:
    """Sites of one trace that are sharded there or in the other one, and so have no counterpart."""
    found: list[Site] = []
    for mine, theirs in ((a, b), (b, a)):
        keys = {site_key(site) for site in theirs.header.sites}
        split = {(site.name, site.occurrence) for site in theirs.header.sites if site.sharded}
        found += [
            site
            for site in mine.header.sites
            if site_key(site) not in keys and (site.sharded or (site.name, site.occurrence) in split)
        ]
    return found


def _groups(labels: list[str]) -> list[SiteGroup]:
    """Labels by what they are without layer numbers."""
    counts = Counter(re.sub(r"(?<=\.)\d+(?=[.:#]|$)", "*", label) for label in labels)
    return [SiteGroup(pattern=pattern, count=count) for pattern, count in counts.items()]
