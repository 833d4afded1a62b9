"""What a recording leaves on disk: whole lines in numbered files, also when the disk is full."""

from __future__ import annotations

import gzip
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rip.replay.proxy.call import Call, Upstream
from rip.replay.proxy.store import RecordingFiles, Store, StoreOptions
from rip.schemas.envelope import iter_request_set
from rip.schemas.errors import OutputFailed
from rip.schemas.redact import is_secret


def call(number: int, prompt: Any = "a", name: str | None = None, answer: bytes = b"{}") -> Call:
    made = Call(
        number=number,
        chat=False,
        route="/v1/completions",
        body={"prompt": prompt},
        request_id=name or f"r{number}",
        secrets=(),
        upstream=Upstream("http://there"),
        arrival_ms=1.0,
        in_flight=0,
        limit=10_000_000,
        held_bytes=9,
    )
    made.status = 200
    made.keep(answer)
    made.end()
    return made


def store(place: Path, said: list[str] | None = None, **how: Any) -> Store:
    return Store(
        RecordingFiles.of(place),
        StoreOptions({}, is_secret, **how),
        (said if said is not None else []).append,
    )


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_new_file_is_begun_when_one_is_full(tmp_path: Path) -> None:
    recording = store(tmp_path / "set.jsonl", rotate_bytes=700)
    for number in range(6):
        recording.add(call(number))
    recording.close()
    names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert names == ["set.000001.jsonl", "set.000002.jsonl", "set.jsonl"]
    assert all(path.stat().st_size >= 700 for path in tmp_path.glob("*.jsonl"))
    kept = [one.request_id for name in names for one in iter_request_set(tmp_path / name)]
    assert sorted(kept) == [f"r{number}" for number in range(6)]


def test_a_folder_takes_one_recording_after_another(tmp_path: Path) -> None:
    for _ in range(3):
        recording = store(tmp_path / "folder")
        recording.add(call(1))
        recording.close()
    names = sorted(path.name for path in (tmp_path / "folder").glob("*.jsonl"))
    assert names == ["requests.000001.jsonl", "requests.000002.jsonl", "requests.jsonl"]
    raws = [
        one.context.raw
        for name in names
        for one in iter_request_set(tmp_path / "folder" / name)
        if one.context
    ]
    assert len(set(raws)) == 3
    assert all((tmp_path / "folder" / str(raw)).is_file() for raw in raws)


def test_a_file_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text("mine\n")
    with pytest.raises(OutputFailed, match="exists already"):
        store(tmp_path / "set.jsonl")
    with pytest.raises(OutputFailed, match="not a folder"):
        store(tmp_path / "no" / "set.jsonl")
    assert (tmp_path / "set.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("keep_raw", [True, False], ids=["raw", "no raw"])
def test_a_full_disk_stops_the_recording_once_and_leaves_whole_lines(tmp_path: Path, keep_raw: bool) -> None:
    said: list[str] = []
    recording = store(tmp_path / "set.jsonl", said, keep_raw=keep_raw)
    with files_no_larger_than(20_000):
        for number in range(200):
            recording.add(call(number))
        recording.close()
    assert recording.stopped
    assert len(said) == 1
    assert "recording stopped" in said[0]
    assert "still passed on" in said[0]
    lines = (tmp_path / "set.jsonl").read_bytes().splitlines()
    assert 10 < len(lines) < 200
    assert len(lines) == recording.written.envelopes
    assert all(json.loads(line)["request_id"] for line in lines), "no line is half written"


def test_without_the_limit_nothing_stops(tmp_path: Path) -> None:
    """The negative control."""
    recording = store(tmp_path / "set.jsonl")
    for number in range(200):
        recording.add(call(number))
    recording.close()
    assert not recording.stopped
    assert recording.written.envelopes == 200


def test_ids_are_made_different(tmp_path: Path) -> None:
    recording = store(tmp_path / "set.jsonl")
    for number, name in enumerate(["a", "a", "a~2", "a"]):
        recording.add(call(number, name=name))
    recording.close()
    kept = [one.request_id for one in iter_request_set(tmp_path / "set.jsonl")]
    assert len(set(kept)) == 4
    assert kept[:2] == ["a", "a~2"]


def test_what_no_envelope_can_hold_is_counted(tmp_path: Path) -> None:
    said: list[str] = []
    recording = store(tmp_path / "set.jsonl", said)
    for number, prompt in enumerate([None, "half a character: \ud83e", "fine"]):
        recording.add(call(number, prompt=prompt))
    recording.close()
    assert recording.written.unrecordable == 2
    assert [one.prompt_text for one in iter_request_set(tmp_path / "set.jsonl")] == ["fine"]
    assert len(said) == 1


def test_raw_bytes_are_those_of_the_answer(tmp_path: Path) -> None:
    answer = b'{"choices": []}  \n' + bytes(range(256)) * 50
    recording = store(tmp_path / "set.jsonl")
    recording.add(call(1, answer=answer))
    recording.close()
    (raw,) = (tmp_path / "set.raw").iterdir()
    assert gzip.decompress(raw.read_bytes()) == answer
