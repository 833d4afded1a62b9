"""How a search of `rip narrow` starts: from nothing, or with the runs that its folder holds."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ... import __version__
from ...schemas.base import sha256_of
from ...schemas.errors import BadInput, OutputFailed
from ...schemas.narrow import Narrow, NarrowLevel

if TYPE_CHECKING:
    from .mixtures import Mixture, Prepared, RunOptions

RESULT = "narrow.json"
LOCK = f".{RESULT}.lock"
_MOST_CHANGES = 3
"""Changes that an error names."""


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
        asked=sha256_of(parts),
        asked_parts=parts,
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


def continued_search(out: Path, new: Narrow, force: bool) -> tuple[Narrow, str]:
    """The new search with the runs of the folder that it would repeat, and a note about them.

    Runs are kept where the same command would make them again: all of the same search, those of the good lane
    where only the bad one has changed.

    Raises:
        OutputFailed: The folder holds something else, or other runs that succeeded, and `force` is off.
    """
    if out.exists() and not out.is_dir():
        raise OutputFailed(f"{out} is not a folder", "name a folder with -o")
    from .ledger import Ledger
    from .search import GOOD

    path = out / RESULT
    if force or not out.exists():
        return new, ""
    if not path.exists():
        if any(one.name != LOCK for one in out.iterdir()):
            raise OutputFailed(f"{out} is not empty", "choose another folder, or use it with --force")
        return new, ""
    earlier = Narrow.from_json(path.read_bytes(), str(path))
    known = Ledger(earlier, out)
    runs = known.finished_runs
    parts, before = new.asked_parts or {}, earlier.asked_parts or {}
    same = {name for name, part in parts.items() if before.get(name) == part}
    if earlier.asked == new.asked:
        note = f"continuing after {_runs(runs)} in {out}" if runs else ""
        return earlier.model_copy(update={"level": new.level, "repeat": new.repeat}), note
    if not runs:
        return new, f"no run of the earlier search in {out} succeeded: starting over"
    of_good = known.runs_of(GOOD)
    if same == parts.keys() - {"bad"} and of_good == runs:
        kept = [one for one in earlier.configurations if not one.on]
        return (
            new.model_copy(update={"configurations": kept}),
            f"the bad lane has changed: {_runs(runs)} of the good lane in {out} "
            f"{'is' if runs == 1 else 'are'} kept",
        )
    raise OutputFailed(
        f"{out} holds a different search with {_runs(runs)}: {_changes(earlier, new, same)}",
        f"choose another folder with -o, or discard what {out} holds with --force",
    )


def _changes(earlier: Narrow, new: Narrow, same: set[str]) -> str:
    """What has changed since the earlier search."""
    found: list[str] = []
    if "requests" not in same:
        found.append("the requests have changed")
    before, now = ({one.name: one for one in search.varied} for search in (earlier, new))
    for name in dict.fromkeys((*before, *now)):
        if name not in before:
            found.append(f"{name} is varied now")
        elif name not in now:
            found.append(f"{name} is no longer varied")
        else:
            for side in ("good", "bad"):
                was, is_now = (getattr(one[name], side) for one in (before, now))
                if was != is_now:
                    found.append(f"the {side} value of {name} was {_value(was)}, is {_value(is_now)}")
    if not found and not {"good", "bad"} <= same:
        found.append("a setting that is not varied has changed")
    if "options" not in same:
        found.append("--capture or --allow-drift has changed")
    if earlier.tool_version != new.tool_version:
        found.append(f"rip {earlier.tool_version} made it, this is {new.tool_version}")
    more = f"; and {len(found) - _MOST_CHANGES} more" if len(found) > _MOST_CHANGES else ""
    return "; ".join(found[:_MOST_CHANGES]) + more


def _value(text: str | None) -> str:
    return "not stated" if text is None else text


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


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
