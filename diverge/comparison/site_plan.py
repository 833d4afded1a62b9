"""Which sites of two traces are compared, by hash or by sketch only, and which are not and why."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from ...schemas.trace import Site
from ..present.format import plural
from ..reading.load import Trace, site_key


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
    sharded = _sharded_alone(a, b)
    resized: list[str] = []
    for index, site in enumerate(a.header.sites):
        other_index = place_b.get(site_key(site))
        if other_index is None:
            continue
        other = b.header.sites[other_index]
        unlike = parallel[0] != parallel[1] or parallel[0] is None
        if (site.sharded or other.sharded) and unlike and not _SHARD.search(site.part):
            sharded.append(site)
        elif site.width and other.width and site.width != other.width:
            resized.append(site.label())
        elif equal_hash or equal_sketch:
            kept.append((index, other_index))
    if sharded:
        sizes = " and ".join("unknown" if size is None else str(size) for size in parallel)
        verb = "is" if len(sharded) == 1 else "are"
        notes.append(
            f"{plural(len(sharded), 'sharded site')} {verb} compared only under equal tensor parallelism "
            f"(here {sizes}): {_patterns([site.label() for site in sharded])}"
        )
    if resized:
        notes.append(
            f"{plural(len(resized), 'site')} of other width between the traces, so not compared: "
            + _patterns(resized)
        )
    both = bool(a.header.sites and b.header.sites)
    split = {id(site) for site in sharded}
    for trace, side in ((a, 0), (b, 1)):
        if not trace.header.sites:
            notes.append(f"{trace.path.name} was captured without sites, so layers cannot be compared")
        elif both:
            other_keys = {site_key(site) for site in (b, a)[side].header.sites}
            alone = [
                site.label()
                for site in trace.header.sites
                if site_key(site) not in other_keys and id(site) not in split
            ]
            if alone:
                notes.append(f"{plural(len(alone), 'site')} only in {trace.path.name}: {_patterns(alone)}")
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


def layer_number(label: str) -> int | None:
    """The layer in a site's label: 4 of `layers.4.self_attn:attn`."""
    found = re.search(r"(?:^|\.)(\d+)(?:[.#:]|$)", label)
    return int(found[1]) if found else None


def tensor_parallel_size(trace: Trace) -> int | None:
    """The tensor parallel size a trace ran under, or None where it does not say."""
    setting = trace.header.lane.settings.get("tensor_parallel_size")
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


def _patterns(labels: list[str]) -> str:
    """Labels with layer numbers taken out: `layers.*.mlp.gate_up_proj (30), norm`."""
    counts = Counter(re.sub(r"(?<=\.)\d+(?=[.:#]|$)", "*", label) for label in labels)
    named = [f"{name} ({count})" if count > 1 else name for name, count in counts.items()]
    more = f" and {len(named) - _SHOWN} more kinds" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


_SHOWN = 4
"""Kinds of sites that a sentence names."""
