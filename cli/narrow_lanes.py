"""Two lanes as settings by name: where they differ, and the command that runs any mixture of the two.

An engine that runs in rip's own process is varied by running `rip replay` in another process: with other
environment variables (`env.NAME`), or under another interpreter (`python`).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..schemas.errors import BadInput
from ..schemas.narrow import VariedSetting
from .lane import Chosen, LaneRunner

FIELDS = ("model", "url", "python", "neighbours")
"""Fields of a lane that can be varied as settings can."""
_VARIABLE = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")
_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
NOT_KEPT = "(not kept)"
"""Stands for a value that may be a secret."""


@dataclass(frozen=True)
class Prepared:
    """A lane, checked: everything that a mixture of it with another one needs.

    Attributes:
        engine: Name of the engine.
        in_process: It runs in the process of `rip replay` itself.
        values: Settings and `FIELDS` that the lane states, by name.
        fixed: Options that cannot be varied.
    """

    engine: str
    in_process: bool
    values: Mapping[str, str]
    fixed: tuple[str, ...]


def prepare(chosen: Chosen, capture: str | None) -> Prepared:
    """Check a lane, before anything runs.

    Raises:
        BadInput: A setting does not fit its engine.
        EngineFailed: Its server does not tell what it is.
    """
    in_process = _runs_in_process(chosen)
    variables = [pair for pair in chosen.settings if in_process and pair.startswith("env.")]
    settings = tuple(pair for pair in chosen.settings if pair not in variables)
    shown = replace(chosen, settings=settings, python=None if in_process else chosen.python)
    runner = LaneRunner(shown)
    runner.refuse(capture, None, "free")
    fields = {name: getattr(chosen, name) for name in FIELDS}
    values = {name: str(value) for name, value in fields.items() if value is not None}
    spelled: dict[str, str] = {}
    for pair in (*settings, *variables):
        name, equals, value = pair.partition("=")
        if pair in variables and not (equals and _VARIABLE.fullmatch(name)):
            raise BadInput(
                f"--set {pair}: not of the form env.NAME=VALUE", "for example --set env.OMP_NUM_THREADS=1"
            )
        values[spelled.setdefault(_key(name), name)] = value
    options = {"--api-key-env": chosen.api_key_env, "--tap": chosen.tap}
    fixed = [word for option, value in options.items() if value for word in (option, str(value))]
    return Prepared(runner.engine, in_process, values, tuple(fixed))


def _runs_in_process(chosen: Chosen) -> bool:
    from ..replay.engines.base import engine_class
    from ..replay.engines.http.server import ServerEngine

    if chosen.engine is None:
        return chosen.url is None
    kind = engine_class(chosen.engine)
    return not (isinstance(kind, type) and issubclass(kind, ServerEngine))


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
        spelled = {_key(name): name for name in good.values}
        same_words = {spelled.get(_key(name), name): value for name, value in bad.values.items()}
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

    def identity(self) -> dict[str, object]:
        """What makes this mixture another one; part of a digest only."""
        sides = {"good": self.good, "bad": self.bad}
        return {
            "engine": self.good.engine,
            "fixed": list(self.good.fixed),
            **{side: dict(sorted(lane.values.items())) for side, lane in sides.items()},
        }

    def run(self, on: Iterable[str], rest: Iterable[str], shown: bool = False) -> Command:
        """The `rip replay` of one configuration.

        Args:
            on: Settings at the bad lane's value.
            rest: Further words: requests, where the trace goes, and so on.
            shown: It will be shown, so values that may be secrets are left out.
        """
        chosen = set(on)
        stated = dict.fromkeys((*self.good.values, *self.bad.values))
        sides = {name: self.bad if name in chosen else self.good for name in stated}
        values = {name: side.values[name] for name, side in sides.items() if name in side.values}
        if shown:
            values = {name: str(_shown(name, value)) for name, value in values.items()}
        python = values.pop("python", None) if self.good.in_process else None
        environment: dict[str, str] = {}
        words = ["--engine", self.good.engine, *self.good.fixed]
        for name, value in values.items():
            variable = _VARIABLE.fullmatch(name) if self.good.in_process else None
            if variable:
                environment[variable[1]] = value
            else:
                words += [f"--{name}", value] if name in FIELDS else ["--set", f"{name}={value}"]
        if "model" in self.names:
            words.append("--allow-drift")  # that the models differ is what is tried out
        return Command(python, environment, ("replay", *rest, *words))


@dataclass(frozen=True)
class Command:
    """One call of rip in a process of its own.

    Attributes:
        python: Interpreter; None: this one.
        environment: Variables beside those of this process.
        words: What follows `rip`.
    """

    python: str | None
    environment: Mapping[str, str]
    words: tuple[str, ...]

    def process(self) -> list[str]:
        """Program and arguments. `-P`: nothing in the current folder can stand in for a package."""
        return [self.python or sys.executable, "-P", "-m", "rip", *self.words]

    def line(self) -> str:
        """What a person types."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        program = ["rip"] if self.python is None else [self.python, "-m", "rip"]
        return " ".join([*variables, shlex.join([*program, *self.words])])


def vary(lane: Chosen, pairs: Iterable[tuple[str, str]]) -> Chosen:
    """A lane with other values; an empty one leaves the setting unstated.

    Args:
        pairs: Names and values.
    """
    for name, value in pairs:
        if name in FIELDS:
            lane = replace(lane, **{name: value or None})  # type: ignore[arg-type]
        else:
            kept = tuple(pair for pair in lane.settings if _key(pair.partition("=")[0]) != _key(name))
            lane = replace(lane, settings=(*kept, f"{name}={value}") if value else kept)
    return lane


def parse_vary(texts: Iterable[str]) -> list[tuple[str, str, str]]:
    """`KEY=GOOD:BAD` texts as (key, good, bad).

    Raises:
        BadInput: Not of that form.
    """
    found = []
    for text in texts:
        name, equals, values = text.partition("=")
        if not name or not equals or values.count(":") != 1:
            raise BadInput(
                f"--vary {text}: not of the form KEY=GOOD:BAD",
                "for example --vary dtype=float32:bfloat16; values with a colon go into lane files "
                "(--good, --bad)",
            )
        good, _, bad = values.partition(":")
        found.append((name, good, bad))
    return found


def _key(name: str) -> str:
    """What names have in common that mean the same setting: `max-model-len`, `max_model_len`."""
    return name if name.startswith("env.") else name.replace("-", "_")


def _shown(name: str, value: str | None) -> str | None:
    hidden = value is not None and name.startswith("env.") and _SECRET.search(name)
    return NOT_KEPT if hidden else value


def content_digest(path: Path) -> str:
    """Hex SHA-256 of a request set.

    Raises:
        BadInput: It cannot be read.
    """
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", "check the path") from None
