"""What activation patching (transplant) proves: B's run with A's rows in it."""

from __future__ import annotations

from collections import defaultdict

from ...schemas.findings.ops import NotTransplanted, StillDiffers
from ...schemas.findings.statement import Location
from ...schemas.zoom import SideRun, Transplant, TransplantedSite
from ..reading.load import site_key

LOGITS = "logits"
"""The output of the head, instead of a site's label."""


def transplanted(a: SideRun, patched: SideRun) -> Transplant:
    """Which sites needed A's rows, and whether B then follows A.

    Args:
        a: A's run, with the rows that it kept.
        patched: B's run, in which every row that differed from A's was replaced by A's. Each of these had
            equal inputs, so each is an origin.
    """
    if a.kept is None:
        return Transplant(state="not run", why=NotTransplanted(kind="no rows kept"))
    first, stop = a.kept.first, min(a.kept.stop, len(a.row_hashes), len(patched.row_hashes))
    by_site: dict[int, list[int]] = defaultdict(list)
    for position, index in sorted(patched.patched):
        by_site[index].append(position)
    origins = [
        TransplantedSite(site=patched.sites[index].label(), positions=len(at), first=min(at), last=max(at))
        for index, at in sorted(by_site.items())
    ]
    logits = [
        position
        for position in range(first, stop)
        if a.logits_hashes[position] is not None and patched.logits_hashes[position] is not None
    ]
    by_head = [at for at in logits if a.logits_hashes[at] != patched.logits_hashes[at]]
    left = _left_differing(a, patched, first, stop)
    why: StillDiffers | NotTransplanted | None = None
    if left is not None:
        why = StillDiffers(at=left)
    elif by_head:  # behind rows that are all A's
        origins.append(
            TransplantedSite(site=LOGITS, positions=len(by_head), first=by_head[0], last=by_head[-1])
        )
    elif not logits:
        why = NotTransplanted(kind="no logits")
    last = max((position for position in range(first, stop) if any(a.row_hashes[position])), default=first)
    return Transplant(
        state="proven" if why is None else "not proven",
        origins=origins,
        first=first,
        last=last,
        logits=len(logits),
        logits_equal=len(logits) - (0 if left is None else len(by_head)),
        why=why,
    )


def _left_differing(a: SideRun, patched: SideRun, first: int, stop: int) -> Location | None:
    """The first row that still differs though A's rows were put in."""
    index_of = {site_key(site): index for index, site in enumerate(patched.sites)}
    for position in range(first, stop):
        for index, site in enumerate(a.sites):
            other = index_of.get(site_key(site))
            if other is None or (position, other) in patched.patched:
                continue
            digests = a.row_hashes[position][index], patched.row_hashes[position][other]
            if all(digests) and digests[0] != digests[1]:
                return Location(position=position, site=site.label())
    return None
