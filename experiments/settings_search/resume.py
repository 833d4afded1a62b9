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
from .continuation import Continuation, changes, unchanged_parts
from .sentences import different_search

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
    from .ledger import Ledger
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
