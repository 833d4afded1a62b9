"""What a search has run so far: each configuration's name, its runs, and the document that keeps them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from ...diverge.statistics.intervals import wilson
from ...schemas.narrow import Configuration, MinimalSet, Narrow, NarrowObservation
from .search import GOOD, Finding, On
from .sentences import sentence

_LONGEST_NAME = 80


class Ledger:
    """The runs of one search.

    Args:
        document: A new search, or one that was interrupted. Runs of it that failed are forgotten, and so is
            every run whose trace is gone; all of them where it is the reference, which the others were
            compared with.
        folder: Where the traces are.
    """

    def __init__(self, document: Narrow, folder: Path) -> None:
        self._document, self._folder = document, folder
        self._names = [setting.name for setting in document.varied]
        self._runs: dict[On, list[NarrowObservation]] = {}
        for known in document.configurations:
            kept = []
            for one in known.observations:
                if one.trace is None or not (folder / one.trace).is_file():
                    break  # what came after it keeps no number of its own
                kept.append(one)
            self._runs[frozenset(known.on)] = kept
        if not self._runs.get(GOOD):
            self._runs = {}

    @property
    def all_on(self) -> On:
        """The bad lane."""
        return frozenset(self._names)

    @property
    def finished_runs(self) -> int:
        """How many runs are known."""
        return sum(map(len, self._runs.values()))

    def runs_of(self, on: On) -> int:
        """How many runs of a configuration are known."""
        return len(self._runs.get(on, []))

    def known(self, on: On, index: int) -> NarrowObservation | None:
        """The configuration's run of that number (from 0), if it was made."""
        runs = self._runs.get(on, [])
        return runs[index] if index < len(runs) else None

    def add(self, on: On, observation: NarrowObservation) -> None:
        """Remember the configuration's next run."""
        self._runs.setdefault(on, []).append(observation)

    def name(self, on: On) -> str:
        """What a configuration is called."""
        return configuration_name(on, self._names)

    def trace(self, on: On, index: int) -> Path:
        """Where the trace of a run goes."""
        number = f".{index + 1}" if index else ""
        return self._folder / f"{self.name(on)}{number}.parquet"

    def document(self, finding: Finding | None = None) -> Narrow:
        """What is known, and with a finished search what was found; without its commands."""
        outcomes = finding.outcomes if finding is not None else {}
        configurations = []
        for on, runs in self._runs.items():
            judged = [run.diverges.get(self._document.level) for run in runs[on == GOOD :]]
            compared = [diverges for diverges in judged if diverges is not None]
            configurations.append(
                Configuration(
                    name=self.name(on),
                    on=self._ordered(on),
                    outcome=outcomes.get(on, "undecided"),
                    rate=wilson(sum(compared), len(compared)) if compared else None,
                    observations=runs,
                )
            )
        update = {"configurations": configurations}
        if finding is None:
            return self._document.model_copy(update={**update, "state": "unfinished"})
        found = [
            MinimalSet(
                settings=list(one.settings),
                configuration=self.name(one.on),
                without={name: self.name(one.on - {name}) for name in one.settings},
                undecided=list(one.undecided),
            )
            for one in finding.found
        ]
        rest = None if finding.rest is None else self.name(finding.rest)
        ended = self._document.model_copy(
            update={**update, "state": finding.state, "found": found, "rest": rest}
        )
        return ended.model_copy(update={"sentence": sentence(ended)})

    def _ordered(self, on: On) -> list[str]:
        return [name for name in self._names if name in on]


def configuration_name(on: On, names: Sequence[str]) -> str:
    """A file name for a configuration: `good`, `bad`, `with-dtype+threads` or `without-attention`.

    Args:
        on: The settings that are on.
        names: All settings, in their order.
    """
    chosen, others = ([name for name in names if (name in on) is wanted] for wanted in (True, False))
    if not chosen:
        return "good"
    if not others:
        return "bad"
    said = f"with-{'+'.join(chosen)}" if len(chosen) <= len(others) else f"without-{'+'.join(others)}"
    plain = re.sub(r"[^A-Za-z0-9._+-]", "_", said)
    if plain == said and len(said) <= _LONGEST_NAME:
        return said
    return f"{plain[:_LONGEST_NAME]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
