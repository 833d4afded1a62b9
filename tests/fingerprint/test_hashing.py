"""Digests of files: equal to hashlib's, counted, kept by the file's state once done, read-only."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fakes.checkpoints import write_safetensors
from rip.fingerprint.model import digest_cache as cache_module
from rip.fingerprint.model import read_and_hash
from rip.fingerprint.model.digest_cache import DigestCache
from rip.fingerprint.model.read_and_hash import Job, Reading, Stopped, read_files
from rip.schemas.errors import BadInput


def hash_files(paths: list[Path], **options: Any) -> dict[Path, Reading]:
    return read_files([Job(path) for path in paths], **options)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files around the size of a block, which is made small."""
    monkeypatch.setattr(read_and_hash, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(read_and_hash, "CACHE_FROM_BYTES", 1)
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
    store = tmp_path / "digests.journal"
    path = files[-1]
    first = hash_files([path], cache=DigestCache(store))[path]
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
    hash_files(files, cache=DigestCache(tmp_path / "digests.journal"))
    assert not (tmp_path / "digests.journal").exists()


@pytest.mark.parametrize("content", [b"not a journal\n", b"[]\n", b"\xff\xfe\n", b'{"a": 1}\n\n'])
def test_damaged_lines_are_ignored_with_a_note(files: list[Path], tmp_path: Path, content: bytes) -> None:
    store = tmp_path / "digests.journal"
    store.write_bytes(content)
    cache = DigestCache(store)
    assert cache.note == "digest cache: damaged lines ignored"
    cache.keep("key", "kind", "found")
    cache.close()
    assert DigestCache(store).recall("key", "kind") == "found"


def test_a_changed_digest_in_the_journal_is_no_digest(tmp_path: Path) -> None:
    store = tmp_path / "digests.journal"
    cache = DigestCache(store)
    cache.keep("key", "kind", "abcd")
    store.write_bytes(store.read_bytes().replace(b"abcd", b"abce"))
    cache = DigestCache(store)
    assert cache.recall("key", "kind") is None
    assert cache.note == "digest cache: damaged lines ignored"


def test_what_a_killed_run_wrote_halfway_harms_no_other_line(tmp_path: Path) -> None:
    store = tmp_path / "digests.journal"
    DigestCache(store).keep("first", "kind", "1")
    store.write_bytes(store.read_bytes() + b"0123456789abcdef half a li")
    cache = DigestCache(store)
    assert cache.note is None
    cache.keep("second", "kind", "2")
    again = DigestCache(store)
    assert (again.recall("first", "kind"), again.recall("second", "kind")) == ("1", "2")


def test_two_processes_write_to_one_journal(tmp_path: Path) -> None:
    store = tmp_path / "digests.journal"
    one, two = DigestCache(store), DigestCache(store)
    one.keep("a", "kind", "1")
    two.keep("b", "kind", "2")
    one.keep("c", "kind", "3")
    found = DigestCache(store)
    assert [found.recall(key, "kind") for key in "abc"] == ["1", "2", "3"]


def test_a_large_journal_keeps_what_is_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_BYTES", 2000)
    store = tmp_path / "digests.journal"
    cache = DigestCache(store)
    for number in range(50):
        cache.keep(str(number), "kind", "x" * 50)
    size = store.stat().st_size
    found = DigestCache(store)
    assert store.stat().st_size <= 1000 < size
    assert (found.recall("49", "kind"), found.recall("0", "kind")) == ("x" * 50, None)
    found.keep("50", "kind", "y")
    assert DigestCache(store).recall("50", "kind") == "y"
    assert [path.name for path in tmp_path.iterdir()] == ["digests.journal"]


def test_a_cache_that_cannot_be_written_is_only_noted(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SETTLE_SECONDS", 0)
    (tmp_path / "file").write_text("in the way")
    cache = DigestCache(tmp_path / "file" / "digests.journal")
    assert hash_files(files, cache=cache)
    assert "not written" in (cache.note or "")


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
from rip.fingerprint.model import digest_cache, read_and_hash, tensor_digests
from rip.fingerprint.model.tensor_digests import safetensors_layout
digest_cache.SETTLE_SECONDS, read_and_hash.CACHE_FROM_BYTES, read_and_hash.MAX_WORKERS = 0, 1, 1
read_and_hash.BLOCK_BYTES, tensor_digests.GROUP_BYTES = 1000, 5000
journal, sha256, after, *names = sys.argv[1:]
done_before = 0

def progress(done, total):
    global done_before
    done_before = done
    if after != "never" and done > int(after):
        os.kill(os.getpid(), signal.SIGKILL)

jobs = [read_and_hash.Job(Path(name), safetensors_layout(Path(name)), sha256 == "sha256") for name in names]
found = read_and_hash.read_files(jobs, progress, digest_cache.DigestCache(Path(journal)))
print(done_before, *(digest.hex() for job in jobs for digest in found[job.path].contents))
"""


@pytest.mark.parametrize("sha256", ["sha256", "tensors only"])
def test_what_a_killed_run_had_finished_is_not_read_again(tmp_path: Path, sha256: str) -> None:
    paths = []
    for number, count in enumerate((12, 8, 4)):  # tensors of 1000 bytes; the largest file is read first
        tensors = {f"{number}.{index}": ("U8", [1000], os.urandom(1000)) for index in range(count)}
        paths.append(write_safetensors(tmp_path / f"{number}.safetensors", tensors))
    first = paths[0].stat().st_size

    def run(journal: str, after: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / journal), sha256, after, *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True)

    killed = run("journal", str(first + 500))
    assert killed.returncode == -signal.SIGKILL
    resumed, whole = run("journal", "never"), run("other journal", "never")
    read_again, *contents_again = resumed.stdout.split()
    read_whole, *contents_whole = whole.stdout.split()
    assert contents_again == contents_whole
    assert len(contents_whole) == 24
    spared = int(read_whole) - int(read_again)
    assert spared == first if sha256 == "sha256" else spared >= 10_000  # groups of five tensors


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone could not be read: No such file"):
        hash_files([tmp_path / "gone"])
    with pytest.raises(BadInput, match="could not be read: a directory, not a file"):
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
