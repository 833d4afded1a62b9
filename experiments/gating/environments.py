"""In which environments the configurations of a plan ran: fingerprint and lane, compared as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.change import Change
from ...schemas.errors import BadInput, NothingCompared
from ...schemas.fingerprint import Fingerprint, Section, fact
from ...schemas.matrix import Cell, Run

if TYPE_CHECKING:
    from ..acceptance.store import Store

FINGERPRINTS = "fingerprints"
"""Folder of a bundle: a fingerprint for each configuration, by its key."""
LANE = "lane"
"""Section that a fingerprint gets here: the engine and its settings, as resolved."""
_AS_STATED = ("repeat", "restart", "lane")
"""Dimensions whose cells run a lane with nothing but what the plan states of it."""


def sides(cell: Cell) -> list[tuple[str, list[str]]]:
    """Lane and keys of the runs of each side of a cell."""
    lane_b = str(cell.value_b) if cell.dimension == "lane" else cell.lane
    return [(cell.lane, cell.runs_a), (lane_b, cell.runs_b)]


class Environments:
    """The environments of a plan's runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[str, list[Run]] = {}
        for run in store.runs.values():
            if run.trace is not None:
                self._runs.setdefault(run.key, []).append(run)
        self.fingerprint = cache(self._fingerprint)

    def runs(self, keys: Iterable[str]) -> Iterator[Run]:
        """The runs of configurations that did not fail."""
        for key in dict.fromkeys(keys):
            yield from self._runs.get(key, ())

    def of_keys(self, keys: Iterable[str]) -> dict[str, Fingerprint]:
        """Root digest → fingerprint, of configurations."""
        found = (self.fingerprint(key) for key in dict.fromkeys(keys))
        return {one.root_digest: one for one in found if one is not None}

    def of_lane(self, lane: str) -> dict[str, Fingerprint]:
        """Those of a lane as the plan states it; where each cell varies a setting: of sides A."""
        cells = list(self._store.cells.values())
        as_stated = [side for cell in cells if cell.dimension in _AS_STATED for side in sides(cell)]
        stated = [keys for name, keys in as_stated if name == lane]
        if not any(stated):
            stated = [cell.runs_a for cell in cells if cell.lane == lane]
        return self.of_keys(key for keys in stated for key in keys)

    def configurations(self) -> list[str]:
        """Keys of all configurations that ran."""
        return list(self._runs)

    def _fingerprint(self, key: str) -> Fingerprint | None:
        """That of a configuration: kept in a bundle, else in the trace of a run; None: there is none."""
        kept = fingerprint_file(self._store.folder, key)
        if kept.is_file():
            return Fingerprint.from_json(kept.read_bytes(), str(kept))
        return of_trace(self._store.trace(self._runs[key][0])) if key in self._runs else None


def of_trace(path: Path) -> Fingerprint | None:
    """The environment of a trace, with its lane; None: it has no fingerprint.

    Raises:
        BadInput: It is no trace.
    """
    from ...diverge.reading.load import read_header

    header = read_header(path)
    if header.fingerprint is None:
        return None
    stated = {"engine": header.lane.engine}
    for name, setting in header.lane.settings.items():
        known = (setting.observed, setting.resolved, setting.requested)
        stated[name] = str(next((value for value in known if value is not None), "not set"))
    lane = Section(facts={name: fact(value, "lane") for name, value in stated.items()})
    found = header.fingerprint
    return Fingerprint.build(found.tool_version, found.created, {**found.sections, LANE: lane})


def read_environment(path: Path) -> Fingerprint:
    """A fingerprint, or that of a trace: of the process in which the engine ran.

    Raises:
        BadInput: It is neither, or the trace has no fingerprint.
    """
    from ...fingerprint.load import read_fingerprint

    if path.suffix != ".parquet":
        return read_fingerprint(path)
    found = of_trace(path)
    if found is None:
        raise BadInput(f"{path} holds no fingerprint", "give a fingerprint, or a trace that rip replay wrote")
    return found


def list_changes(base: Fingerprint, now: Fingerprint) -> list[Change]:
    """What has changed between two environments; of lanes only where both have one.

    Raises:
        NothingCompared: They have no field in common.
    """
    from ...fingerprint.drift import compare

    if (LANE in base.sections) != (LANE in now.sections):
        base, now = _without_lane(base), _without_lane(now)
    found = compare(base, now)
    if not found.compared:
        raise NothingCompared(
            "a fingerprint has no field in common with those of the plan", "record it with rip fingerprint"
        )
    return list(found.changes)


def _without_lane(one: Fingerprint) -> Fingerprint:
    sections = {name: section for name, section in one.sections.items() if name != LANE}
    return Fingerprint.build(one.tool_version, one.created, sections)


def fingerprint_file(folder: Path, key: str) -> Path:
    """Where a bundle keeps the fingerprint of a configuration."""
    return folder / FINGERPRINTS / f"{key}.json"
