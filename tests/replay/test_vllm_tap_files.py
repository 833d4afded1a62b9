"""The tap folder when things go wrong: a killed server, a full disk, broken files, an error in a tap."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.tapping import FACTS, ready, tapped
from fakes.vllm_runner import FirstRunner, new_request, small_model
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.row_summaries.rows import RowSummaries
from rip.replay.tap_trace import trace_from_tap
from rip.replay.vllm_tap.part_file import (
    ROW_FIELDS,
    BrokenPart,
    Distributions,
    Part,
    TappedRequest,
    read_index,
    read_part,
    write_part,
)
from rip.replay.vllm_tap.rank_folder import TapsFailed
from rip.replay.vllm_tap.tap_folder import TapFolder
from rip.replay.vllm_tap.worker import rank_writer
from rip.replay.vllm_tap.worker.recorder import TapSettings
from rip.replay.vllm_tap.worker.start_taps import tap_worker
from rip.schemas.errors import EngineFailed


def serve(folder: Path, runner: FirstRunner | None = None, **settings: Any) -> FirstRunner:
    """A tapped runner that has prefilled the request `a`."""
    runner = runner or FirstRunner(small_model())
    tapped(runner, folder, **settings)
    runner.tokens = {"a": [5, 6, 7, 8]}
    runner.step({"a": 3}, scheduled_new_reqs=[new_request("a")])
    return runner


def small_part() -> Part:
    """Three rows of two requests over two sites, one with a distribution."""
    random = np.random.default_rng(0)
    summaries = RowSummaries.empty(3, 2)
    summaries.row_hash[:] = random.integers(1, 2**63, (3, 2, 2), np.uint64)
    summaries.sketch[:] = random.standard_normal((3, 2, 16))
    rows = np.arange(3 * len(ROW_FIELDS), dtype=np.int32).reshape(3, -1)
    rows[:, 0] = [4, 4, 7]
    following = Distributions(
        np.array([1], np.int32),
        np.array([[9, 8]], np.int32),
        np.array([[1.5, 0.5]], np.float32),
        np.array([[-0.3, -1.3]], np.float32),
        np.array([1.8]),
        np.array([[1, 2]], np.uint64),
    )
    requests = {4: TappedRequest("id-4", "key \N{SNOWMAN}"), 7: TappedRequest("id-7", "id-7")}
    return Part(requests, (4,), rows, summaries, following)


def test_a_part_comes_back_as_it_was(tmp_path: Path) -> None:
    part = small_part()
    path, size = write_part(tmp_path, 3, part)
    assert (path.name, path.stat().st_size) == ("part-00000003.rip", size)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = read_part(path)
    assert again.requests == part.requests
    assert list(again.ended) == [4]
    for name, array in part.arrays().items():
        assert np.array_equal(again.arrays()[name], array), name
    assert read_index(path).counts == {4: 2, 7: 1}
    assert os.listdir(tmp_path) == [path.name], "something unfinished was left"


@given(st.data())
def test_a_part_that_was_cut_or_changed_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path, size = write_part(tmp_path_factory.mktemp("parts"), 0, small_part())
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, size - 1))
    if data.draw(st.booleans()):
        raw = raw[:at]
    else:
        raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    with pytest.raises(BrokenPart):
        read_part(path)


def test_files_are_private_and_nothing_else_in_the_folder_disturbs(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "for it"
    runner = serve(folder)
    (folder / "notes.txt").write_text("hello")
    (folder / "other").mkdir()
    (folder / "other" / "state.json").write_text('{"pid": "me"}')
    rank = next(path for path in folder.iterdir() if "-rank0" in path.name)
    (rank / "part-00000000.rip.swp").write_bytes(b"x")
    (rank / "part-99999999.rip").write_bytes(b"not one of ours")
    runner.step({}, finished_req_ids={"a"})
    rows = ready(folder).rows("a", 10)
    assert rows.positions.tolist() == [0, 1, 2]
    assert rows.findings == ["rank 0: part-99999999.rip could not be read: it does not begin like a part"]
    for path in (folder, rank, tmp_path / "made"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in rank.glob("*.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fakes.tapping import tapped
from fakes.vllm_runner import FirstRunner, new_request, small_model
from rip.replay.vllm_tap.worker import recorder
recorder.PENDING_SECONDS = 0.0
runner = FirstRunner(small_model())
tapped(runner, Path({folder!r}))
runner.tokens = {{"a": list(range(1, 9))}}
runner.step({{"a": 3}}, scheduled_new_reqs=[new_request("a")])
for _ in range(4):
    runner.step({{"a": 1}})
while len(list(Path({folder!r}).glob("*/part-*.rip"))) < 5:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_server_keeps_what_it_had(tmp_path: Path) -> None:
    code = KILLED.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    taps = ready(tmp_path)
    with pytest.raises(EngineFailed, match="its process has died"):
        taps.rows("a", 30)
    rows = taps.rows("a", 0, partial=True)
    assert rows.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert rows.summaries.row_hash.any(-1).all()
    assert rows.findings == ["rank 0 did not see the end of the request"]


def test_an_orderly_end_counts_as_the_end_of_every_request(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    recorder = tapped(runner, tmp_path)
    runner.tokens = {"a": [5, 6, 7]}
    runner.step({"a": 3}, scheduled_new_reqs=[new_request("a")])
    taps = ready(tmp_path)
    recorder.close()  # in-process LLM(...): the script ends before the scheduler tells of finished requests
    rows = taps.rows("a", 10)
    assert (rows.positions.tolist(), rows.findings) == ([0, 1, 2], [])


def same_answer(runner: FirstRunner) -> None:
    """The request went on as if nothing were there."""
    plain = FirstRunner(small_model())
    plain.tokens = {"a": [5, 6, 7, 8]}
    plain.step({"a": 3})
    plain.step({"a": 1})
    runner.step({"a": 1})
    assert torch.equal(runner.hidden, plain.hidden)


def test_a_full_disk_ends_the_observation_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rank_writer, "write_part", no_space)
    runner = serve(tmp_path)
    taps = ready(tmp_path)
    same_answer(runner)
    runner.step({}, finished_req_ids={"a"})
    with pytest.raises(EngineFailed, match="No space left on device"):
        taps.rows("a", 30)


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    runner = serve(tmp_path, most_bytes=4000)
    taps = ready(tmp_path)
    same_answer(runner)
    runner.step({}, finished_req_ids={"a"})
    with pytest.raises(EngineFailed, match=r"reached its bound of .* \(RIP_TAP_MAX_MB\)"):
        taps.rows("a", 30)
    assert not list(tmp_path.glob("*/part-*"))


def test_parts_that_were_removed_make_room_again(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    tapped(runner, tmp_path, most_bytes=20000)
    taps = ready(tmp_path)
    for name in "abcdef":
        runner.tokens[name] = [5, 6, 7]
        runner.step({name: 3}, scheduled_new_reqs=[new_request(name)])
        runner.step({}, finished_req_ids={name})
        assert taps.rows(name, 10).positions.tolist() == [0, 1, 2]
        for path in tmp_path.glob("*/part-*"):
            path.unlink()


def test_an_error_in_a_tap_ends_the_observation_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = serve(tmp_path)
    taps = ready(tmp_path)

    def broken(*_: object) -> None:
        raise RuntimeError("the kernel is gone")

    monkeypatch.setattr("rip.replay.vllm_tap.worker.row_block.RepeatedSteps.see", broken)
    runner.step({}, finished_req_ids=set())
    runner.tokens["b"] = [1, 2]
    runner.step({"b": 2}, scheduled_new_reqs=[new_request("b")])
    same_answer(runner)
    runner.step({}, finished_req_ids={"a", "b"})
    with pytest.raises(EngineFailed, match="RuntimeError: the kernel is gone"):
        taps.rows("b", 30)
    assert sum("the kernel is gone" in record.message for record in caplog.records) == 1


def test_a_model_that_cannot_make_a_dummy_pass_is_served_and_the_reason_is_said(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())

    def no_dummy(_tokens: int) -> None:
        raise NotImplementedError("only with images")

    runner._dummy_run = no_dummy  # type: ignore[method-assign]
    tapped(runner, tmp_path)
    with pytest.raises(EngineFailed, match="NotImplementedError: only with images"):
        TapFolder(tmp_path).wait_ready(10)
    runner.tokens = {"a": [5, 6, 7, 8]}
    runner.step({"a": 3}, scheduled_new_reqs=[new_request("a")])
    same_answer(runner)


def test_an_unknown_runner_is_named(tmp_path: Path) -> None:
    class OtherRunner(FirstRunner):
        _model_forward = property()  # type: ignore[assignment]

    tapped(OtherRunner(small_model()), tmp_path)
    with pytest.raises(EngineFailed, match="OtherRunner is not a model runner that rip knows"):
        TapFolder(tmp_path).wait_ready(10)


def test_the_newest_engine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(tmp_path)
    first = next(tmp_path.glob("*-rank0"))
    first.rename(tmp_path / "before-1-rank0")
    monkeypatch.setitem(FACTS, "instance", "engine-2")
    runner = serve(tmp_path)
    runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    assert taps.rows("a", 10).positions.tolist() == [0, 1, 2]
    assert taps.keys() == ["a"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing", "there is no such folder"),
        ("an empty folder", "no rank has written there"),
        ("a rank that starts", "rank 0 is starting"),
    ],
)
def test_what_is_missing_is_said(what: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "tap"
    if what != "nothing":
        folder.mkdir()
    if what == "a rank that starts":
        serve(folder)
        next(folder.glob("*/sites.json")).unlink()
    with pytest.raises(EngineFailed, match=said):
        TapFolder(folder).wait_ready(0)


def test_a_request_that_nobody_saw_and_one_that_goes_on(tmp_path: Path) -> None:
    serve(tmp_path)
    taps = ready(tmp_path)
    with pytest.raises(EngineFailed, match="no rank saw it; 0 other requests"):
        taps.rows("other", 0)
    with pytest.raises(EngineFailed, match="not observed to its end within 0 s"):
        taps.rows("a", 0)


def test_the_state_is_small_and_says_why(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    recorder = tapped(runner, tmp_path)
    recorder.fail("x" * 20000)
    state = next(tmp_path.glob("*/state.json"))
    assert state.stat().st_size == 8192
    assert json.loads(state.read_text())["why"].startswith("xxx")


class FailingWorker:
    """A worker of which rip cannot read what it needs: its configuration has no parallel state here."""

    rank = 1
    vllm_config = SimpleNamespace(instance_id="new", parallel_config=SimpleNamespace(world_size=2))

    def compile_or_warm_up_model(self) -> str:
        return "warm"


def test_taps_that_failed_say_why_beside_the_folder_of_an_older_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tapped(FirstRunner(small_model()), tmp_path)
    older.close()
    TapFolder(tmp_path).wait_ready(0)  # the control: the older one alone can be read
    monkeypatch.setenv("RIP_TAP", str(tmp_path))
    worker = FailingWorker()
    tap_worker(worker)
    assert worker.compile_or_warm_up_model() == "warm"  # it serves all the same
    for refuse in (TapFolder.check_alive, lambda taps: taps.wait_ready(0)):
        with pytest.raises(TapsFailed, match="taps ended: rank 1: ModuleNotFoundError: No module") as caught:
            refuse(TapFolder(tmp_path))
        [failure] = caught.value.ranks
        assert (failure.rank, failure.kind) == ("1", "ModuleNotFoundError")
        assert failure.message == "No module named 'vllm'"
    with pytest.raises(TapsFailed, match="No module named 'vllm'"):
        trace_from_tap(tmp_path, tmp_path / "t.parquet", "tap", None)


def test_an_error_while_serving_is_data_in_the_state_and_in_what_a_reader_gets(tmp_path: Path) -> None:
    recorder = tapped(FirstRunner(small_model()), tmp_path)
    recorder.fail_with_error(ValueError("y" * 20000))
    state = next(tmp_path.glob("*/state.json"))
    assert state.stat().st_size == 8192
    assert json.loads(state.read_text())["error"] == {"kind": "ValueError", "message": "y" * 1000}
    with pytest.raises(TapsFailed) as caught:
        TapFolder(tmp_path).check_alive()
    assert caught.value.ranks[0].kind == "ValueError"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RIP_TAP_SITES", "(", "no regular expression"),
        ("RIP_TAP_MAX_MB", "much", "at least 1"),
        ("RIP_TAP_MAX_MB", "0", "at least 1"),
        ("RIP_TAP_TOPK", "-1", "at least 0"),
    ],
)
def test_variables_that_make_no_sense(name: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TapSettings.of({"RIP_TAP": "/tap", name: value})


def test_variables() -> None:
    settings = TapSettings.of(
        {"RIP_TAP": "/tap", "RIP_TAP_SITES": "mlp", "RIP_TAP_MAX_MB": "7", "RIP_TAP_TOPK": "0"}
    )
    assert (settings.folder, settings.most_bytes, settings.topk) == (Path("/tap"), 7 << 20, 0)
    assert settings.sites is not None
    assert not settings.only_keyed
    assert TapSettings.of({"RIP_TAP": "/tap", "RIP_TAP_ONLY_ASKED": "1"}).only_keyed
