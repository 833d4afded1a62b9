"""What was typed for `rip narrow`: two lanes out of files and options, and how errors name their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...schemas.errors import BadInput, RipError
from ..lanes.resolve import LANE_SUFFIX, choose

if TYPE_CHECKING:
    from ..lanes.resolve import Chosen

FIELDS = ("model", "url", "python", "neighbours")
"""Fields of a lane that can be varied as settings can."""
_FIXED_FIELDS = ("engine", "api_key_env", "tap")


@dataclass(frozen=True)
class Varied:
    """One `--vary KEY=GOOD:BAD`."""

    name: str
    good: str
    bad: str

    def __str__(self) -> str:
        return f"--vary {self.name}={self.good}:{self.bad}"


@dataclass(frozen=True)
class Side:
    """One of the two lanes, as it was given.

    Attributes:
        chosen: The lane.
        typed: What the user typed for a setting or a field, by its `setting_key`.
    """

    name: Literal["good", "bad"]
    chosen: Chosen
    typed: Mapping[str, str]

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors name what the user typed, in place of the options that `rip replay` would be given.

        Raises:
            RipError: Whatever is raised inside, in those words.
        """
        try:
            yield
        except RipError as error:
            message = self.as_typed(error.message)
            raise type(error)(message, self._fix(error.fix, message != error.message)) from None

    def as_typed(self, message: str) -> str:
        """A message of `rip replay` that begins with an option or its value, in the words of the user."""
        stated = [(f"--set {pair}", pair.partition("=")[0]) for pair in self.chosen.settings]
        stated += [(f"--set {name}", name) for _, name in stated]
        for field in (*FIELDS, *_FIXED_FIELDS):
            option, value = _option(field), getattr(self.chosen, field)
            stated += [(f"{option} {value}", field), (option, field)]
            stated += [(str(value), field)] if field in FIELDS else []
        for begin, name in stated:
            rest = message.removeprefix(begin)
            if rest.startswith((":", " ")) and rest != message and setting_key(name) in self.typed:
                return f"{self.typed[setting_key(name)]}{rest}"
        return message.replace("--set: ", f"the {self.name} lane: ", 1)

    def _fix(self, fix: str, was_renamed: bool) -> str:
        if was_renamed:
            fix = fix.replace("--set ", "")
        for field in (*FIELDS, "tap"):
            typed = self.typed.get(field, "--")
            if typed.startswith("--vary "):
                fix = re.sub(rf"--{field}\b( [0-9]+)?", f"--vary {field}=GOOD:BAD", fix)
            elif not typed.startswith("--"):
                fix = fix.replace(f"--{field}", f"{field} in the file")
        return fix


def sides(given: Chosen, good: str | None, bad: str | None, vary: Iterable[str]) -> tuple[Side, Side]:
    """Both lanes: from their files, with the options on top, and what is varied on top of those.

    Args:
        given: The options, which both lanes have.
        good: Lane file; None: the options alone.
        bad: Lane file; None: the good lane.
        vary: `--vary` texts.

    Raises:
        BadInput: A file that cannot be used; a setting that is varied twice, or varied and fixed.
    """
    for option, path in (("--good", good), ("--bad", bad)):
        if path is not None and not path.endswith(LANE_SUFFIX):
            raise BadInput(f"{option} {path}: not a lane file", "its name ends in .toml: see docs/engines.md")
    varied = parse_vary(vary)
    for one in varied:
        if setting_key(one.name) in _FIXED_FIELDS:
            raise BadInput(
                f"{one}: {one.name} cannot be varied",
                f"settings of the engine can, env.NAME, and {', '.join(FIELDS)}",
            )
    _refuse_fixed(varied, given)
    return _side("good", given, good, varied), _side("bad", given, bad or good, varied)


def _side(name: Literal["good", "bad"], given: Chosen, path: str | None, varied: list[Varied]) -> Side:
    """One lane, and the names of its values."""
    typed: dict[str, str] = {}
    lane = given
    if path is not None:
        try:
            lane = choose(path, given)
        except RipError as error:
            raise type(error)(error.message, error.fix.replace("--lane", f"--{name}")) from None
        of_file = lane.settings[: len(lane.settings) - len(given.settings)]
        typed |= {setting_key(pair.partition("=")[0]): f"{path}: {pair}" for pair in of_file}
        stated = {field: getattr(lane, field) for field in (*FIELDS, *_FIXED_FIELDS)}
        typed |= {field: f"{path}: {field} = {value}" for field, value in stated.items() if value is not None}
    typed |= {setting_key(pair.partition("=")[0]): f"--set {pair}" for pair in given.settings}
    for field in (*FIELDS, *_FIXED_FIELDS):
        if (value := getattr(given, field)) is not None:
            typed[field] = f"{_option(field)} {value}"
    for one in varied:
        typed[setting_key(one.name)] = f"{one} ({one.good if name == 'good' else one.bad})"
    values = [(one.name, one.good if name == "good" else one.bad) for one in varied]
    return Side(name, with_values(lane, values), typed)


def _refuse_fixed(varied: list[Varied], given: Chosen) -> None:
    """Refuse what is varied and has a value for both lanes too.

    Raises:
        BadInput: Such a setting, or one that is varied twice or between equal values.
    """
    seen: dict[str, Varied] = {}
    for one in varied:
        key = setting_key(one.name)
        if key in seen:
            raise BadInput(
                f"{one}: {one.name} is varied already, with {seen[key]}", "leave one of the two out"
            )
        if one.good == one.bad:
            raise BadInput(
                f"{one}: the good and the bad value are the same",
                f"give two values, or --set {one.name}=VALUE for one that both lanes have",
            )
        seen[key] = one
    fixed = [(f"--set {pair}", pair.partition("=")[0]) for pair in given.settings]
    fields = {field: getattr(given, field) for field in FIELDS}
    fixed += [(f"--{field} {value}", field) for field, value in fields.items() if value is not None]
    for typed, name in fixed:
        if (other := seen.get(setting_key(name))) is not None:
            raise BadInput(
                f"{typed}: {name} is varied too, with {other}",
                "leave one of the two out: both lanes have what is fixed, and differ in what is varied",
            )


def with_values(lane: Chosen, pairs: Iterable[tuple[str, str]]) -> Chosen:
    """A lane with other values; an empty one leaves the setting unstated.

    Args:
        pairs: Names and values.
    """
    for name, value in pairs:
        if name in FIELDS:
            lane = replace(lane, **{name: value or None})  # type: ignore[arg-type]
        else:
            key = setting_key(name)
            kept = tuple(pair for pair in lane.settings if setting_key(pair.partition("=")[0]) != key)
            lane = replace(lane, settings=(*kept, f"{name}={value}") if value else kept)
    return lane


def parse_vary(texts: Iterable[str]) -> list[Varied]:
    """Read `KEY=GOOD:BAD` texts.

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
        found.append(Varied(name, good, bad))
    return found


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def setting_key(name: str) -> str:
    """What names have in common that mean the same setting: `max-model-len`, `max_model_len`."""
    return name if name.startswith("env.") else name.replace("-", "_")


def check_requests(path: Path) -> None:
    """Read the requests once, before anything runs.

    Raises:
        BadInput: There are none.
    """
    from ...commands.replay_options import recorded_requests
    from ...replay.request.from_trace import answered

    answered(recorded_requests(path), path)
