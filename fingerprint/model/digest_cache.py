"""Digests that were computed before, kept in the user's cache folder as a journal. It does not hash anything.

Each line is one finished piece of work, appended as soon as it is done: what a killed run had finished is not
read again. A line about a file holds for one state of it: device, inode, size, mtime and ctime in
nanoseconds, and the version of rip that read it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

from ... import __version__
from ...schemas.files import replace_file

MAX_BYTES = 64 * 1024 * 1024
"""A larger journal is cut to its newest half when it is opened. A line takes 256 bytes a tensor."""
SETTLE_SECONDS = 2.0
"""A file changed this recently could change again within one tick of the file system's clock and look
the same; its digest is not kept."""
_CHECK_BYTES = 8


def default_path() -> Path:
    """Where the digests are kept: `$XDG_CACHE_HOME/rip`, or `~/.cache/rip`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rip" / "digests.journal"


class DigestCache:
    """What is known of a file's state, by kind. A journal that cannot be read or written is only noted.

    Several processes may write to one journal; its lines are appended whole. Safe for several threads.

    Attributes:
        note: What was wrong with the journal, or None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.note: str | None = None
        self._lock = threading.Lock()
        self._lines: dict[bytes, bytes] = {}
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._is_torn = False
        try:
            self._path = path or default_path()
            self._load(self._path.read_bytes())
        except FileNotFoundError:
            pass  # the first run
        except (OSError, RuntimeError) as error:
            self.note = f"digest cache ignored: {type(error).__name__}"

    def get(self, state: os.stat_result, kind: str) -> str | None:
        """What was found of that kind in the file of that state, or None when it was not read before."""
        return self.recall(_key(state), kind)

    def put(self, state: os.stat_result, kind: str, found: str) -> None:
        """Keep a finding, unless the file changed too recently to be distinguished from a later state."""
        if time.time() - max(state.st_mtime, state.st_ctime) >= SETTLE_SECONDS:
            self.keep(_key(state), kind, found)

    def recall(self, key: str, kind: str) -> str | None:
        """What was kept under a key that stands for its own content, such as a digest."""
        line = self._lines.get(_line_key(key, kind))
        if line is None:
            return None
        check, _, rest = line.partition(b" ")
        if check != _check(rest):
            self.note = "digest cache: damaged lines ignored"
            return None
        return rest.partition(b" ")[2].decode()

    def keep(self, key: str, kind: str, found: str) -> None:
        """Append a line.

        Args:
            key: What the finding is about; no spaces.
            kind: Which finding; no spaces.
            found: Text without line feeds.
        """
        line_key = _line_key(key, kind)
        rest = line_key + b" " + found.encode()
        line = _check(rest) + b" " + rest
        with self._lock:
            self._lines[line_key] = line
            try:
                record = (b"\n" if self._is_torn else b"") + line + b"\n"
                self._is_torn = os.write(self._open(), record) != len(record)  # a full disk takes a part
            except (OSError, RuntimeError) as error:
                self.note = f"digest cache not written: {type(error).__name__}"

    def close(self) -> None:
        """Let go of the journal. Everything is written already."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            path = self._path or default_path()
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
        return self._descriptor

    def _load(self, content: bytes) -> None:
        lines = content.split(b"\n")
        self._is_torn = lines[-1] != b""  # a run was killed while it wrote
        damaged = 0
        for line in lines[:-1]:
            parts = line.split(b" ", 2)
            if len(parts) == 3 and len(parts[0]) == 2 * _CHECK_BYTES:
                self._lines.pop(parts[1], None)  # so that the newest stand last
                self._lines[parts[1]] = line
            else:
                damaged += line != b""
        if damaged:
            self.note = "digest cache: damaged lines ignored"
        if len(content) > MAX_BYTES:
            self._shrink()

    def _shrink(self) -> None:
        """Rewrite the journal with its newest lines."""
        assert self._path is not None
        kept: dict[bytes, bytes] = {}
        size = 0
        for key, line in reversed(self._lines.items()):
            size += len(line)
            if size > MAX_BYTES // 2:
                break
            kept[key] = line
        self._lines = dict(reversed(kept.items()))
        try:
            with replace_file(self._path, synced=False) as unfinished:
                unfinished.write_bytes(b"".join(line + b"\n" for line in self._lines.values()))
            self._is_torn = False
        except FileExistsError:
            return  # what another process appended meanwhile is kept; the next one shrinks it
        except OSError as error:
            self.note = f"digest cache not written: {type(error).__name__}"


def _key(state: os.stat_result) -> str:
    parts = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return ":".join(str(part) for part in parts)


def _line_key(key: str, kind: str) -> bytes:
    return f"{__version__}|{kind}|{key}".encode()


def _check(rest: bytes) -> bytes:
    return hashlib.blake2b(rest, digest_size=_CHECK_BYTES).hexdigest().encode()
