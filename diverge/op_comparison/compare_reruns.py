"""Zoom: both sides run again, the first difference looked at op by op, and A's rows put into B as the proof.

How a side runs comes in as a function.
"""

from __future__ import annotations

from collections.abc import Callable

from ...schemas.rerun import Ask, RunSide, SideRun
from ...schemas.verdict import FirstSite
from ...schemas.zoom import OpFinding, Transplant, Zoom
from ..reading.load import site_key
from .first_op import first_differing_op, making
from .location import Spot, common_sites, differ_at, first_difference, label_of, origin_of, spot_of
from .rerun_check import Recorded, check
from .transplant import transplanted

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
    aim = None if expected is None else spot_of(expected)
    if aim is None:
        told("re-running A")
        a = run_a(Ask())
        told("re-running B")
        b = run_b(Ask())
    else:
        a, b = _both(run_a, run_b, aim, aim.position, told)
    first = first_difference(a, b)
    checks = check(a, recorded_a), check(b, recorded_b)
    notes = _site_notes(a, b)
    if first is None:
        if aim is not None:
            notes.append("the re-runs agree, rows and logits: what differed in the traces did not come again")
        return Zoom(
            request_id=request_id,
            sample=sample,
            position=aim.position if aim else 0,
            site=aim.label if aim else "",
            a=checks[0],
            b=checks[1],
            seen_again=False,
            finding=None if aim else OpFinding(kind="none", sentence="the runs agree, rows and logits"),
            transplant=Transplant(state="not run", why="the re-runs do not differ"),
            notes=notes,
        )
    spot = first
    cast = bool(a.sites) and not common_sites(a, b)
    if cast:  # no hash of theirs can be equal: the places where both begin are looked at
        spot = aim or Spot(0, None)
    elif aim is not None and expected is not None and expected.is_origin and differ_at(a, b, aim):
        spot = aim  # the verdict knows why it begins there, though rows of earlier positions differ
    keep_from = spot.position if cast else min(spot.position, first.position)
    if aim is None or spot != aim or keep_from < aim.position:
        a, b = _both(run_a, run_b, spot, keep_from, told)
    transplant = Transplant(state="not run", why="no row of A fits into B, whose sites have another dtype")
    if not cast:
        told("re-running B with A's rows")
        healed = run_b(Ask(heal=a.kept))
        transplant = transplanted(a, healed)
        origin = origin_of(spot, healed)
        if origin != spot:
            spot = origin
            a, b = _both(run_a, run_b, spot, None, told)
    seen_again = not cast and aim in (None, spot)
    if not seen_again and not cast and expected is not None:
        notes.append(_elsewhere(expected, spot))
    return Zoom(
        request_id=request_id,
        sample=sample,
        position=spot.position,
        site=spot.label,
        a=checks[0],
        b=checks[1],
        seen_again=seen_again,
        finding=_finding(run_a, run_b, a, b, told),
        transplant=transplant,
        notes=notes,
    )


def _both(
    run_a: RunSide, run_b: RunSide, spot: Spot, keep_from: int | None, say: Say
) -> tuple[SideRun, SideRun]:
    say("re-running A, op by op")
    a = run_a(Ask(position=spot.position, scope=spot.scope, keep_from=keep_from))
    say("re-running B, op by op")
    return a, run_b(Ask(position=spot.position, scope=spot.scope))


def _finding(run_a: RunSide, run_b: RunSide, a: SideRun, b: SideRun, say: Say) -> OpFinding | None:
    """The first op that differs; where another module made what differs, that module's."""
    if a.ops is None or b.ops is None:
        return None
    found = first_differing_op(a.ops, b.ops)
    if found.maker_a is None and found.maker_b is None:
        return found
    say("re-running both, every op of the pass")
    position = a.ops.position
    whole_a, whole_b = run_a(Ask(position=position)).ops, run_b(Ask(position=position)).ops
    if whole_a is None or whole_b is None:
        return found
    maker = first_differing_op(making(whole_a, found.maker_a), making(whole_b, found.maker_b))
    if maker.kind not in ("op", "block", "weight"):
        return found
    taken = found.sentence.partition(",")[0]
    counts = {name: getattr(found, name) for name in ("matched", "only_a", "only_b")}
    return maker.model_copy(
        update={"sentence": f"{taken}: {maker.sentence}", "tensor": maker.tensor or found.tensor, **counts}
    )


def _site_notes(a: SideRun, b: SideRun) -> list[str]:
    other = {site_key(site): site.dtype for site in b.sites}
    cast = [site.label() for site in a.sites if other.get(site_key(site), site.dtype) != site.dtype]
    if not cast:
        return []
    return [f"{len(cast)} sites have another dtype in B, so no hash of theirs can be equal: first {cast[0]}"]


def _elsewhere(expected: FirstSite, spot: Spot) -> str:
    there = label_of((expected.site, expected.occurrence, expected.part))
    where = f"{spot.label or 'the logits'} at position {spot.position}"
    if not expected.is_origin:
        return (
            f"in the traces the first difference seen was {there} at position {expected.position}, no "
            f"origin; the re-runs observe every site, and there it is {where}"
        )
    return (
        f"the traces differ first at {there} at position {expected.position}, "
        f"the re-runs at {where}: what follows is about the re-runs"
    )
