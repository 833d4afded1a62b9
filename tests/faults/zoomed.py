"""Zoom on a case of the fault corpus: both sides run again, the fault planted anew.

What must hold then: the planted op is named, in its module, and the transplant proves that nothing else is an
origin.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from faults.case import Side
from faults.lab import Lab, Seen, header_of, tokens_of
from rip.diverge.op_comparison.compare_reruns import ZoomTarget, read_recorded, zoom
from rip.replay.op_recording.reconstruct import check_rerunnable, mode_of, rebuild_batch
from rip.replay.op_recording.rerun import run_side
from rip.schemas.zoom import Rerun, RunSide, SideRun

Target = tuple[str, int]
"""(request_id, sample)."""
HEAD, LOGITS = "lm_head", "logits"
"""What a verdict calls the output head, and what a transplant calls it."""


class Zoomer:
    """Runs zoom on cases. What the side without a fault showed is kept: many cases share it.

    Args:
        lab: Where the cases were run.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._shown: dict[tuple[Path, Target, Rerun], SideRun] = {}

    def look(self, seen: Seen) -> Seen:
        """The same, with what zoom finds; nothing, where the verdict names no row that differs."""
        first = seen.verdict.first_site
        if first is None:
            return seen
        target = first.request_id, first.sample
        tokens = tokens_of(seen.a)[target]
        case = seen.case
        found = zoom(
            self._running(case.model, case.a, seen.a, target, tokens),
            self._running(case.model, case.b, seen.b, target, tokens),
            ZoomTarget(
                *target,
                expected=first,
                recorded=(read_recorded(seen.a, *target), read_recorded(seen.b, *target)),
            ),
        )
        return replace(seen, zoom=found)

    def _running(
        self, family: str, side: Side, trace: Path, target: Target, tokens: tuple[int, ...]
    ) -> RunSide:
        header, own = header_of(trace), tokens_of(trace)
        check_rerunnable(str(trace), header)

        def run(request: Rerun) -> SideRun:
            key = trace, target, request
            if side.plant is None and request.patch is None and key in self._shown:
                return self._shown[key]
            with self._lab.opened(family, side) as (engine, _):
                batch, sequence = rebuild_batch(header, engine, target, tokens, own, trace)
                shown = run_side(engine, batch, mode_of(header), sequence, request)
            if side.plant is None and request.patch is None:
                self._shown[key] = shown
            return shown

        return run


def op_named(seen: Seen) -> bool | None:
    """Whether the finding is what was planted, in the module that it was planted into; None: no op was."""
    wanted = seen.case.named
    if wanted is None:
        return None
    if seen.zoom is None or seen.zoom.finding is None or seen.case.site is None:
        return False
    found = seen.zoom.finding
    if wanted.kind == "op":
        right = found.kind in ("op", "block") and any(op.op in wanted.names for op in (*found.a, *found.b))
    else:
        right = found.kind == wanted.kind and found.tensor in wanted.names
    module = seen.case.site.partition(":")[0] if wanted.module is None else wanted.module
    return right and all(op.module == module for op in (*found.a, *found.b))


def proven(seen: Seen) -> bool | None:
    """Whether the transplant proves the planted site, and no other than what the same fault moves by itself.

    Both re-runs must have shown their traces again, and have differed first where the traces do.
    """
    wanted = seen.case.named
    if wanted is None:
        return None
    if seen.zoom is None or seen.case.site is None:
        return False
    found, planted = seen.zoom.transplant, LOGITS if seen.case.site == HEAD else seen.case.site
    origins = {origin.site for origin in found.origins}
    return (
        seen.zoom.seen_again
        and (seen.zoom.a.state, seen.zoom.b.state) == ("repeated", "repeated")
        and found.state == "proven"
        and planted in origins
        and origins <= {planted, *wanted.origins}
        and found.logits == found.logits_equal > 0
    )
