"""The two lanes of `rip narrow`, out of files and options, and how the user wrote each of their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ...schemas.errors import BadInput, RipError, Stated, stated_option, stated_setting
from ..lanes.request import LANE_SUFFIX, LaneRequest, read_lane, setting_key
from ..replay_plan.options import recorded_requests

FIELDS = ("model", "url", "python", "neighbours")
"""Fields of a lane that can be varied as settings can."""
_FIXED_FIELDS = ("engine", "api_key_env", "tap")


@dataclass(frozen=True)
class Varied:
    """One `--vary KEY=GOOD:BAD`."""

    name: str
    good: str
    bad: str

    @property
    def about(self) -> Stated:
        """The option, for errors."""
        return Stated(self.name, str(self), f"--vary {self.name}=GOOD:BAD")

    def __str__(self) -> str:
        return f"--vary {self.name}={self.good}:{self.bad}"


@dataclass(frozen=True)
class Side:
    """One of the two lanes.

    Attributes:
        lane: The lane.
        stated: How the user wrote a setting or a field, by its `setting_key`.
    """

    name: Literal["good", "bad"]
    lane: LaneRequest
    stated: Mapping[str, Stated]

    @contextmanager
    def errors_as_stated(self) -> Iterator[None]:
        """Errors name what the user wrote, in place of the options of a `rip replay`.

        Raises:
            RipError: Whatever is raised inside.
        """
        try:
            yield
        except RipError as error:
            stated = None if error.about is None else self.stated.get(setting_key(error.about.name))
            if stated is None:
                raise
            raise error.stated_as(stated) from None


def two_lanes(
    options: LaneRequest, good: str | None, bad: str | None, vary: Iterable[str]
) -> tuple[Side, Side]:
    """Both lanes: from their files, with the options on top, and what is varied on top of those.

    Args:
        options: The options, which both lanes have.
        good: Lane file; None: the options alone.
        bad: Lane file; None: the good lane.
        vary: `--vary` texts.

    Raises:
        BadInput: A file that cannot be used; a setting that is varied twice, or varied and fixed.
    """
    for option, path in (("good", good), ("bad", bad)):
        if path is not None and not path.endswith(LANE_SUFFIX):
            raise BadInput(
                "not a lane file", "its name ends in .toml: see docs/engines.md", stated_option(option, path)
            )
    varied = parse_vary(vary)
    for one in varied:
        if setting_key(one.name) in _FIXED_FIELDS:
            raise BadInput(
                f"{one.name} cannot be varied",
                f"settings of the engine can, env.NAME, and {', '.join(FIELDS)}",
                one.about,
            )
    _refuse_conflicts(varied, options)
    return _side("good", options, good, varied), _side("bad", options, bad or good, varied)


def _side(name: Literal["good", "bad"], options: LaneRequest, path: str | None, varied: list[Varied]) -> Side:
    """One lane, and how its values were written."""
    stated: dict[str, Stated] = {}
    lane = options
    if path is not None:
        try:
            lane = read_lane(replace(options, name=path))
        except RipError as error:
            raise error.stated_as(Stated("lane", path, f"--{name}")) if error.about else error from None
        in_file = lane.settings[: len(lane.settings) - len(options.settings)]
        for pair in in_file:
            setting = pair.partition("=")[0]
            stated[setting_key(setting)] = Stated(setting, f"{path}: {pair}", f"{setting} in the file")
        for field in (*FIELDS, *_FIXED_FIELDS):
            if (value := getattr(lane, field)) is not None:
                stated[field] = Stated(field, f"{path}: {field} = {value}", f"{field} in the file")
    for pair in options.settings:
        about = stated_setting(pair)
        stated[setting_key(about.name)] = about
    for field in (*FIELDS, *_FIXED_FIELDS):
        if (value := getattr(options, field)) is not None:
            stated[field] = stated_option(field, value)
    values = [(one.name, one.good if name == "good" else one.bad) for one in varied]
    for one, (_, value) in zip(varied, values, strict=True):
        stated[setting_key(one.name)] = replace(one.about, text=f"{one} ({value})")
    return Side(name, with_values(lane, values), stated)


def _refuse_conflicts(varied: list[Varied], options: LaneRequest) -> None:
    """Refuse what is varied and has a value for both lanes too.

    Raises:
        BadInput: Such a setting, or one that is varied twice or between equal values.
    """
    seen: dict[str, Varied] = {}
    for one in varied:
        key = setting_key(one.name)
        if key in seen:
            raise BadInput(
                f"{one.name} is varied already, with {seen[key]}", "leave one of the two out", one.about
            )
        if one.good == one.bad:
            raise BadInput(
                "the good and the bad value are the same",
                f"give two values, or --set {one.name}=VALUE for one that both lanes have",
                one.about,
            )
        seen[key] = one
    fixed = [stated_setting(pair) for pair in options.settings]
    fields = {field: getattr(options, field) for field in FIELDS}
    fixed += [stated_option(field, value) for field, value in fields.items() if value is not None]
    for about in fixed:
        if (other := seen.get(setting_key(about.name))) is not None:
            raise BadInput(
                f"{about.name} is varied too, with {other}",
                "leave one of the two out: both lanes share what is fixed, and differ in what is varied",
                about,
            )


def with_values(lane: LaneRequest, pairs: Iterable[tuple[str, str]]) -> LaneRequest:
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
                "not of the form KEY=GOOD:BAD",
                "for example --vary dtype=float32:bfloat16; values with a colon go into lane files "
                "(--good, --bad)",
                stated_option("vary", text),
            )
        good, _, bad = values.partition(":")
        found.append(Varied(name, good, bad))
    return found


def check_requests(path: Path) -> None:
    """Read the requests once, before anything runs.

    Raises:
        BadInput: There are none.
    """
    from ...replay.request.from_trace import answered

    answered(recorded_requests(path), path)
