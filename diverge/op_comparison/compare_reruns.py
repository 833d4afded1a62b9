"""Zoom: compare two re-runs of one sequence op by op; prove the origin by activation patching (transplant).

How a side runs comes in as a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...schemas.findings.ops import (
    FoundElsewhere,
    NotReproduced,
    NotTransplanted,
    RunsEqual,
    SitesRetyped,
    ZoomNote,
)
from ...schemas.findings.statement import Location
from ...schemas.verdict import FirstSite
from ...schemas.zoom import OpFinding, Rerun, RunSide, SideCheck, SideRun, Transplant, Zoom
from ..reading.load import site_key
from .findings import with_maker
from .first_op import first_differing_op, making
from .location import (
    OpLocation,
    common_sites,
    differ_at,
    first_difference,
    label_of,
    location_of,
    origin_of,
)
from .rerun_check import Recorded, check
from .transplant import transplanted

Say = Callable[[str], None]


@dataclass(frozen=True)
class ZoomTarget:
    """The sequence that both sides run again, and what is known of it."""

    request_id: str = ""
    sample: int = 0
    expected: FirstSite | None = None
    """The first differing site of the traces; None: the first that the re-runs show."""
    recorded: tuple[Recorded | None, Recorded | None] = (None, None)
    """What the traces of A and B hold of it, to check that the re-runs repeat it."""


def zoom(run_a: RunSide, run_b: RunSide, target: ZoomTarget = ZoomTarget(), say: Say | None = None) -> Zoom:
    """Find the first differing op of two runs of one sequence.

    Args:
        run_a: Runs A again, with A's tokens forced.
        run_b: Runs B again, with A's tokens forced.
        target: The sequence.
        say: Called with what is being done.

    Raises:
        RipError: Whatever running a side raises.
    """
    reruns = _Reruns(run_a, run_b, say or (lambda _: None))
    expected = target.expected
    aim = None if expected is None else location_of(expected)
    a, b = reruns.whole() if aim is None else reruns.by_op(aim, aim.position)
    first = first_difference(a, b)
    checks = check(a, target.recorded[0]), check(b, target.recorded[1])
    notes = _dtype_notes(a, b)
    if first is None:
        return _equal(target, aim, checks=checks, notes=notes)
    dtypes_differ = bool(a.sites) and not common_sites(a, b)
    location = first
    if dtypes_differ:  # no hash of theirs can be equal: ops are compared from the beginning
        location = aim or OpLocation(0, None)
    elif aim is not None and expected is not None and expected.is_origin and differ_at(a, b, aim):
        location = aim  # the verdict knows why it begins there, though rows of earlier positions differ
    keep_from = location.position if dtypes_differ else min(location.position, first.position)
    if aim is None or location != aim or keep_from < aim.position:
        a, b = reruns.by_op(location, keep_from)
    transplant = Transplant(state="not run", why=NotTransplanted(kind="dtypes differ"))
    if not dtypes_differ:
        patched = reruns.patched(a)
        transplant = transplanted(a, patched)
        origin = origin_of(location, patched)
        if origin != location:
            location = origin
            a, b = reruns.by_op(location, None)
    repeated = not dtypes_differ and aim in (None, location)
    if not repeated and not dtypes_differ and expected is not None:
        notes.append(_elsewhere(expected, location))
    return Zoom(
        request_id=target.request_id,
        sample=target.sample,
        position=location.position,
        site=location.label,
        a=checks[0],
        b=checks[1],
        seen_again=repeated,
        finding=reruns.first_op(a, b),
        transplant=transplant,
        notes=notes,
    )


@dataclass(frozen=True)
class _Reruns:
    """Both sides, to be run again as often as it takes."""

    run_a: RunSide
    run_b: RunSide
    say: Say

    def whole(self) -> tuple[SideRun, SideRun]:
        """Rows and logits of both, without ops."""
        self.say("re-running A")
        a = self.run_a(Rerun())
        self.say("re-running B")
        return a, self.run_b(Rerun())

    def by_op(self, location: OpLocation, keep_from: int | None) -> tuple[SideRun, SideRun]:
        """Both with the ops at a location, and A's rows kept from a position on."""
        self.say("re-running A, op by op")
        a = self.run_a(Rerun(position=location.position, scope=location.scope, keep_from=keep_from))
        self.say("re-running B, op by op")
        return a, self.run_b(Rerun(position=location.position, scope=location.scope))

    def patched(self, a: SideRun) -> SideRun:
        """B with the rows that were kept of A."""
        self.say("re-running B with A's rows")
        return self.run_b(Rerun(patch=a.kept))

    def first_op(self, a: SideRun, b: SideRun) -> OpFinding | None:
        """The first op that differs; where a different module made what differs, that module's."""
        if a.ops is None or b.ops is None:
            return None
        found = first_differing_op(a.ops, b.ops)
        if found.maker_a is None and found.maker_b is None:
            return found
        self.say("re-running both, every op of the pass")
        position = a.ops.position
        whole_a, whole_b = self.run_a(Rerun(position=position)).ops, self.run_b(Rerun(position=position)).ops
        if whole_a is None or whole_b is None:
            return found
        maker = first_differing_op(making(whole_a, found.maker_a), making(whole_b, found.maker_b))
        return with_maker(found, maker) if maker.kind in ("op", "block", "weight") else found


def _equal(
    target: ZoomTarget, aim: OpLocation | None, checks: tuple[SideCheck, SideCheck], notes: list[ZoomNote]
) -> Zoom:
    """The re-runs do not differ."""
    finding = None
    if aim is None:
        finding = OpFinding(kind="none", shows=RunsEqual())
    else:
        notes = [*notes, NotReproduced()]
    return Zoom(
        request_id=target.request_id,
        sample=target.sample,
        position=aim.position if aim else 0,
        site=aim.label if aim else "",
        a=checks[0],
        b=checks[1],
        seen_again=False,
        finding=finding,
        transplant=Transplant(state="not run", why=NotTransplanted(kind="runs equal")),
        notes=notes,
    )


def _dtype_notes(a: SideRun, b: SideRun) -> list[ZoomNote]:
    dtypes_b = {site_key(site): site.dtype for site in b.sites}
    sites = [site.label() for site in a.sites if dtypes_b.get(site_key(site), site.dtype) != site.dtype]
    return [SitesRetyped(sites=len(sites), first=sites[0])] if sites else []


def _elsewhere(expected: FirstSite, location: OpLocation) -> FoundElsewhere:
    recorded = label_of((expected.site, expected.occurrence, expected.part))
    return FoundElsewhere(
        recorded=Location(position=expected.position, site=recorded),
        found=Location(position=location.position, site=location.label or None),
        is_origin=expected.is_origin,
    )
