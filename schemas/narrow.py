"""The result of a bisection by experiment: which settings turn a divergence on, and the runs that say so."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from .base import Document, JsonObject, Record, Upgrade
from .choices import NarrowLevel as NarrowLevel
from .findings.reasons import Reason
from .findings.statement import Location
from .sequences import Proportion

NarrowOutcome = Literal["same", "diverges", "failed", "undecided"]
NarrowState = Literal["unfinished", "found", "found with noise", "no divergence", "noise"]


class VariedSetting(Record):
    """One setting in which the two lanes differ."""

    name: str
    """As `--set` calls it, or `model`, `url`, `python`, `neighbours`."""
    good: str | None = None
    """Absent: the good lane does not state it."""
    bad: str | None = None


class RunDifference(Record):
    """How a run first differs from the reference."""

    of: Literal["token", "text", "site", "logprobs", "bits", "not known"]
    """`bits`: no site and no token is known to differ. `not known`: from a document of version 1, whose words
    stand in `at.text`."""
    at: Location | None = None
    """Where; without a `step` a token is in the prompt."""
    why: list[Reason] = []
    """Of `bits`: why the bits are not equal."""


class RunFailure(Record):
    """Why a run could not be made or compared."""

    kind: Literal["replay failed", "no trace", "nothing compared", "not known"]
    """`no trace`: the replay ended without one. `not known`: from a document of version 1."""
    message: str | None = None
    """Of the error."""


class NarrowObservation(Record):
    """One run, compared with the first run of the good lane."""

    trace: str | None = None
    """File name of its trace; absent: it could not be run or compared."""
    diverges: dict[NarrowLevel, bool] = {}
    """By level; empty where it could not be run or compared."""
    first: dict[NarrowLevel, RunDifference] = {}
    """The first difference at each level that it does not keep."""
    failure: RunFailure | None = None
    """Absent: it was run and compared."""
    seconds: float = 0.0


class Configuration(Record):
    """One combination of settings, with its runs."""

    name: str
    """Its traces are named after it: `NAME.parquet`, `NAME.2.parquet`, …"""
    on: list[str]
    """Settings at the bad lane's value; all others are at the good lane's."""
    outcome: NarrowOutcome = "undecided"
    """At the level asked for. `undecided`: its runs disagree, and not enough of them were allowed to tell."""
    rate: Proportion | None = None
    """Runs that diverge; absent where none could be compared. The reference is not counted."""
    observations: list[NarrowObservation]


class MinimalSet(Record):
    """Settings that together turn the divergence on, none of which can be left out."""

    settings: list[str] = Field(min_length=1)
    configuration: str
    """Name of the configuration that has exactly them on."""
    without: dict[str, str] = {}
    """Setting → name of the configuration that has all of them on but this one."""
    undecided: list[str] = []
    """Settings of which it is not known whether they are needed: without them the run failed, or its outcome
    stayed undecided."""


def _from_version_1(old: JsonObject) -> JsonObject:
    """Version 1 held sentences and quoted commands, and had other names for some fields."""
    renamed = {"asked": "digest", "asked_parts": "digests"}
    new = {renamed.get(name, name): value for name, value in old.items()}
    new["commands"] = [shlex.split(line) for line in old.get("commands", [])]
    new["found"] = [
        {"undecided" if name == "unjudged" else name: value for name, value in one.items()}
        for one in old.get("found", [])
    ]
    new["configurations"] = [
        {**one, "observations": [_observation_from_version_1(run) for run in one["observations"]]}
        for one in old["configurations"]
    ]
    return new


def _observation_from_version_1(old: JsonObject) -> JsonObject:
    new = {name: value for name, value in old.items() if name not in ("where", "why")}
    new["first"] = {
        level: {"of": "not known", "at": {"text": text}} for level, text in old.get("where", {}).items()
    }
    if old.get("why") is not None:
        new["failure"] = {"kind": "not known", "message": old["why"]}
    return new


class Narrow(Document):
    """The result of `rip narrow`, and while it runs its memory."""

    KIND: ClassVar[str] = "narrow"
    VERSION: ClassVar[int] = 2
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _from_version_1}

    tool_version: str
    created: str
    digest: str
    """Hex SHA-256 of requests and lanes: a search is continued only with the same ones."""
    digests: dict[str, str] | None = None
    """The same of each part: `rip` (its version), `requests`, `options`, and the lanes `good` and `bad`;
    absent in documents that did not keep it."""
    requests: str
    engine: str
    level: NarrowLevel
    """What counts as a divergence."""
    repeat: int
    """Runs that a configuration gets at most to decide its outcome."""
    state: NarrowState
    sentence: str = ""
    """The result in words, for readers; made from the rest."""
    varied: list[VariedSetting]
    found: list[MinimalSet] = []
    rest: str | None = None
    """Name of the configuration with everything on but what was found."""
    configurations: list[Configuration]
    """In the order of their first runs. The first is the good lane; its first run is the reference."""
    commands: list[list[str]] = []
    """Argument lists that compare the two deciding configurations, run them again, and compare those."""

    @model_validator(mode="after")
    def _names_are_of_this_document(self) -> Self:
        names = {one.name for one in self.configurations}
        settings = {one.name for one in self.varied}
        if self.rest is not None and (self.rest not in names or not self.found):
            raise ValueError("rest names no configuration, or nothing was found")
        if any(not settings.issuperset(one.settings) for one in self.found):
            raise ValueError("found names a setting that was not varied")
        if self.state == "noise" and not names.issuperset(("good", "bad")):
            raise ValueError("noise without the configurations good and bad")
        return self
