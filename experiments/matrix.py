"""`rip matrix`: a plan is run into a folder, goes on where it stopped, and gets a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.files import OutputLock, write_private
from .progress import Progress

if TYPE_CHECKING:
    from ..schemas.matrix import MatrixVerdict
    from ..schemas.plan import Plan
    from .acceptance.cells import PlannedCell
    from .acceptance.execute import Executor
    from .acceptance.store import Store

VERDICT = "verdict.json"


@dataclass(frozen=True)
class Estimate:
    """What a plan takes, from one run of one request on each lane; None: nobody probed.

    Attributes:
        runs: That are to be made.
        seconds: Of all of them.
        disk: Bytes of all traces.
    """

    runs: int
    seconds: float | None = None
    disk: float | None = None


@dataclass(frozen=True)
class ReadPlan:
    """A plan with its cells; nothing of it is run."""

    plan: Plan
    cells: list[PlannedCell]


@dataclass(frozen=True)
class OpenedPlan:
    """A plan, what is there of its runs and cells, and its verdict."""

    plan: Plan
    store: Store
    verdict: MatrixVerdict


def read_plan(path: Path) -> ReadPlan:
    """A plan and its cells; nothing runs.

    Raises:
        BadInput: It cannot be used.
    """
    from ..schemas.plan import load_plan
    from .acceptance.cells import plan_cells

    plan = load_plan(path)
    return ReadPlan(plan, plan_cells(plan, path.parent))


def run_matrix(
    path: Path, folder: Path, progress: Progress, executor: Executor | None = None
) -> MatrixVerdict:
    """Run a plan to its end, from where it stopped.

    Args:
        path: The plan.
        folder: Of runs, cells and verdict.
        executor: Where launches run; None: on this machine, one after the other.

    Raises:
        BadInput: The plan cannot be used, or the folder is damaged.
        OutputFailed: Another process runs it, the folder holds something else, or there is no room.
    """
    from .acceptance.compare_cell import compare_cell
    from .acceptance.execute import LocalExecutor, execute
    from .acceptance.inputs import freeze_requests
    from .acceptance.score import score_cells
    from .acceptance.store import Store, check_folder

    opened = read_plan(path)
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with OutputLock(folder / VERDICT, force=True):
        store = Store(folder)
        store.freeze_plan(path, opened.cells)
        frozen = freeze_requests(path.parent / opened.plan.requests, folder)
        execute(opened.plan, opened.cells, store, frozen, executor or LocalExecutor(), progress, compare_cell)
        score_cells(opened.plan, store)
        verdict = show_matrix(folder).verdict
        write_private(folder / VERDICT, verdict.to_json())
    return verdict


def show_matrix(folder: Path) -> OpenedPlan:
    """Where a plan stands.

    Raises:
        BadInput: The folder holds no plan.
    """
    from .acceptance.inputs import REQUESTS, digest_of
    from .acceptance.judge import judge
    from .acceptance.store import PLAN, open_store, read_planned

    store = open_store(folder)
    plan, planned = read_planned(store)
    digests = digest_of(folder / PLAN), digest_of(folder / REQUESTS)
    return OpenedPlan(plan, store, judge(plan, planned, store.cells, store.scores.values(), digests))


@dataclass(frozen=True)
class NewPlan:
    """What a new plan is made of.

    Attributes:
        lanes: Lane files.
        settings: `KEY=VALUE` texts.
    """

    requests: Path
    out: Path
    preset: str
    lanes: tuple[str, ...] = ()
    model: str | None = None
    engine: str | None = None
    url: str | None = None
    python: str | None = None
    settings: tuple[str, ...] = ()


def new_plan(new: NewPlan, force: bool) -> None:
    """Write a plan to start from.

    Raises:
        BadInput: The preset does not exist, or the requests or the lane cannot be used.
        OutputFailed: There is a plan already.
    """
    import os

    from ..schemas.files import check_output_file
    from .acceptance.presets import Start, write_plan
    from .lanes.request import LaneRequest, read_lane
    from .lanes.resolve_lane import ResolvedLane
    from .replay_plan.options import recorded_requests

    check_output_file(new.out, force)
    recorded_requests(new.requests)
    stated = LaneRequest("lane", new.engine, new.model, new.url, None, new.python, None, new.settings)
    from dataclasses import replace

    first = read_lane(replace(stated, name=new.lanes[0] if new.lanes else "lane"))
    engine = ResolvedLane(first).engine
    folder = new.out.absolute().parent

    def near(path: str | None) -> str | None:
        return os.path.relpath(path, folder) if path is not None and Path(path).exists() else path

    own: dict[str, object] = {
        "engine": engine if not new.lanes else new.engine,
        "model": near(new.model),
        "url": new.url,
        "python": near(new.python),
    }
    if new.settings:
        own["set"] = dict(pair.split("=", 1) for pair in new.settings)
    files = {Path(lane).stem: {"file": near(lane), **own} for lane in new.lanes}
    start = Start(new.preset, str(near(str(new.requests))), engine, files or {"lane": own})
    write_private(new.out, write_plan(start))
