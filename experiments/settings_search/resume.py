"""How a search of `rip narrow` starts: from nothing, or with the runs that its folder holds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ... import __version__
from ...diverge.statistics import wilson
from ...schemas.base import sha256_of
from ...schemas.errors import BadInput, OutputFailed
from ...schemas.narrow import Configuration, MinimalSet, Narrow, NarrowLevel, NarrowObservation
from .continuation import Continuation, changes, unchanged_parts
from .search import GOOD, Finding, On
from .sentences import different_search, sentence

if TYPE_CHECKING:
    from .mixtures import Mixture, Prepared, RunOptions


RESULT = "narrow.json"
LOCK = f".{RESULT}.lock"


def new_search(mixture: Mixture, options: RunOptions, level: NarrowLevel, repeat: int) -> Narrow:
    """A search without a run."""
    shared = ["--capture", options.capture] if options.capture else []
    shared += ["--allow-drift"] if options.allow_drift else []
    parts = {
        "rip": sha256_of(__version__),
        "requests": _content_digest(options.requests),
        "options": sha256_of(shared),
        "good": _lane_digest(mixture.good),
        "bad": _lane_digest(mixture.bad),
    }
    return Narrow(
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        digest=sha256_of(parts),
        digests=parts,
        requests=str(options.requests),
        engine=mixture.good.engine,
        level=level,
        repeat=repeat,
        state="unfinished",
        varied=mixture.varied(),
        configurations=[],
    )


def make_folder(out: Path) -> None:
    """Make the folder, if it is not there.

    Raises:
        OutputFailed: It cannot be made.
    """
    try:
        out.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OutputFailed(
            f"{out} cannot be used: {error.strerror}", "name a folder whose parent exists with -o"
        ) from None


def continued_search(out: Path, new: Narrow, force: bool) -> tuple[Narrow, Continuation | None]:
    """The new search with the runs of the folder that it would repeat; None: the folder holds no search.

    Runs are kept where the same command would make them again: all of the same search, those of the good lane
    where only the bad one has changed.

    Raises:
        OutputFailed: The folder holds something else, or other runs that succeeded, and `force` is off.
    """
    if out.exists() and not out.is_dir():
        raise OutputFailed(f"{out} is not a folder", "name a folder with -o")
    from .search import GOOD

    path = out / RESULT
    if force or not out.exists():
        return new, None
    if not path.exists():
        if any(one.name != LOCK for one in out.iterdir()):
            raise OutputFailed(f"{out} is not empty", "choose another folder, or use it with --force")
        return new, None
    earlier = Narrow.from_json(path.read_bytes(), str(path))
    known = Ledger(earlier, out)
    runs = known.finished_runs
    if earlier.digest == new.digest:
        kept = earlier.model_copy(update={"level": new.level, "repeat": new.repeat})
        return kept, Continuation("continued", runs) if runs else None
    if not runs:
        return new, Continuation("started over")
    same, of_good = unchanged_parts(earlier, new), known.runs_of(GOOD)
    if same == (new.digests or {}).keys() - {"bad"} and of_good == runs:
        good = [one for one in earlier.configurations if not one.on]
        return new.model_copy(update={"configurations": good}), Continuation("good lane kept", runs)
    raise OutputFailed(
        different_search(out, runs, changes(earlier, new)),
        f"choose another folder with -o, or discard what {out} holds with --force",
    )


def _lane_digest(lane: Prepared) -> str:
    """Hex SHA-256 of all that a lane states."""
    stated = dict(sorted(lane.values.items()))
    options = {"--api-key-env": lane.api_key_env, "--tap": lane.tap}
    fixed = [text for option, value in options.items() if value for text in (option, value)]
    return sha256_of({"engine": lane.engine, "fixed": fixed, "values": stated})


def _content_digest(path: Path) -> str:
    """Hex SHA-256 of a request set.

    Raises:
        BadInput: It cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", "check the path") from None


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
