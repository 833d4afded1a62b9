"""A seeded slice of the fuzz run, and the faults that it must find; `make fuzz` runs the whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest
from fuzz.kills import Lost, _check_recording, _check_trace
from fuzz.kinds import KINDS, Kind, check_markup, inputs
from fuzz.mutate import MUTATORS
from fuzz.workers import Feeding, Tallies, Task, feed, rows, run
from rip.schemas.errors import RipError

PER_SHARE = 8
"""Inputs a unit of a kind's share."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.share >= 0.3], ids=lambda kind: kind.name)
def test_whatever_a_parser_reads_is_accepted_or_refused_in_words(kind: Kind, tmp_path: Path) -> None:
    task = Task(kind, 0, max(2, round(PER_SHARE * kind.share)), 1)
    tallies = Tallies(1)
    feed(0, Feeding([task], tallies, 0, tmp_path))
    [row] = rows([task], tallies)
    assert row.inputs == task.stop
    assert row.findings == 0, [path.read_text() for path in tmp_path.glob("*.txt")]


def test_a_number_alone_determines_an_input(tmp_path: Path) -> None:
    lanes = next(kind for kind in KINDS if kind.name == "lane file")
    whole = dict(inputs(lanes, 1, range(20), tmp_path))
    assert dict(inputs(lanes, 1, range(13, 14), tmp_path)) == {13: whole[13]}
    assert dict(inputs(lanes, 2, range(20), tmp_path)) != whole


def test_every_mutation_takes_any_bytes() -> None:
    random = Random(0)
    for change in MUTATORS:
        for content in (b"", b"\n", b"\xff\x00", b'{"a": [1, {"b": null}]}'):
            change(random, content, [content, b"x"])


def _raise(content: bytes, folder: Path) -> None:
    raise KeyError("a")


def _recurse(content: bytes, folder: Path) -> None:
    _recurse(content, folder)


def _refuse(content: bytes, folder: Path) -> None:
    raise RipError("no", "")


def _die(content: bytes, folder: Path) -> None:
    if content == b"3":
        os.kill(os.getpid(), signal.SIGKILL)


def _script(content: bytes, folder: Path) -> None:
    check_markup("<p>a<script>alert(1)</script>")


def numbered(read: object) -> Kind:
    """A kind whose inputs are the numbers 0, 1, …"""
    count = iter(range(1000))
    return Kind("x", 1, lambda _: [b""], read, lambda random, seeds: b"%d" % next(count))  # type: ignore[arg-type]


@pytest.mark.parametrize(("read", "findings"), [(_raise, 5), (_recurse, 5), (_script, 5), (_refuse, 0)])
def test_what_is_no_refusal_is_kept_with_its_input(read: object, findings: int, tmp_path: Path) -> None:
    task, tallies = Task(numbered(read), 0, 5, 1), Tallies(1)
    feed(0, Feeding([task], tallies, 0, tmp_path))
    [row] = rows([task], tallies)
    assert (row.findings, row.refused) == (findings, 5 - findings)
    assert len(list(tmp_path.glob("*.input"))) == min(findings, 3), "a few of one place"


def test_a_worker_that_dies_is_a_finding_and_the_rest_is_fed(tmp_path: Path) -> None:
    [row] = run([Task(numbered(_die), 0, 6, 1)], workers=1, seed=0, found=tmp_path)
    assert (row.inputs, row.findings, row.accepted) == (6, 1, 5)
    assert "exit code -9" in next(tmp_path.glob("*.txt")).read_text()


def test_what_a_kill_must_not_leave_is_found(tmp_path: Path) -> None:
    with pytest.raises(Lost, match="no trace"):
        _check_trace(tmp_path, True)
    (tmp_path / "requests.jsonl").write_bytes(b'{"request_id": "a", "prompt_token_ids": [1]}\n{"request')
    with pytest.raises(Lost, match="middle of a line"):
        _check_recording(tmp_path, [])
    (tmp_path / "requests.jsonl").write_bytes(b'{"request_id": "a", "prompt_token_ids": [1]}\n')
    with pytest.raises(Lost, match="3 were answered, 1 are kept"):
        _check_recording(tmp_path, ["a", "b", "c"])
