"""Two lanes as settings by name: where they differ, and the `rip replay` that runs any mixture of the two."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...commands.replay_options import read_neighbours
from ...schemas.errors import BadInput
from ...schemas.narrow import VariedSetting
from ...schemas.trace import NOT_KEPT, may_be_secret
from ..lanes.resolve import LaneRunner
from .two_lanes import FIELDS, Side, setting_key


@dataclass(frozen=True)
class Prepared:
    """A lane whose words are understood: everything that a mixture of it with another one needs.

    Attributes:
        engine: Name of the engine.
        values: Settings and `FIELDS` that the lane states, by name.
        fixed: Options that cannot be varied.
    """

    engine: str
    values: Mapping[str, str]
    fixed: tuple[str, ...]


def prepare(side: Side, capture: str | None) -> Prepared:
    """Read a lane, without running anything.

    Raises:
        BadInput: A setting does not fit its engine.
        EngineFailed: Its server does not tell what it is.
    """
    chosen = side.chosen
    with side.told():
        read_neighbours(chosen.neighbours)
        runner = LaneRunner(chosen)
        runner.refuse(capture, None, "free")
    fields = {name: getattr(chosen, name) for name in FIELDS}
    values = {name: str(value) for name, value in fields.items() if value is not None}
    spelled: dict[str, str] = {}
    for pair in chosen.settings:
        name, _, value = pair.partition("=")
        values[spelled.setdefault(setting_key(name), name)] = value
    options = {"--api-key-env": chosen.api_key_env, "--tap": chosen.tap}
    fixed = [word for option, value in options.items() if value for word in (option, str(value))]
    return Prepared(runner.engine, values, tuple(fixed))


def check(side: Side) -> None:
    """Ask the lane's interpreter, engine or server whether it takes what the lane states; nothing is loaded.

    Raises:
        BadInput, EngineFailed: It does not, or is not there.
    """
    with side.told():
        LaneRunner(side.chosen).check()


@dataclass(frozen=True)
class Mixture:
    """Good and bad lane together.

    Attributes:
        good: The lane that is as wanted.
        bad: The other one.
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
                "settings of one mean nothing to the other: narrow two lanes of one engine, or compare with "
                "rip diverge",
            )
        if good.fixed != bad.fixed:
            raise BadInput(
                "the lanes differ in api_key_env or tap, which cannot be varied",
                "say the same in both lanes, or leave tap out",
            )
        spelled = {setting_key(name): name for name in good.values}
        same_words = {spelled.get(setting_key(name), name): value for name, value in bad.values.items()}
        bad = replace(bad, values=same_words)
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

    def run(self, on: Iterable[str], rest: Iterable[str], shown: bool = False) -> Command:
        """The `rip replay` of one configuration.

        Args:
            on: Settings at the bad lane's value.
            rest: Further words: requests, where the trace goes, and so on.
            shown: It will be shown, so values that may be secrets are left out.
        """
        chosen = set(on)
        words = ["--engine", self.good.engine, *self.good.fixed]
        for name in dict.fromkeys((*self.good.values, *self.bad.values)):
            value = (self.bad if name in chosen else self.good).values.get(name)
            if value is None:
                continue
            if shown:
                value = str(_shown(name, value))
            words += [f"--{name}", value] if name in FIELDS else ["--set", f"{name}={value}"]
        if "model" in self.names:
            words.append("--allow-drift")  # that the models differ is what is tried out
        return Command(("replay", *rest, *words))


@dataclass(frozen=True)
class Command:
    """One call of rip in a process of its own.

    Attributes:
        words: What follows `rip`.
    """

    words: tuple[str, ...]

    def process(self) -> list[str]:
        """Program and arguments. `-P`: nothing in the current folder can stand in for a package."""
        return [sys.executable, "-P", "-m", "rip", *self.words]

    def line(self) -> str:
        """What a person types."""
        return shlex.join(["rip", *self.words])


def _shown(name: str, value: str | None) -> str | None:
    return NOT_KEPT if value is not None and may_be_secret(name) else value
