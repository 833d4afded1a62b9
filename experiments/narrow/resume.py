"""Where a search of `rip narrow` begins: anew, or with the runs that its folder holds."""

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
    from .mixtures import Mixture, Prepared

RESULT = "narrow.json"
LOCK = f".{RESULT}.lock"
_MOST_CHANGES = 3
"""Changes that an error tells."""


def new_search(
    requests: Path, mixture: Mixture, options: list[str], level: NarrowLevel, repeat: int
) -> Narrow:
    """A search that has not begun.

    Args:
        options: Words of every `rip replay`, the requests first.
    """
    parts = {
        "rip": sha256_of(__version__),
        "requests": _content_digest(requests),
        "options": sha256_of(options[1:]),
        "good": _lane_digest(mixture.good),
        "bad": _lane_digest(mixture.bad),
    }
    return Narrow(
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        asked=sha256_of(parts),
        asked_parts=parts,
        requests=str(requests),
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


def begun(out: Path, new: Narrow, force: bool) -> tuple[Narrow, str]:
    """The search that the folder holds, as far as it is of use to the new one; and what to say of it.

    Runs are kept where the same command would make them again: all of the same search, those of the good lane
    where only the bad one is another.

    Raises:
        OutputFailed: The folder holds something else, or other runs that succeeded, and `force` is off.
    """
    if out.exists() and not out.is_dir():
        raise OutputFailed(f"{out} is no folder", "name a folder with -o")
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
    asked, before = new.asked_parts or {}, earlier.asked_parts or {}
    same = {name for name, part in asked.items() if before.get(name) == part}
    if earlier.asked == new.asked:
        note = f"going on after {_runs(runs)} that {out} holds" if runs else ""
        return earlier.model_copy(update={"level": new.level, "repeat": new.repeat}), note
    if not runs:
        return new, f"no run of the earlier search in {out} succeeded: starting anew"
    of_good = known.runs_of(GOOD)
    if same == asked.keys() - {"bad"} and of_good == runs:
        kept = [one for one in earlier.configurations if not one.on]
        return (
            new.model_copy(update={"configurations": kept}),
            f"the bad lane is another one than before: of {out}, {_runs(runs)} of the good lane "
            f"{'is' if runs == 1 else 'are'} kept",
        )
    raise OutputFailed(
        f"{out} holds another search, with {_runs(runs)}: {_changes(earlier, new, same)}",
        f"choose another folder with -o, or use --force to forget what {out} holds",
    )


def _changes(earlier: Narrow, new: Narrow, same: set[str]) -> str:
    """What is another than in the earlier search."""
    found: list[str] = []
    if "requests" not in same:
        found.append("the requests are others")
    before, now = ({one.name: one for one in search.varied} for search in (earlier, new))
    for name in dict.fromkeys((*before, *now)):
        if name not in before:
            found.append(f"{name} is varied now")
        elif name not in now:
            found.append(f"{name} is not varied any more")
        else:
            for side in ("good", "bad"):
                was, is_now = (getattr(one[name], side) for one in (before, now))
                if was != is_now:
                    found.append(f"the {side} value of {name} was {_value(was)}, is {_value(is_now)}")
    if not found and not {"good", "bad"} <= same:
        found.append("a setting that is not varied has another value")
    if "options" not in same:
        found.append("--capture or --allow-drift was given otherwise")
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
    return sha256_of({"engine": lane.engine, "fixed": list(lane.fixed), "values": stated})


def _content_digest(path: Path) -> str:
    """Hex SHA-256 of a request set.

    Raises:
        BadInput: It cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", "check the path") from None
