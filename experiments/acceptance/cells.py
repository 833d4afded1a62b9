"""A plan as cells: what each varies and holds, and the runs that both of its sides need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...schemas.errors import BadInput, RipError, Stated
from ...schemas.jsontext import sha256_of
from ...schemas.lane import may_be_secret
from ...schemas.plan import Plan, PlanLane, Value, Variation
from ..lanes.request import LaneRequest, read_lane, setting_key
from ..lanes.resolve_lane import ResolvedLane
from .dimensions import Dimension, find_dimension

SHOWN = 12
"""Characters of a digest in a name."""
SYNTHETIC = 7
"""Requests that run beside where a dimension varies what they are."""


@dataclass(frozen=True)
class Beside:
    """Synthetic requests that run beside: how many, their prompt length (tokens), their seed."""

    count: int
    length: int = 64
    seed: int = 1


@dataclass(frozen=True)
class Configuration:
    """Everything that is stated for a run, but its launch.

    Attributes:
        lane: As the plan calls it.
        request: The lane, with the values that the cell varies.
        engine: Its engine.
        folder: Of the plan; what lies in it is known by its path from there, wherever the plan is moved.
        order: Of the requests: `recorded`, `reversed`, `shuffled:SEED`.
        arrival: `poisson:RATE`, or None: as the requests have it.
        beside: Synthetic requests that run beside; None: as the lane has it.
        repeat: Times that every request runs in one process.
    """

    lane: str
    request: LaneRequest
    engine: str
    folder: Path
    order: str = "recorded"
    arrival: str | None = None
    beside: Beside | None = None
    repeat: int = 1

    @property
    def key(self) -> str:
        """Digest of it: equal configurations share their runs."""
        lane = self.request
        paths = (
            lane.model,
            lane.url,
            lane.python,
            lane.neighbours,
            None if lane.tap is None else str(lane.tap),
        )
        stated: dict[str, Any] = {
            "engine": self.engine,
            "fields": [None if path is None else path.removeprefix(f"{self.folder}/") for path in paths],
            "settings": sorted(lane.settings),
            "order": self.order,
            "arrival": self.arrival,
            "beside": None if self.beside is None else vars(self.beside),
            "repeat": self.repeat,
        }
        return sha256_of(stated)[:SHOWN]


@dataclass(frozen=True)
class PlannedCell:
    """One cell: the lane, what is varied, and its sides.

    Attributes:
        b: None: runs of A are compared with one another.
        rounds: Launches of each side.
    """

    lane: str
    dimension: str
    value_a: Value | None
    value_b: Value | None
    a: Configuration
    b: Configuration | None
    rounds: int

    @property
    def id(self) -> str:
        """Digest of everything that decides what is run and compared."""
        sides = [self.a.key, None if self.b is None else self.b.key]
        return sha256_of([self.lane, self.dimension, self.value_a, self.value_b, *sides, self.rounds])[:SHOWN]

    def runs(self) -> list[tuple[int, Configuration]]:
        """(launch, configuration), in the order A1 B1 A2 B2 …"""
        sides = [self.a] if self.b is None else [self.a, self.b]
        return [(launch, side) for launch in range(1, self.rounds + 1) for side in sides]


def plan_cells(plan: Plan, folder: Path) -> list[PlannedCell]:
    """The cells of a plan, in its order.

    Args:
        folder: Of the plan: paths in it are relative to that.

    Raises:
        BadInput: A lane or a dimension that does not exist or does not fit.
        EngineFailed: A server does not report what it is.
    """
    folder = folder.absolute()
    lanes = {name: _read_lane(name, lane, folder) for name, lane in plan.lanes.items()}
    _check_claims(plan)
    cells: dict[str, PlannedCell] = {}
    for variation in plan.vary:
        dimension = find_dimension(variation.dimension)
        for cell in _cells_of(plan, variation, dimension, lanes):
            cells.setdefault(cell.id, cell)
    if not cells:
        raise BadInput("the plan has no cell", "add [[vary]] with a dimension: rip matrix dimensions")
    return list(cells.values())


def _read_lane(name: str, lane: PlanLane, folder: Path) -> Configuration:
    """A lane of the plan, read and checked as far as nothing needs to run.

    Raises:
        BadInput: It cannot be used; the error names the lane.
    """
    request = LaneRequest(
        name=name if lane.file is None else str(folder / lane.file),
        engine=lane.engine,
        model=_near(folder, lane.model),
        url=lane.url,
        api_key_env=lane.api_key_env,
        python=_near(folder, lane.python),
        tap=None if lane.tap is None else folder / lane.tap,
        settings=tuple(lane.settings()),
        neighbours=None if lane.neighbours is None else _near(folder, str(lane.neighbours)),
    )
    try:
        read = replace(read_lane(request), name=name)
        resolved = ResolvedLane(read)
    except RipError as error:
        raise error.stated_as(Stated("lane", f"lane {name}", f"[lanes.{name}]")) from None
    return Configuration(name, read, resolved.engine, folder)


def _near(folder: Path, path: str | None) -> str | None:
    """A path of the plan; a name that is no path here stays as it is."""
    return path if path is None or not (folder / path).exists() else str(folder / path)


def _check_claims(plan: Plan) -> None:
    """Refuse claims that no run could decide.

    Raises:
        BadInput: No claims, two of one id, or one that names what the plan does not have.
    """
    if not plan.claims:
        raise BadInput("the plan claims nothing", "add [[claims]]: an id, a level and what is varied")
    seen = set()
    for claim in plan.claims:
        about = f"claim {claim.id}"
        if claim.id in seen:
            raise BadInput(f"{about} stands twice", "give every claim an id of its own")
        seen.add(claim.id)
        for name in claim.varied:
            find_dimension(name)
        for lane in claim.lanes or []:
            _known_lane(plan, lane, about)
        if claim.level == "numeric" and not (claim.tolerance and claim.tolerance.model_fields_set):
            raise BadInput(
                f"{about} states no tolerance", "add tolerance = { max_abs = 0.5 }, or claim token or bitwise"
            )
        if claim.level == "semantic" and not claim.scorers:
            raise BadInput(f"{about} states no scorer", 'add scorers = [{ scorer = "exact" }]')


def _known_lane(plan: Plan, name: str, about: str) -> None:
    if name not in plan.lanes:
        raise BadInput(f"{about}: there is no lane {name!r}", f"the plan has: {', '.join(plan.lanes)}")


def _cells_of(
    plan: Plan, variation: Variation, dimension: Dimension, lanes: Mapping[str, Configuration]
) -> Iterable[PlannedCell]:
    """The cells of one variation."""
    if dimension.how == "lane":
        yield from _lane_cells(plan, variation, lanes)
        return
    for name in variation.lanes or lanes:
        _known_lane(plan, name, f"vary {variation.dimension}")
        base = lanes[name]
        values = _values(variation, dimension, base)
        if dimension.how in ("repeat", "restart"):
            for value in values:
                yield _alone(plan, variation.dimension, base, value)
            continue
        a = with_value(base, variation.dimension, values[0])
        for value in values[1:]:
            b = with_value(base, variation.dimension, value)
            if a.key == b.key:
                raise BadInput(
                    f"vary {variation.dimension} on lane {name}: {values[0]!r} and {value!r} run the same",
                    "give two values that differ",
                )
            yield PlannedCell(name, variation.dimension, values[0], value, a, b, plan.rounds)


def _values(variation: Variation, dimension: Dimension, base: Configuration) -> Sequence[Value]:
    """The values of a variation on one lane.

    Raises:
        BadInput: The engine cannot vary it, or there are too few values.
    """
    about = f"vary {variation.dimension} on lane {base.lane}"
    if not dimension.fits(base.engine):
        able = ", ".join(sorted(dimension.names or ()))
        raise BadInput(
            f"{about}: the engine {base.engine} cannot vary it", f"limit it with lanes = […]; engines: {able}"
        )
    values = variation.values if variation.values is not None else dimension.default(base.engine)
    least = 1 if dimension.how in ("repeat", "restart") else 2
    if values is None or len(values) < least:
        raise BadInput(
            f"{about}: {'no values' if not values else 'one value only'}",
            "state values = [held, varied, …]: the first is that of side A",
        )
    return values


def _lane_cells(
    plan: Plan, variation: Variation, lanes: Mapping[str, Configuration]
) -> Iterable[PlannedCell]:
    names = [str(value) for value in variation.values or []]
    if len(names) < 2:
        raise BadInput("vary lane: two lanes are needed", 'for example values = ["old", "new"]')
    for name in names:
        _known_lane(plan, name, "vary lane")
    for name in names[1:]:
        yield PlannedCell(
            names[0], variation.dimension, names[0], name, lanes[names[0]], lanes[name], plan.rounds
        )


def _alone(plan: Plan, dimension: str, base: Configuration, value: Value) -> PlannedCell:
    """A cell whose runs are compared with one another.

    Raises:
        BadInput: Not a number of times.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= 1000:
        raise BadInput(f"vary {dimension}: {value!r} is no number of times", "give a number from 2 to 1000")
    if dimension == "repeat":
        return PlannedCell(base.lane, dimension, None, value, replace(base, repeat=value), None, 1)
    return PlannedCell(base.lane, dimension, None, value, base, None, value)


def with_value(base: Configuration, name: str, value: Value) -> Configuration:
    """A lane with one dimension at a value.

    Raises:
        BadInput: The value does not fit the dimension.
    """
    dimension = find_dimension(name)
    beside = dimension.settings_beside(base.engine)
    unstated = [pair for pair in beside if not _states(base.request.settings, pair.partition("=")[0])]
    lane = replace(base.request, settings=(*base.request.settings, *unstated))
    found = replace(base, request=lane, repeat=max(base.repeat, dimension.repeat))
    if dimension.how == "setting":
        return replace(found, request=_set(lane, str(dimension.name(base.engine)), value))
    if dimension.how == "field":
        field = str(dimension.name(base.engine))
        model, python = (str(value) if field == one else getattr(lane, one) for one in ("model", "python"))
        return replace(found, request=replace(lane, model=model, python=python))
    if dimension.how == "neighbours":
        return replace(found, beside=_beside(name, value))
    if name == "arrival":
        return _with_arrival(found, str(value))
    return replace(found, order=str(value))


def _with_arrival(found: Configuration, value: str) -> Configuration:
    poisson = value.startswith("poisson:")
    lane = _set(found.request, "arrival", "recorded" if poisson else value)
    return replace(found, request=lane, arrival=value if poisson else None)


def _beside(name: str, value: Value) -> Beside | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(f"vary {name}: {value!r} is no number", "give whole numbers")
    if name == "neighbours":
        return Beside(value) if value else None
    return Beside(SYNTHETIC, length=value) if name == "neighbour_length" else Beside(SYNTHETIC, seed=value)


def _states(settings: Iterable[str], name: str) -> bool:
    return any(setting_key(pair.partition("=")[0]) == setting_key(name) for pair in settings)


def _set(lane: LaneRequest, name: str, value: Value) -> LaneRequest:
    """A lane with one setting at a value; an empty text leaves it unstated."""
    kept = [pair for pair in lane.settings if setting_key(pair.partition("=")[0]) != setting_key(name)]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return replace(lane, settings=(*kept, *([f"{name}={text}"] if text else [])))


def shown_settings(lane: LaneRequest) -> list[str]:
    """The settings of a lane without values that may be secrets."""
    pairs = (pair.partition("=") for pair in lane.settings)
    return [name if may_be_secret(name) else f"{name}={value}" for name, _, value in pairs]
