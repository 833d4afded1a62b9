"""Zoom: both sides run again, the first difference looked at op by op, and A's rows put into B as the proof.

How a side runs comes in as a function. Causal order is position ascending, then site in execution order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from ...schemas.rerun import Ask, RunSide, SideRun
from ...schemas.trace import Site
from ...schemas.verdict import FirstSite
from ...schemas.zoom import OpFinding, Transplant, TransplantedSite, Zoom
from ..reading.load import site_key
from .ops import first_differing_op
from .recorded import Recorded, check

HEAD = r"^(?!layers\.)"
"""Modules that are looked at where all sites agree and only logits differ: those outside layers."""

LOGITS = "logits"
"""What the head gives, in place of a site's label."""

Say = Callable[[str], None]


def zoom(
    run_a: RunSide,
    run_b: RunSide,
    request_id: str = "",
    sample: int = 0,
    expected: FirstSite | None = None,
    recorded_a: Recorded | None = None,
    recorded_b: Recorded | None = None,
    say: Say | None = None,
) -> Zoom:
    """Look at the first difference of two runs of one sequence.

    Args:
        run_a: Runs A again, with A's tokens forced.
        run_b: Runs B again, with A's tokens forced.
        request_id: The sequence's request, for the result.
        sample: Which of its samples, likewise.
        expected: The first differing site of the traces; None: whatever the re-runs show first.
        recorded_a: What A's trace holds of the sequence, for the check that the re-run repeats it.
        recorded_b: The same of B.
        say: Told what is being done.

    Raises:
        RipError: Whatever running a side raises.
    """
    told = say or (lambda _: None)
    aim = None if expected is None else (expected.position, _label(expected), expected.site)
    if aim is None:
        told("re-running A")
        a = run_a(Ask())
        told("re-running B")
        b = run_b(Ask())
    else:
        a, b = _both(run_a, run_b, aim[0], _scope(aim[2]), told)
    found = first_difference(a, b)
    checks = check(a, recorded_a), check(b, recorded_b)
    notes = _site_notes(a, b)
    if found is None:
        if expected is not None:
            notes.append("the re-runs agree, rows and logits: what differed in the traces did not come again")
        return Zoom(
            request_id=request_id,
            sample=sample,
            position=expected.position if expected else 0,
            site=_label(expected) if expected else "",
            a=checks[0],
            b=checks[1],
            seen_again=False,
            finding=None if expected else OpFinding(kind="none", sentence="the runs agree, rows and logits"),
            transplant=Transplant(state="not run", why="the re-runs do not differ"),
            notes=notes,
        )
    position, site = found
    label = site.label() if site else ""
    cast = bool(a.sites) and not _common(a, b)
    if cast:  # no hash of theirs can be equal: the places where both begin are looked at
        position, label = (aim[0], aim[1]) if aim else (0, "")
    seen_again = not cast and (aim is None or (position, label) == aim[:2])
    if not seen_again and not cast and expected is not None:
        notes.append(_elsewhere(expected, position, label))
    if aim is None or not seen_again:
        a, b = _both(run_a, run_b, position, _scope(site.name) if site else HEAD, told)
    finding = None
    if a.ops is not None and b.ops is not None:
        finding = first_differing_op(a.ops, b.ops)
    transplant = Transplant(state="not run", why="no row of A fits into B, whose sites have another dtype")
    if not cast:
        told("re-running B with A's rows")
        transplant = transplanted(a, run_b(Ask(heal=a.kept)))
    return Zoom(
        request_id=request_id,
        sample=sample,
        position=position,
        site=label,
        a=checks[0],
        b=checks[1],
        seen_again=seen_again,
        finding=finding,
        transplant=transplant,
        notes=notes,
    )


def _both(run_a: RunSide, run_b: RunSide, position: int, scope: str, say: Say) -> tuple[SideRun, SideRun]:
    say("re-running A, op by op")
    a = run_a(Ask(position=position, scope=scope, keep_from=position))
    say("re-running B, op by op")
    return a, run_b(Ask(position=position, scope=scope))


def first_difference(a: SideRun, b: SideRun) -> tuple[int, Site | None] | None:
    """The first differing row of two runs in causal order; (position, None): logits differ behind equal rows.

    Sites that one side lacks are passed over, and so are those that have another dtype there.
    """
    common = _common(a, b)
    for position, (row_a, row_b) in enumerate(zip(a.row_hashes, b.row_hashes, strict=False)):
        for in_a, in_b, site in common:
            if row_a[in_a] and row_b[in_b] and row_a[in_a] != row_b[in_b]:
                return position, site
        logits = a.logits_hashes[position], b.logits_hashes[position]
        if None not in logits and logits[0] != logits[1]:
            return position, None
    return None


def _common(a: SideRun, b: SideRun) -> list[tuple[int, int, Site]]:
    """Sites that both observe in the same dtype: their indices in A and in B."""
    place = {site_key(site): index for index, site in enumerate(b.sites)}
    return [
        (index, place[site_key(site)], site)
        for index, site in enumerate(a.sites)
        if site_key(site) in place and b.sites[place[site_key(site)]].dtype == site.dtype
    ]


def transplanted(a: SideRun, healed: SideRun) -> Transplant:
    """What B's run with A's rows says: which sites needed them, and whether B then follows A.

    Args:
        a: A's run, with the rows that it kept.
        healed: B's run, in which every row that differed from A's was replaced by A's. Each of these had
            equal inputs, so each is an origin.
    """
    if a.kept is None:
        return Transplant(state="not run", why="no rows of A were kept")
    first, stop = a.kept.first, min(a.kept.stop, len(a.row_hashes), len(healed.row_hashes))
    by_site: dict[int, list[int]] = defaultdict(list)
    for position, index in sorted(healed.healed):
        by_site[index].append(position)
    origins = [
        TransplantedSite(site=healed.sites[index].label(), positions=len(at), first=min(at), last=max(at))
        for index, at in sorted(by_site.items())
    ]
    logits = [
        position
        for position in range(first, stop)
        if a.logits_hashes[position] is not None and healed.logits_hashes[position] is not None
    ]
    by_head = [at for at in logits if a.logits_hashes[at] != healed.logits_hashes[at]]
    left = _left_differing(a, healed, first, stop)
    why = None
    if left is not None:
        why = f"{left[1]} at position {left[0]} differs still, and A's row does not fit there"
    elif by_head:  # behind rows that are all A's
        origins.append(
            TransplantedSite(site=LOGITS, positions=len(by_head), first=by_head[0], last=by_head[-1])
        )
    elif not logits:
        why = "no logits were computed from the first difference on"
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


def _left_differing(a: SideRun, healed: SideRun, first: int, stop: int) -> tuple[int, str] | None:
    """The first row that still differs though A's rows were put in."""
    place = {site_key(site): index for index, site in enumerate(healed.sites)}
    for position in range(first, stop):
        for index, site in enumerate(a.sites):
            other = place.get(site_key(site))
            if other is None or (position, other) in healed.healed:
                continue
            digests = a.row_hashes[position][index], healed.row_hashes[position][other]
            if all(digests) and digests[0] != digests[1]:
                return position, site.label()
    return None


def _site_notes(a: SideRun, b: SideRun) -> list[str]:
    other = {site_key(site): site.dtype for site in b.sites}
    cast = [site.label() for site in a.sites if other.get(site_key(site), site.dtype) != site.dtype]
    if not cast:
        return []
    return [f"{len(cast)} sites have another dtype in B, so no hash of theirs can be equal: first {cast[0]}"]


def _elsewhere(expected: FirstSite, position: int, label: str) -> str:
    where = f"{label or 'the logits'} at position {position}"
    if not expected.is_origin:
        return (
            f"in the traces the first difference seen was {_label(expected)} at position "
            f"{expected.position}, no origin; the re-runs observe every site, and there it is {where}"
        )
    return (
        f"the traces differ first at {_label(expected)} at position {expected.position}, "
        f"the re-runs at {where}: what follows is about the re-runs"
    )


def _scope(module: str) -> str:
    return rf"^{re.escape(module)}(\.|$)"


def _label(site: FirstSite) -> str:
    return Site(name=site.site, occurrence=site.occurrence, part=site.part).label()
