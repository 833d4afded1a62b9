"""Digests of files that were read before, kept in the user's cache folder. It does not hash anything.

An entry stands for one state of one file: device, inode, size, mtime and ctime in nanoseconds, and the
version of rip that read it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from pathlib import Path

from .. import __version__

MAX_ENTRIES = 4096
"""Oldest readings are dropped beyond it, so that the file stays under a megabyte."""
SETTLE_SECONDS = 2.0
"""A file changed this recently could change again within one tick of the file system's clock and look
the same; its digest is not kept."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def default_path() -> Path:
    """Where the digests are kept: `$XDG_CACHE_HOME/rip`, or `~/.cache/rip`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rip" / "digests.json"


class DigestCache:
    """File state → SHA-256. A cache that cannot be read or written is ignored, with a note.

    Attributes:
        note: What was wrong with the cache, or None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.note: str | None = None
        self._changed = False
        self._digests: dict[str, str] = {}
        try:
            self._path = path or default_path()
            self._digests = self._read()
        except FileNotFoundError:
            pass  # the first run
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.note = f"digest cache ignored: {type(error).__name__}"

    def get(self, state: os.stat_result) -> str | None:
        """The SHA-256 of the file in that state, or None when it has not been read before."""
        return self._digests.get(_key(state))

    def put(self, state: os.stat_result, sha256: str) -> None:
        """Remember a digest, unless the file changed too recently to be told apart from a later state."""
        if time.time() - max(state.st_mtime, state.st_ctime) >= SETTLE_SECONDS:
            self._digests[_key(state)] = sha256
            self._changed = True

    def save(self) -> None:
        """Write the cache, whole or not at all. What another process wrote meanwhile is kept."""
        if not self._changed:
            return
        unfinished: str | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._digests = {**self._read(), **self._digests}
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                self._digests = dict(self._digests)  # absent or corrupt: replaced by what we know
            newest = dict(list(self._digests.items())[-MAX_ENTRIES:])
            descriptor, unfinished = tempfile.mkstemp(dir=self._path.parent, prefix=".digests.")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"tool_version": __version__, "sha256": newest}, file)
            os.replace(unfinished, self._path)
            self._changed = False
        except (OSError, RuntimeError) as error:
            self.note = f"digest cache not written: {type(error).__name__}"
            if unfinished is not None:
                Path(unfinished).unlink(missing_ok=True)

    def _read(self) -> dict[str, str]:
        stored = json.loads(self._path.read_text(encoding="utf-8"))
        if stored["tool_version"] != __version__:
            return {}
        digests = {str(key): str(digest) for key, digest in stored["sha256"].items()}
        if not all(_SHA256.fullmatch(digest) for digest in digests.values()):
            raise ValueError("not a SHA-256")
        return digests


def _key(state: os.stat_result) -> str:
    parts = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return ":".join(str(part) for part in parts)
