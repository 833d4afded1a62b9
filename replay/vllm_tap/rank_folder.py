"""One rank's folder: who writes into it, whether it still does, its sites, and which parts hold a request.

A rank's folder holds `state.json`, `sites.json` and `part-00000000.rip …` (see part_file.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...schemas.errors import EngineFailed
from ...schemas.trace import Site
from .part_file import BrokenPart, Part, PartIndex, TappedRequest, part_names, read_index, read_part

STATE, SITES = "state.json", "sites.json"
STATE_BYTES = 8192
"""`state.json` has this size from the start and is overwritten in place: so a full disk can be reported."""

COORDINATES = ("tp_rank", "tp_size", "pp_rank", "pp_size", "dp_rank", "dp_size")
"""Which rank of tensor, pipeline and data parallelism it is, and of how many."""

_NEEDED = (*COORDINATES, "instance", "started", "channel", "row_hash", "sketch", "state", "why")


def read_state(folder: Path) -> dict[str, Any] | None:
    """What a rank's `state.json` says; None for another folder, or one that is just being made."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and all(name in state for name in _NEEDED) else None


def padded_state(state: Mapping[str, Any]) -> bytes:
    """A rank's state as the bytes of `state.json`; a reason that is too long is cut."""
    text = json.dumps(state)
    if len(text) > STATE_BYTES - 1:
        error = state.get("error")
        short = error and {name: str(value)[:1000] for name, value in error.items()}
        text = json.dumps({**state, "why": str(state.get("why", ""))[:1000], "error": short})
    return text.encode().ljust(STATE_BYTES - 1) + b"\n"


def boot_id() -> str:
    """Tells process ids of one machine's runs apart; short, since it is part of a folder's name."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    return "unknown"


def is_alive(state: Mapping[str, Any]) -> bool | None:
    """Whether the process that wrote this state still runs; None where that cannot be known from here."""
    pid = state.get("pid")
    if state.get("boot_id") != boot_id() or not isinstance(pid, int) or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True)
class RankFailure:
    """Why one rank observes nothing any more.

    Attributes:
        rank: Its name.
        why: In words, as the rank wrote it.
        kind: The class of the exception that ended the observation; None: there was none, or it is not known.
        message: That exception's own.
    """

    rank: str
    why: str
    kind: str | None = None
    message: str | None = None


class TapsFailed(EngineFailed):
    """What observes a vLLM engine has ended. `ranks` are the failures as data."""

    def __init__(self, message: str, fix: str, ranks: Sequence[RankFailure] = ()) -> None:
        super().__init__(message, fix)
        self.ranks = tuple(ranks)


CACHED_PARTS = 4
"""Parts of a rank held in memory."""


@dataclass(frozen=True)
class KeyRows:
    """What one rank has of a key.

    Attributes:
        numbers: The rank's numbers of the requests that had the key.
        ended: Whether the end of all of them is marked.
        count: Rows.
    """

    numbers: list[int]
    ended: bool
    count: int


class RankFiles:
    """One rank's folder."""

    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        self.path = path
        self.coordinates = {name: int(state[name]) for name in COORDINATES}
        self.instance, self.started = str(state["instance"]), float(state["started"])
        self.channel = str(state["channel"])
        self.row_hash, self.sketch = str(state["row_hash"]), str(state["sketch"])
        self._pid = {"pid": state.get("pid"), "boot_id": state.get("boot_id")}
        self._take(state)
        self.name = path.name.rpartition("-rank")[2]
        self.sites: list[Site] = []
        self.not_seen: list[str] = []
        self.broken: list[str] = []
        """Parts that could not be read, in sentences."""
        self._read: set[str] = set()
        self._requests: dict[int, TappedRequest] = {}
        self._ended: set[int] = set()
        self._parts: defaultdict[int, list[tuple[Path, int]]] = defaultdict(list)
        """Of each request: its parts, each with the last of its positions there."""
        self._counts: Counter[int] = Counter()
        self._cached: dict[Path, Part] = {}
        self._load_sites()

    @property
    def why(self) -> str:
        """Why nothing more will come, in words; empty while something may."""
        if self.state == "failed":
            return self._reason
        return "its process has died" if self.state != "closed" and is_alive(self._pid) is False else ""

    @property
    def failure(self) -> RankFailure | None:
        """Why nothing more will come, as data; None while something may."""
        if not self.why:
            return None
        return RankFailure(self.name, self.why, self._error.get("kind"), self._error.get("message"))

    def order(self, *names: str) -> tuple[int, ...]:
        """Its coordinates of these names, to sort ranks by."""
        return tuple(self.coordinates[name] for name in names)

    def is_ready(self) -> bool:
        """Whether its sites are known and it observes, or did."""
        return self.state in ("ready", "closed")

    def is_over(self) -> bool:
        """Whether its process ended in order: then what it saw of a request is all there is."""
        return self.state == "closed"

    def refresh(self) -> None:
        """Read what is new."""
        state = read_state(self.path)
        if state is not None:
            self._take(state)
        names = [item.name for item in self.path.iterdir()] if self.path.is_dir() else []
        for name in part_names(set(names) - self._read):
            self._read.add(name)
            try:
                self._note(self.path / name, read_index(self.path / name))
            except (BrokenPart, OSError) as error:
                self.broken.append(f"{name} could not be read: {error}")

    def keys(self) -> list[str]:
        """Every key, in order of appearance."""
        return [self._requests[number].key for number in sorted(self._requests)]

    def find(self, key: str) -> KeyRows | None:
        """What there is of a key by now; None where it was never seen."""
        self.refresh()
        numbers = [number for number, known in self._requests.items() if _matches_key(known, key)]
        if not numbers:
            return None
        ended = self._ended.issuperset(numbers)
        return KeyRows(numbers, ended, sum(self._counts[number] for number in numbers))

    def load(self, numbers: Sequence[int], since: int = 0) -> list[tuple[Part, int]]:
        """The parts with rows of some requests from a position on, each with the number of the request."""
        found = []
        for number in numbers:
            for path, last in self._parts.get(number, []):
                if last < since:
                    continue
                try:
                    found.append((self._part(path), number))
                except (BrokenPart, OSError) as error:
                    self.broken.append(f"{path.name} could not be read: {error}")
        return found

    def prefix(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Token ids that the prefix cache spared a request."""
        return next((self._requests[number].prefix for number in numbers), ())

    def forget(self, numbers: Sequence[int]) -> None:
        """Remove the parts that hold nothing but these requests and others that were forgotten before."""
        mine = {path for number in numbers for path, _ in self._parts.pop(number, ())}
        for path in mine - {path for parts in self._parts.values() for path, _ in parts}:
            self._cached.pop(path, None)
            path.unlink(missing_ok=True)

    def _part(self, path: Path) -> Part:
        """A part; requests of one batch share parts, so the last ones are kept."""
        part = self._cached.pop(path, None) or read_part(path)
        self._cached[path] = part
        while len(self._cached) > CACHED_PARTS:
            del self._cached[next(iter(self._cached))]
        return part

    def _note(self, path: Path, part: PartIndex) -> None:
        for number, request in part.requests.items():
            self._requests[number] = request
            if number in part.counts:
                self._parts[number].append((path, part.last[number]))
                self._counts[number] += part.counts[number]
        self._ended.update(part.ended)

    def _take(self, state: Mapping[str, Any]) -> None:
        self.state, self._reason = str(state["state"]), str(state["why"])
        error = state.get("error")
        self._error = {name: str(value) for name, value in error.items()} if isinstance(error, dict) else {}

    def _load_sites(self) -> None:
        try:
            found = json.loads((self.path / SITES).read_text(encoding="utf-8"))
            self.sites = [Site.model_validate(site) for site in found["sites"]]
            self.not_seen = [str(text) for text in found["not_seen"]]
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            self.state = "starting" if self.state == "ready" else self.state  # not written yet


def _matches_key(request: TappedRequest, key: str) -> bool:
    """Whether a key means a request. vLLM appends "-" and random digits to the id that its caller knows."""
    if request.key == key:
        return True
    return request.key == request.request_id and request.request_id.rpartition("-")[0] == key


def open_ranks(folder: Path) -> list[RankFiles]:
    """The ranks of the engine that started last among those that wrote into a folder, in order."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        state = read_state(path) if path.is_dir() else None
        if state is not None:
            found.append(RankFiles(path, state))
    if not found:
        return []
    newest = max(found, key=lambda rank: rank.started)
    ranks: dict[tuple[int, ...], RankFiles] = {}
    for rank in sorted(found, key=lambda rank: rank.started):
        if rank.instance == newest.instance:  # an engine that was started again may have the same name
            ranks[rank.order(*COORDINATES)] = rank
    return sorted(ranks.values(), key=lambda rank: rank.order("dp_rank", "pp_rank", "tp_rank"))
