"""Which sites of two traces are compared, by hash or by sketch only, and which are not and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..schemas.trace import Site
from .load import Trace, site_key
from .report_words import plural


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
    """Both traces' sketches are of one kind; without that no drift can be told."""
    unproven_before: np.ndarray
    """int64[sites]: sites before this one, in either trace's order, that no hash was compared for."""
    notes: list[str]


def plan_sites(a: Trace, b: Trace) -> SitePlan:
    """Pair the sites of two traces."""
    notes: list[str] = []
    place_b = {site_key(site): index for index, site in enumerate(b.header.sites)}
    parallel = tensor_parallel_size(a), tensor_parallel_size(b)
    equal_hash = a.header.row_hash == b.header.row_hash
    equal_sketch = a.header.sketch == b.header.sketch
    kept: list[tuple[int, int]] = []
    sharded: list[str] = []
    resized: list[str] = []
    for index, site in enumerate(a.header.sites):
        other_index = place_b.get(site_key(site))
        if other_index is None:
            continue
        other = b.header.sites[other_index]
        if (site.sharded or other.sharded) and (parallel[0] != parallel[1] or parallel[0] is None):
            sharded.append(site.label())
        elif site.width and other.width and site.width != other.width:
            resized.append(site.label())
        elif equal_hash or equal_sketch:
            kept.append((index, other_index))
    if sharded:
        sizes = " and ".join("unknown" if size is None else str(size) for size in parallel)
        notes.append(
            f"{_some(sharded)} of one rank's shard; tensor parallel sizes are {sizes}, so not compared"
        )
    if resized:
        notes.append(f"{_some(resized)} of other width between the traces, so not compared")
    both = bool(a.header.sites and b.header.sites)
    for trace, side in ((a, 0), (b, 1)):
        if not trace.header.sites:
            notes.append(f"{trace.path.name} was captured without sites, so layers cannot be compared")
        elif both:
            other_keys = {site_key(site) for site in (b, a)[side].header.sites}
            alone = [site.label() for site in trace.header.sites if site_key(site) not in other_keys]
            if alone:
                notes.append(f"{_some(alone)} only in {trace.path.name}")
    if both and not equal_hash:
        notes.append("the traces use different row hashes, so rows are compared by sketch only")
    if both and not equal_sketch:
        notes.append("the traces use different sketches, so the size of differences is not known")
    of_a, of_b = np.array(kept, np.int64).reshape(-1, 2).T
    sites = [a.header.sites[i] for i in of_a]
    dtypes_b = [b.header.sites[i].dtype for i in of_b]
    by_sketch = np.array(
        [s.dtype != d or not equal_hash for s, d in zip(sites, dtypes_b, strict=True)], np.bool_
    )
    usable = np.ones(len(sites), np.bool_) if equal_sketch else ~by_sketch
    sites = [site for site, use in zip(sites, usable, strict=True) if use]
    dtypes_b = [dtype for dtype, use in zip(dtypes_b, usable, strict=True) if use]
    of_a, of_b, by_sketch = of_a[usable], of_b[usable], by_sketch[usable]
    here = np.arange(len(sites))
    unproven = of_a - here + np.cumsum(by_sketch) - by_sketch
    if np.all(np.diff(of_b) > 0):  # in another order "before" means nothing in B
        unproven = unproven + of_b - here
    return SitePlan(sites, dtypes_b, of_a, of_b, by_sketch, equal_sketch, unproven, notes)


def tensor_parallel_size(trace: Trace) -> int | None:
    """The tensor parallel size a trace ran under, or None where it does not say."""
    setting = trace.header.lane.settings.get("tensor_parallel_size")
    if setting is not None:
        for reading in (setting.observed, setting.resolved):
            if isinstance(reading, int):
                return reading
    known = trace.header.fingerprint and trace.header.fingerprint.get("parallelism", "tensor_parallel_size")
    return known.value if known and isinstance(known.value, int) else None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{plural(len(names), 'site')} ({', '.join(names[:3])}{more})"
