"""Zoom: compare two re-runs of one sequence op by op; prove the origin by activation patching (transplant).

How a side runs comes in as a function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import BadInput
from ...schemas.findings.ops import (
    FoundElsewhere,
    NotReproduced,
    NotTransplanted,
    RunsEqual,
    SitesRetyped,
    StillDiffers,
    ZoomNote,
)
from ...schemas.findings.statement import Location
from ...schemas.verdict import FirstSite
from ...schemas.zoom import OpFinding, Rerun, RunSide, SideCheck, SideRun, Transplant, TransplantedSite, Zoom
from ..reading.load import DAMAGE, Group, SiteKey, damaged, open_trace, site_key
from .findings import with_producing_op
from .first_op import first_differing_op, ops_leading_to
from .location import (
    OpLocation,
    common_sites,
    differ_at,
    first_difference,
    label_of,
    location_of,
    origin_of,
)


@dataclass(frozen=True)
class Recorded:
    """One sequence of a trace, by position."""

    tokens: dict[int, int] = field(repr=False)
    hashes: dict[int, tuple[bytes, ...]] = field(repr=False)
    """Row hash of each site; empty bytes where the row was not computed."""
    sites: tuple[SiteKey, ...]


def read_recorded(path: Path, request_id: str, sample: int) -> Recorded:
    """Read one sequence of a trace.

    Raises:
        BadInput: The trace cannot be read, or does not hold the sequence.
    """
    trace = open_trace(path)
    tokens: dict[int, int] = {}
    hashes: dict[int, tuple[bytes, ...]] = {}
    try:
        for group in trace.groups:
            for position, token, digests in _rows(group, request_id, sample):
                tokens[position] = token
                hashes[position] = tuple(digest or b"" for digest in digests)
    except DAMAGE as error:
        raise damaged(path, error) from None
    if not tokens:
        raise BadInput(f"{path} has no sample {sample} of {request_id}", "compare traces that have it")
    return Recorded(tokens, hashes, tuple(site_key(site) for site in trace.header.sites))


def _rows(group: Group, request_id: str, sample: int) -> Iterator[tuple[int, int, Sequence[bytes | None]]]:
    """Position, token and row hashes of the rows of one sequence."""
    file = group.part.file
    table = file.read_row_group(group.index, columns=["request_id", "sample", "position", "token_id"])
    of_request = pc.equal(table["request_id"].cast(pa.string()), request_id)
    rows = np.flatnonzero(pc.and_(of_request, pc.equal(table["sample"], sample)).to_numpy())
    if not len(rows):
        return
    hashes: list[Sequence[bytes | None] | None] = [None] * len(rows)
    if group.part.width:
        hashes = file.read_row_group(group.index, columns=["site_hash"])["site_hash"].take(rows).to_pylist()
    chosen = table.take(rows)
    for position, token, digests in zip(
        chosen["position"].to_pylist(), chosen["token_id"].to_pylist(), hashes, strict=True
    ):
        yield position, token, digests or ()


def check(run: SideRun, known: Recorded | None) -> SideCheck:
    """Whether a re-run repeats the recorded rows, as far as the tokens are those that were recorded."""
    if known is None or not any(any(row) for row in known.hashes.values()):
        return SideCheck(state="not recorded")
    index = {site_key(site): number for number, site in enumerate(run.sites)}
    columns = [index.get(key) for key in known.sites]
    labels = [site.label() for site in run.sites]
    compared = 0
    for position, token in enumerate(run.tokens):
        if known.tokens.get(position) != token:
            break
        for digest, column in zip(known.hashes.get(position, ()), columns, strict=False):
            if column is None or not digest or not run.row_hashes[position][column]:
                continue
            compared += 1
            if run.row_hashes[position][column] != digest:
                where = Location(position=position, site=labels[column])
                return SideCheck(state="not repeated", rows=compared, where=where)
    return SideCheck(state="repeated" if compared else "not recorded", rows=compared)


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
        maker = first_differing_op(
            ops_leading_to(whole_a, found.maker_a), ops_leading_to(whole_b, found.maker_b)
        )
        return with_producing_op(found, maker) if maker.kind in ("op", "block", "weight") else found


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
