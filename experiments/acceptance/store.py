"""The folder of a plan that is run: the frozen plan and requests, traces by their digest, and the ledger.

The ledger has a line for every finished run and cell, appended whole: what a kill leaves half-written is a
last line without its end, which is dropped. A trace has its name before the ledger has its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from ...schemas.errors import BadInput, OutputFailed
from ...schemas.files import append_private, replace_file, write_private
from ...schemas.matrix import Cell, Run, Scored
from ...schemas.plan import Plan, load_plan
from .cells import PlannedCell
from .inputs import digest_of

LEDGER = "ledger.jsonl"
PLAN = "plan.toml"
PLANNED = "planned.json"
"""Id of every cell → its lane and dimension: reading the folder takes neither lane files nor servers."""
TRACES = "traces"
LOGS = "logs"
CELLS = "cells"
_KINDS: dict[str, type[Run | Cell | Scored]] = {"run": Run, "cell": Cell, "score": Scored}


class Store:
    """One folder of a plan.

    Args:
        folder: Made where it is not there.

    Raises:
        BadInput: Its ledger is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[tuple[str, int], Run] = {}
        """By (key, launch): the last attempt of each."""
        self.cells: dict[str, Cell] = {}
        self.scores: dict[tuple[str, int, str], Scored] = {}
        for line in self._lines():
            self._take(line)

    def freeze_plan(self, source: Path, cells: Sequence[PlannedCell]) -> None:
        """Keep the plan's text, and which cells it has.

        A plan that was changed goes on with the cells that it still has.
        """
        for name in (TRACES, LOGS, CELLS):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.folder / PLAN, source.read_text("utf-8"))
        planned = {cell.id: (cell.lane, cell.dimension) for cell in cells}
        write_private(self.folder / PLANNED, json.dumps(planned, indent=1) + "\n")

    def trace(self, run: Run) -> Path:
        """Where the trace of a run is."""
        return self.folder / TRACES / f"{run.trace}.parquet"

    def log(self, key: str, launch: int) -> Path:
        """Where the messages of a run go."""
        return self.folder / LOGS / f"{key}-{launch}.log"

    def unfinished(self, key: str, launch: int) -> Path:
        """Where a run writes its trace, until it has its digest for a name."""
        return self.folder / TRACES / f"unfinished-{key}-{launch}.parquet"

    def result(self, cell: str, name: str) -> Path:
        """The folder of one comparison of a cell."""
        return self.folder / CELLS / f"{cell}-{name}"

    def keep_trace(self, written: Path) -> str:
        """Give a finished trace the name of its digest."""
        digest = digest_of(written)
        written.replace(self.folder / TRACES / f"{digest}.parquet")
        return digest

    def add(self, record: Run | Cell | Scored) -> None:
        """Write down what is finished."""
        append_private(self.folder / LEDGER, [record.model_dump_json(exclude_none=True).encode() + b"\n"])
        self._keep(record)

    def _keep(self, record: Run | Cell | Scored) -> None:
        if isinstance(record, Run):
            self.runs[record.key, record.launch] = record
        elif isinstance(record, Cell):
            self.cells[record.id] = record
        else:
            self.scores[record.key] = record

    def _lines(self) -> Iterator[bytes]:
        """The whole lines of the ledger; a last one without its end is cut off, so that the next is whole."""
        path = self.folder / LEDGER
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}", "check the folder") from None
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with replace_file(path) as file:
                file.write_bytes(content[:whole])
        yield from content[:whole].splitlines()

    def _take(self, line: bytes) -> None:
        try:
            self._keep(_KINDS[json.loads(line)["kind"]].model_validate_json(line))
        except (ValueError, KeyError, TypeError, ValidationError):
            raise BadInput(
                f"{self.folder / LEDGER} is damaged: {line[:60]!r}",
                "restore it, or run the plan into a new folder",
            ) from None


def open_store(folder: Path) -> Store:
    """A folder that a plan was run into.

    Raises:
        BadInput: It is none.
    """
    if not (folder / PLAN).is_file():
        raise BadInput(
            f"{folder} is not the folder of a plan", "rip matrix run PLAN.toml -o FOLDER makes one"
        )
    return Store(folder)


def read_planned(store: Store) -> tuple[Plan, dict[str, tuple[str, str]]]:
    """The plan that a folder was run with, and its cells: id → lane and dimension.

    Raises:
        BadInput: A file of the folder is damaged.
    """
    path = store.folder / PLANNED
    try:
        planned = {str(name): (str(a), str(b)) for name, (a, b) in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        raise BadInput(f"{path} is damaged or not there", "rip matrix run writes it again") from None
    return load_plan(store.folder / PLAN), planned


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else.

    Raises:
        OutputFailed: It does.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / PLAN).exists())):
        raise OutputFailed(f"{folder} holds something else", "choose a new folder with -o")
