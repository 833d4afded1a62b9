"""`rip diverge --zoom`: sides of a comparison opened and run again, one at a time."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Any

from ..schemas.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ..replay.request.golden import Golden
    from ..schemas.fingerprint import Fingerprint
    from ..schemas.rerun import Ask, SideRun
    from ..schemas.trace import TraceHeader
    from ..schemas.verdict import Verdict
    from ..schemas.zoom import Zoom

Target = tuple[str, int]
"""(request_id, sample)."""


def zoom_into(
    verdict: Verdict, paths: tuple[Path, Path], headers: tuple[TraceHeader, TraceHeader], console: Console
) -> Verdict:
    """Look at the first difference of a comparison op by op.

    Args:
        verdict: What was found.
        paths: Traces A and B.
        headers: Their headers.
        console: For progress and for what there is to say.

    Returns:
        The verdict with its `zoom`; unchanged where nothing differs.

    Raises:
        BadInput: A side cannot be run again here.
        EngineFailed: A model fails.
    """
    from ..commands.console import printable, progress_bar, tell
    from ..diverge.op_comparison.compare_reruns import ZoomTarget, zoom
    from ..diverge.op_comparison.rerun_check import read_recorded
    from ..replay.op_recording.reconstruct import check_can, check_model_there
    from ..replay.request.from_trace import golden_from_trace

    target = _target(verdict)
    if target is None and not verdict.compared.texts:
        tell(console, "zoom: no row and no logits are known to differ, so there is nothing to look at")
        return verdict
    for side, path, header in zip("AB", paths, headers, strict=True):
        check_can(str(path), header)
        check_model_there(side, header)
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
    place = _Place()
    with progress_bar(console) as bar, place:
        task = bar.add_task("zoom", total=None, note="")
        sides = [
            _Side(path, header, target, tokens, own, place)
            for path, header, own in zip(paths, headers, golden, strict=True)
        ]
        found: Zoom = zoom(
            sides[0],
            sides[1],
            ZoomTarget(*target, expected=verdict.first_site, recorded=known),
            say=lambda words: bar.update(task, description=printable(words)),
        )
        notes = [*found.notes, *(note for side in sides for note in side.notes)]
    return verdict.model_copy(update={"zoom": found.model_copy(update={"notes": notes})})


def keep(verdict: Verdict, folder: Path) -> None:
    """Put a verdict that says more in the place of the result folder's.

    Raises:
        OutputFailed: It cannot be written.
    """
    from ..diverge.result.tables import SUMMARY_FILE
    from ..schemas.files import write_private

    path = folder / SUMMARY_FILE
    mode = path.stat().st_mode
    write_private(path, verdict.to_json())
    path.chmod(S_IMODE(mode))  # whoever could read the folder still can


def _target(verdict: Verdict) -> Target | None:
    """The sequence to look at: that of the first differing row, else of the first difference there is."""
    for found in (verdict.first_site, verdict.first_token, verdict.first_logprob):
        if found is not None:
            return found.request_id, found.sample
    return None


class _Place(ExitStack):
    """Room for one open engine: two would share threads and modes of the process, and the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.holder: object = None

    def clear(self) -> None:
        """Close what is open."""
        self.pop_all().close()
        self.holder = None


class _Side:
    """One side of the comparison, opened when it is asked to run.

    Args:
        path: Its trace.
        header: The trace's header.
        target: The sequence.
        tokens: What is forced on it.
        own: What every sequence of this side generated.
        place: Where its engine lives while it is open.
    """

    def __init__(
        self,
        path: Path,
        header: TraceHeader,
        target: Target,
        tokens: Sequence[int],
        own: Golden,
        place: _Place,
    ) -> None:
        self._path, self._header, self._target = path, header, target
        self._tokens, self._own, self._place = tokens, own, place
        self._opened: Any = None
        self.notes: list[str] = []

    def __call__(self, ask: Ask) -> SideRun:
        """Run the sequence again."""
        from ..replay.op_recording.reconstruct import batch_again, mode_of
        from ..replay.op_recording.run import run_side

        engine = self._open()
        batch, sequence = batch_again(self._header, engine, self._target, self._tokens, self._own, self._path)
        return run_side(engine, batch, mode_of(self._header), sequence, ask)

    def _open(self) -> Any:
        if self._place.holder is self:
            return self._opened
        from ..replay.op_recording.reconstruct import envelopes_of, settings_of
        from .lanes.resolve import Chosen, LaneRunner

        self._place.clear()
        lane = self._header.lane
        runner = LaneRunner(
            Chosen(lane.name, lane.engine, lane.model, None, None, None, None, settings_of(self._header))
        )
        identity = runner.identify(lambda _done, _total: None)
        self._compare_model(identity)
        opening = runner.opening(1, runtime=envelopes_of(self._header)[0].runtime, sites=re.compile(""))
        self._opened = runner.open(opening)
        self._place.callback(self._opened.close)
        self._place.holder = self
        return self._opened

    def _compare_model(self, identity: Fingerprint) -> None:
        then = self._header.fingerprint
        recorded, found = (
            (None if then is None else then.flat().get("model_sha256")),
            identity.flat().get("model_sha256"),
        )
        if recorded != found and not self.notes:
            self.notes.append(
                f"{self._path.name} was recorded with other files under {self._header.lane.model} "
                "than there are now"
            )
