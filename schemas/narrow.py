"""The result of a bisection by experiment: which settings turn a divergence on, and the runs that say so."""

from __future__ import annotations

from typing import ClassVar, Literal

from .base import Document, Record
from .choices import NarrowLevel as NarrowLevel
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


class NarrowObservation(Record):
    """One run, compared with the first run of the good lane."""

    trace: str | None = None
    """File name of its trace; absent: it could not be run or compared."""
    diverges: dict[NarrowLevel, bool] = {}
    """By level; empty where it could not be run or compared."""
    where: dict[NarrowLevel, str] = {}
    """The first difference at each level that it does not keep."""
    why: str | None = None
    """Why it could not be run or compared."""
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

    settings: list[str]
    configuration: str
    """Name of the configuration that has exactly them on."""
    without: dict[str, str] = {}
    """Setting → name of the configuration that has all of them on but this one."""
    unjudged: list[str] = []
    """Settings of which it is not known whether they are needed: without them the run failed, or its outcome
    stayed undecided."""


class Narrow(Document):
    """The result of `rip narrow`, and while it runs its memory."""

    KIND: ClassVar[str] = "narrow"

    tool_version: str
    created: str
    asked: str
    """Hex SHA-256 of requests and lanes: a search is continued only with the same ones."""
    asked_parts: dict[str, str] | None = None
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
    """The result in words."""
    varied: list[VariedSetting]
    found: list[MinimalSet] = []
    rest: str | None = None
    """Name of the configuration with everything on but what was found."""
    configurations: list[Configuration]
    """In the order of their first runs. The first is the good lane; its first run is the reference."""
    commands: list[str] = []
    """What runs the two deciding configurations again and compares them."""
