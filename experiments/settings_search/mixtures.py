"""Two lanes as settings by name: where they differ, and the `rip replay` that runs any mixture of the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...schemas.choices import CaptureLevel
from ...schemas.command_line import ReplayCommand
from ...schemas.errors import BadInput
from ...schemas.lane import NOT_KEPT, may_be_secret
from ...schemas.narrow import VariedSetting
from ..lanes.request import setting_key
from ..lanes.resolve_lane import ResolvedLane
from ..replay_plan.options import read_neighbours
from .two_lanes import FIELDS, Side


@dataclass(frozen=True)
class RunOptions:
    """What all runs of a search share.

    Attributes:
        requests: What is run.
        capture: None: as `rip replay` does by default.
        allow_drift: As `--allow-drift` of `rip replay`.
    """

    requests: Path
    capture: CaptureLevel | None = None
    allow_drift: bool = False


@dataclass(frozen=True)
class Prepared:
    """A lane that was read: everything that a mixture of it with another one needs.

    Attributes:
        engine: Name of the engine.
        values: Settings and `FIELDS` that the lane states, by name.
        api_key_env: Cannot be varied.
        tap: Likewise.
    """

    engine: str
    values: Mapping[str, str]
    api_key_env: str | None = None
    tap: str | None = None


def prepare(side: Side, capture: CaptureLevel | None) -> Prepared:
    """Read a lane, without running anything.

    Raises:
        BadInput: A setting does not fit its engine.
        EngineFailed: Its server does not report what it is.
    """
    lane = side.lane
    with side.errors_as_stated():
        read_neighbours(lane.neighbours)
        resolved = ResolvedLane(lane)
        resolved.check_capabilities("free", capture)
    fields = {name: getattr(lane, name) for name in FIELDS}
    values = {name: str(value) for name, value in fields.items() if value is not None}
    spelled: dict[str, str] = {}
    for pair in lane.settings:
        name, _, value = pair.partition("=")
        values[spelled.setdefault(setting_key(name), name)] = value
    return Prepared(resolved.engine, values, lane.api_key_env, str(lane.tap) if lane.tap else None)


def check(side: Side) -> None:
    """Have the lane's interpreter, engine or server check what the lane states; nothing is loaded.

    Raises:
        BadInput, EngineFailed: It does not accept it, or cannot be reached.
    """
    with side.errors_as_stated():
        ResolvedLane(side.lane).check()


@dataclass(frozen=True)
class Mixture:
    """Good and bad lane together.

    Attributes:
        good: The lane without the divergence.
        bad: The one with it.
        names: Where they differ, in the order in which the lanes state it.
    """

    good: Prepared
    bad: Prepared
    names: tuple[str, ...]

    @classmethod
    def of(cls, good: Prepared, bad: Prepared) -> Mixture:
        """Put two lanes together.

        Raises:
            BadInput: They run different engines, do not differ, or differ in what cannot be varied.
        """
        if good.engine != bad.engine:
            raise BadInput(
                f"the lanes run different engines: {good.engine} and {bad.engine}",
                "give two lanes of one engine, or compare the two engines with rip diverge",
            )
        if (good.api_key_env, good.tap) != (bad.api_key_env, bad.tap):
            raise BadInput(
                "the lanes differ in api_key_env or tap, which cannot be varied",
                "state the same in both lanes, or leave tap out",
            )
        spelled = {setting_key(name): name for name in good.values}
        respelled = {spelled.get(setting_key(name), name): value for name, value in bad.values.items()}
        bad = replace(bad, values=respelled)
        stated = dict.fromkeys((*good.values, *bad.values))
        names = tuple(name for name in stated if good.values.get(name) != bad.values.get(name))
        if not names:
            raise BadInput(
                "the two lanes do not differ, so there is nothing to narrow",
                "give the other lane with --bad LANE.toml, or a setting with --vary KEY=GOOD:BAD",
            )
        return cls(good, bad, names)

    def varied(self) -> list[VariedSetting]:
        """The settings with both values; what may be a secret without them."""
        return [
            VariedSetting(
                name=name,
                good=_shown(name, self.good.values.get(name)),
                bad=_shown(name, self.bad.values.get(name)),
            )
            for name in self.names
        ]

    def command(self, on: Iterable[str], options: RunOptions, out: str, shown: bool = False) -> ReplayCommand:
        """The `rip replay` of one configuration.

        Args:
            on: Settings at the bad lane's value.
            options: What all runs share.
            out: The trace.
            shown: It will be shown, so values that may be secrets are left out.
        """
        bad = set(on)
        fields: dict[str, str] = {}
        settings = []
        for name in dict.fromkeys((*self.good.values, *self.bad.values)):
            value = (self.bad if name in bad else self.good).values.get(name)
            if value is None:
                continue
            if shown:
                value = str(_shown(name, value))
            if name in FIELDS:
                fields[name] = value
            else:
                settings.append((name, value))
        return ReplayCommand(
            str(options.requests),
            out,
            engine=self.good.engine,
            api_key_env=self.good.api_key_env,
            tap=self.good.tap,
            settings=settings,
            capture=options.capture,
            # Where the models differ, that they do is part of the experiment.
            allow_drift=options.allow_drift or "model" in self.names,
            **fields,  # type: ignore[arg-type]
        )


def _shown(name: str, value: str | None) -> str | None:
    return NOT_KEPT if value is not None and may_be_secret(name, value) else value
