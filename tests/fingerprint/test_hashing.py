"""Digests of files: equal to hashlib's, counted, cached by the file's state, read-only."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from rip import __version__
from rip.fingerprint import cache as cache_module
from rip.fingerprint import hashing
from rip.fingerprint.cache import DigestCache
from rip.fingerprint.context import Stopped
from rip.fingerprint.hashing import hash_files
from rip.schemas.errors import BadInput


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files around the size of a block, which is made small."""
    monkeypatch.setattr(hashing, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(hashing, "CACHE_FROM_BYTES", 1)
    paths = []
    for size in (0, 1, 999, 1000, 1001, 12345):
        path = tmp_path / f"{size}.bin"
        path.write_bytes(os.urandom(size))
        paths.append(path)
    return paths


def test_digests_are_those_of_hashlib_and_progress_ends_at_the_total(files: list[Path]) -> None:
    seen: list[tuple[int, int]] = []
    found = hash_files(files, progress=lambda done, total: seen.append((done, total)))
    for path in files:
        assert found[path].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert found[path].size == path.stat().st_size
    total = sum(path.stat().st_size for path in files)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_file_is_read_once_while_its_state_stays(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SETTLE_SECONDS", 0)
    store = tmp_path / "digests.json"
    path = files[-1]
    cache = DigestCache(store)
    first = hash_files([path], cache=cache)[path]
    cache.save()
    again = hash_files([path], cache=DigestCache(store))[path]
    assert (first.cached, again.cached, again.sha256) == (False, True, first.sha256)
    with path.open("r+b") as file:  # same size, and the old mtime is put back
        before = path.stat()
        file.write(b"another")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = hash_files([path], cache=DigestCache(store))[path]
    assert not changed.cached
    assert changed.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_changed_a_moment_ago_is_not_cached(files: list[Path], tmp_path: Path) -> None:
    cache = DigestCache(tmp_path / "digests.json")
    hash_files(files, cache=cache)
    cache.save()
    assert not (tmp_path / "digests.json").exists()


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[]", '{"a": 1}', json.dumps({"tool_version": __version__, "sha256": {"a": "zz"}})],
)
def test_a_corrupt_cache_is_ignored_with_a_note_and_replaced(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(cache_module, "SETTLE_SECONDS", 0)
    store = tmp_path / "digests.json"
    store.write_text(content)
    cache = DigestCache(store)
    assert cache.note is not None
    assert "ignored" in cache.note
    hash_files(files, cache=cache)
    cache.save()
    assert len(json.loads(store.read_text())["sha256"]) == len(files) - 1  # an empty file is not worth it
    assert not list(tmp_path.glob(".digests*"))


def test_a_cache_that_cannot_be_written_is_only_noted(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SETTLE_SECONDS", 0)
    (tmp_path / "file").write_text("in the way")
    cache = DigestCache(tmp_path / "file" / "digests.json")
    assert hash_files(files, cache=cache)
    cache.save()
    assert cache.note is not None


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone could not be read: No such file"):
        hash_files([tmp_path / "gone"])
    with pytest.raises(BadInput, match="could not be read: Is a directory"):
        hash_files([tmp_path])


def test_a_file_that_grows_while_it_is_read_is_refused(files: list[Path]) -> None:
    path = files[-1]

    def grow(done: int, total: int) -> None:
        with path.open("ab") as file:
            file.write(b"x" * 10 if done < total + 100 else b"")

    with pytest.raises(BadInput, match="changed while it was read"):
        hash_files([path], progress=grow)


def test_reading_ends_within_a_block_when_stopped(files: list[Path]) -> None:
    stop = threading.Event()
    blocks: list[int] = []

    def stop_at_once(done: int, total: int) -> None:
        blocks.append(done)
        stop.set()

    with pytest.raises(Stopped):
        hash_files([files[-1]], progress=stop_at_once, stop=stop)
    assert blocks == [1000]


def test_files_are_only_read(files: list[Path]) -> None:
    for path in files:
        path.chmod(0o444)
    before = [(path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in files]
    hash_files(files)
    assert before == [(path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in files]
