"""The experiment of `rip diverge --zoom`: both sides of a comparison run again to the first differing op."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Any

from ..schemas.errors import BadInput
from ..schemas.findings.ops import ModelFilesChanged
from .progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..replay.request.resolve_request import Golden
    from ..schemas.fingerprint import Fingerprint
    from ..schemas.trace import TraceHeader
    from ..schemas.verdict import Verdict
    from ..schemas.zoom import Rerun, SideRun, Zoom

Target = tuple[str, int]
"""(request_id, sample)."""


def zoom_into(
    verdict: Verdict, paths: tuple[Path, Path], headers: tuple[TraceHeader, TraceHeader], progress: Progress
) -> Verdict:
    """Run both sides again to the first difference of a comparison, and compare them op by op.

    Args:
        verdict: What was found.
        paths: Traces A and B.
        headers: Their headers.
        progress: Called with what is being done.

    Returns:
        The verdict with its `zoom`; unchanged where nothing differs.

    Raises:
        BadInput: A side cannot be run again here.
        EngineFailed: A model fails.
    """
    from ..diverge.op_comparison.compare_reruns import ZoomTarget, read_recorded, zoom
    from ..diverge.present.zoom import zoom_with_sentences
    from ..replay.op_recording.reconstruct import check_model_exists, check_rerunnable
    from ..replay.request.from_trace import golden_from_trace

    target = _target(verdict)
    if target is None and not verdict.compared.texts:
        progress.note("zoom: no row and no logits are known to differ, so there is nothing to zoom into")
        return verdict
    for side, path, header in zip("AB", paths, headers, strict=True):
        check_rerunnable(str(path), header)
        check_model_exists(side, header)
    if target is None:
        raise BadInput("zoom: texts were compared, and no row that differs is known", "replay on hf")
    golden = golden_from_trace(paths[0]), golden_from_trace(paths[1])
    tokens = golden[0].get(target, ())
    if not tokens:
        raise BadInput(
            f"{paths[0]} holds no generated token of {target[0]}, so none can be forced",
            "zoom into traces of runs that generated something",
        )
    known = read_recorded(paths[0], *target), read_recorded(paths[1], *target)
    with _OneEngine() as slot:
        progress.stage("zoom")
        sides = [
            _Side(path, header, target, tokens, own, slot)
            for path, header, own in zip(paths, headers, golden, strict=True)
        ]
        found: Zoom = zoom(
            sides[0],
            sides[1],
            ZoomTarget(*target, expected=verdict.first_site, recorded=known),
            say=progress.stage,
        )
        notes = [*found.notes, *(note for side in sides for note in side.notes)]
    return verdict.model_copy(update={"zoom": zoom_with_sentences(found.model_copy(update={"notes": notes}))})


def save_verdict(verdict: Verdict, folder: Path) -> None:
    """Replace the verdict in a result folder, which keeps its permissions.

    Raises:
        OutputFailed: It cannot be written.
    """
    from ..diverge.result_folder import SUMMARY_FILE
    from ..schemas.files import write_private

    path = folder / SUMMARY_FILE
    mode = path.stat().st_mode
    write_private(path, verdict.to_json())
    path.chmod(S_IMODE(mode))  # whoever could read the folder still can


def _target(verdict: Verdict) -> Target | None:
    """The sequence to run again: that of the first differing row, else of any first difference."""
    for found in (verdict.first_site, verdict.first_token, verdict.first_logprob):
        if found is not None:
            return found.request_id, found.sample
    return None


class _OneEngine(ExitStack):
    """Holds one open engine at a time: two would share threads and modes of the process, and the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.holder: object = None

    def clear(self) -> None:
        """Close what is open."""
        self.pop_all().close()
        self.holder = None


class _Side:
    """One side of the comparison, opened when it has to run.

    Args:
        path: Its trace.
        header: The trace's header.
        target: The sequence.
        tokens: What is forced on it.
        own: What every sequence of this side generated.
        slot: Holds its engine while it is open.
    """

    def __init__(
        self,
        path: Path,
        header: TraceHeader,
        target: Target,
        tokens: Sequence[int],
        own: Golden,
        slot: _OneEngine,
    ) -> None:
        self._path, self._header, self._target = path, header, target
        self._tokens, self._own, self._slot = tokens, own, slot
        self._opened: Any = None
        self.notes: list[ModelFilesChanged] = []

    def __call__(self, ask: Rerun) -> SideRun:
        """Run the sequence again."""
        from ..replay.op_recording.reconstruct import mode_of, rebuild_batch
        from ..replay.op_recording.rerun import run_side

        engine = self._open()
        batch, sequence = rebuild_batch(
            self._header, engine, self._target, self._tokens, self._own, self._path
        )
        return run_side(engine, batch, mode_of(self._header), sequence, ask)

    def _open(self) -> Any:
        if self._slot.holder is self:
            return self._opened
        from ..replay.op_recording.reconstruct import envelopes_of, settings_of
        from .lanes.request import LaneRequest
        from .lanes.resolve_lane import ResolvedLane

        self._slot.clear()
        lane = self._header.lane
        resolved = ResolvedLane(
            LaneRequest(lane.name, lane.engine, lane.model, settings=settings_of(self._header))
        )
        identity = resolved.identify(lambda _done, _total: None)
        self._compare_model(identity)
        opening = resolved.opening(1, runtime=envelopes_of(self._header)[0].runtime, sites=re.compile(""))
        self._opened = resolved.open(opening)
        self._slot.callback(self._opened.close)
        self._slot.holder = self
        return self._opened

    def _compare_model(self, identity: Fingerprint) -> None:
        then = self._header.fingerprint
        recorded, found = (
            (None if then is None else then.flat().get("model_sha256")),
            identity.flat().get("model_sha256"),
        )
        if recorded != found and not self.notes:
            model = str(self._header.lane.model)
            self.notes.append(ModelFilesChanged(model=model, trace=self._path.name))
