"""`rip check batch-invariance` as a user meets it: four lines, a verdict, the traces, and the controls."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.batch_kernels import sum_by_batch
from fakes.command_line import Done, Rip
from rip.schemas.check import Check
from rip.schemas.envelope import load_requests
from rip.schemas.trace import HEADER_KEY, TraceHeader

PACKAGES = Path(__file__).parent.parent / "fakes" / "packages"
PLAIN = "fakes.offline_engines:PlainEngine"
DRIFTING = "fakes.offline_engines:DriftingEngine"
SMALL = ("--sequences", "5", "--tokens", "4", "--max-length", "40")


@pytest.fixture
def check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model: Path
) -> Callable[..., Done]:
    """Runs `rip check batch-invariance --model MODEL …`, five short sequences unless told otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    rip = Rip(monkeypatch, capsys)

    def run(*arguments: str | Path, engine: str | None = PLAIN, model: Path = tiny_model) -> Done:
        chosen = () if engine is None else ("--engine", engine)
        return rip("check", "batch-invariance", "--model", model, *chosen, *SMALL, *arguments)

    return run


def result(folder: str = "batch-invariance") -> Check:
    return Check.from_json((Path(folder) / "check.json").read_bytes(), folder)


def test_an_engine_that_keeps_its_promise_passes_in_four_lines(check: Callable[..., Done]) -> None:
    done = check()
    assert done.code == 0, done.err
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[0].startswith("5 random sequences of ")
    assert [line[:19].rstrip() for line in lines[1:5]] == [
        "token ids",
        "logprobs",
        "top token ids",
        "top-token logprobs",
    ]
    assert all("equal in 20 steps" in line for line in lines[1:5])
    assert lines[5] == (
        "batch invariance holds here: token ids, logprobs, top token ids and top-token logprobs of "
        "5 sequences of 4 forced tokens are exactly equal, one by one and as one batch of 5"
    )
    names = {path.name for path in Path("batch-invariance").iterdir()}
    assert names == {"set.jsonl", "alone.parquet", "batched.parquet", "check.json"}
    for name, size in (("alone", 1), ("batched", 5)):
        trace = Path("batch-invariance") / f"{name}.parquet"
        header = TraceHeader.from_json(pq.read_metadata(trace).metadata[HEADER_KEY], name)
        assert header.lane.name == name
        assert header.lane.settings["batch_size"].resolved == size


def test_an_engine_that_does_not_is_found_out_and_the_traces_go_on(
    check: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = check("-o", "d", engine=DRIFTING)
    assert done.code == 1
    assert "batch invariance does not hold: logprobs" in done.err
    assert "to find the first difference: rip diverge d/alone.parquet d/batched.parquet" in done.err
    assert "--batch 1" in done.err
    tokens, logprobs, _, top_logprobs = result("d").lines
    assert tokens.state == "equal", "they are forced"
    assert logprobs.state == top_logprobs.state == "differs"
    assert logprobs.first is not None
    # The first sequence of a batch is computed as alone; the drift begins with the second.
    assert logprobs.first.request_id == "sequence-1"
    assert 0 < logprobs.differing <= 16
    assert logprobs.largest is not None
    assert 0 < logprobs.largest <= 1e-2
    assert top_logprobs.first is not None
    assert top_logprobs.first.rank is not None
    diverged = Rip(monkeypatch, capsys)("diverge", "d/alone.parquet", "d/batched.parquet")
    assert diverged.code == 0, "forced tokens are equal"
    assert Path("alone-vs-batched").is_dir()


def test_one_by_one_twice_is_the_control(check: Callable[..., Done]) -> None:
    done = check("--batch", "1", engine=DRIFTING)
    assert done.code == 0, done.err
    assert "the engine repeats itself" in done.err
    assert "batch invariance" not in done.err


def test_batches_may_be_smaller_than_the_set(check: Callable[..., Done]) -> None:
    done = check("--batch", "2")
    assert done.code == 0
    assert "one by one and in batches of 2" in done.err
    assert result().batch == 2


def test_json_is_one_document_with_the_claim(check: Callable[..., Done]) -> None:
    done = check("--json", "--seed", "3")
    told: dict[str, Any] = json.loads(done.out)
    assert told["schema"] == "rip.check/2"
    assert told["holds"] is True
    assert told["together"] == "as one batch"
    assert (told["claim"]["level"], told["claim"]["evidence"]) == ("bitwise", "run")
    assert told["claim"]["varied"] == {"batch": [1, 5]}
    assert told["claim"]["held"]["seed"] == 3
    assert Check.from_object(told, "told") == result()


def test_the_seed_decides_the_requests(check: Callable[..., Done]) -> None:
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert check("-o", folder, "--seed", seed).code == 0
    one, same, other = (load_requests(Path(folder) / "set.jsonl") for folder in "abc")
    assert one == same
    assert one != other
    lengths = [len(request.prompt_token_ids or ()) for request in one]
    assert len(set(lengths)) == len(lengths) == 5
    assert all(16 <= length <= 40 for length in lengths)
    expected = [request.expected for request in one]
    assert all(answer is not None and len(answer.token_ids or ()) == 4 for answer in expected)


def test_an_engine_that_forces_nothing_runs_greedily_and_that_is_said(check: Callable[..., Done]) -> None:
    done = check(engine="fakes.offline_engines:ScheduledEngine")
    assert done.code == 0, done.err
    assert "greedy, no tokens forced" in done.err
    assert "sent 5 together (the engine's scheduler chose the batches)" in done.err
    assert result().together == "sent together"
    assert result().mode == "free"


def test_sampled_tokens_must_be_equal_and_nothing_else(check: Callable[..., Done]) -> None:
    done = check("--sampled", "-o", "s")
    assert done.code == 0, done.err
    assert "drawn at temperature 1" in done.err
    drifting = check("--sampled", "-o", "d", engine=DRIFTING)
    assert drifting.code == 0, "so small a drift moves no draw here"
    assert "(not required)" in drifting.err
    lines = result("d").lines
    assert [line.required for line in lines] == [True, False, False, False]
    assert lines[1].state == "differs"
    seeds = {request.sampling.seed for request in load_requests(Path("s/set.jsonl"))}
    assert len(seeds) == 5, "each sequence has its own"


def test_chosen_tokens_that_part_end_the_comparison_of_their_sequence(check: Callable[..., Done]) -> None:
    done = check("--mode", "free", "--tokens", "6", engine="fakes.offline_engines:LurchingEngine")
    assert done.code == 1
    assert "does not hold: token ids, top token ids and top-token logprobs of" in done.err
    tokens, logprobs, top_ids, top_logprobs = result().lines
    assert tokens.first is not None
    assert (tokens.first.request_id, tokens.first.step) == ("sequence-1", 0)
    assert isinstance(tokens.first.alone, int)
    # Sequence 0 is whole; in the four others only the distribution of the first step has the same prefix.
    assert (tokens.compared, logprobs.compared) == (30, 6)
    assert (top_ids.compared, top_logprobs.compared) == (10, 10)
    assert not any(line.not_returned for line in result().lines)


def test_what_an_engine_does_not_tell_is_no_pass(check: Callable[..., Done]) -> None:
    done = check(engine="fakes.offline_engines:TokensOnlyEngine")
    assert done.code == 1
    assert done.err.count("not returned by this engine") == 3
    assert "not shown: the engine does not return logprobs" in done.err
    assert check("--sampled", "-o", "s", engine="fakes.offline_engines:TokensOnlyEngine").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sampled", "--mode", "golden-decode"), "forced tokens are not sampled"),
        (("--mode", "fast"), "no such choice"),
        (("--mode", "golden-prefill"), "no such choice"),
        (("--set", "batch_size=4"), "the check chooses the batches"),
        (("--tokens", "600"), "do not fit the context of 512"),
        (("--min-length", "50"), "do not fit the context"),
        (
            ("--engine", "fakes.offline_engines:ScheduledEngine", "--mode", "golden-decode"),
            "does not support mode",
        ),
        (("--engine", "fakes.offline_engines:ScheduledEngine", "--sampled"), "does not support seeds"),
        (("--engine", "fakes.offline_engines:FailingToGenerate"), "IndexError"),
        (("--engine", "no_such"), "unknown engine"),
    ],
)
def test_what_cannot_run_ends_with_a_reason(
    check: Callable[..., Done], arguments: tuple[str, ...], said: str
) -> None:
    done = check(*arguments)
    assert done.code == 2
    assert said in done.err
    assert "fix: " in done.err
    assert check().code == 0, "and leaves nothing behind that is in the way"


def test_neighbours_of_a_lane_file_have_no_place_in_the_check(check: Callable[..., Done]) -> None:
    Path("busy.toml").write_text("neighbours = 3\n")
    done = check("--lane", "busy.toml")
    assert done.code == 2
    assert "busy.toml: neighbours: the check chooses the batches" in done.err


def test_a_folder_that_is_there_is_kept_unless_forced(check: Callable[..., Done]) -> None:
    assert check().code == 0
    before = Path("batch-invariance/check.json").read_text()
    refused = check("--seed", "1")
    assert refused.code == 2
    assert "exists already" in refused.err
    assert Path("batch-invariance/check.json").read_text() == before
    assert check("--seed", "1", "--force").code == 0
    assert result().claim.held is not None
    assert result().claim.held["seed"] == 1
    assert check("--force", "--engine", "fakes.offline_engines:FailingToGenerate").code == 2
    assert "exists already" in check().err, "the earlier check is kept"
    Path("file").touch()
    assert "is not a folder" in check("-o", "file", "--force").err


def test_deepinfers_switch_decides(check: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its published test on the stand-in: it passes with batch invariance, and fails without."""
    monkeypatch.syspath_prepend(PACKAGES)
    for arguments, code in (((), 0), (("--set", "batch_invariant=0"), 1)):
        monkeypatch.delitem(sys.modules, "deepinfer", raising=False)
        for name in ("DEEPINFER_BATCH_INVARIANT", "DEEPINFER_ENABLE_MTP_VARLEN"):
            monkeypatch.setenv(name, "")
        done = check(*arguments, "--force", engine="deepinfer")
        assert done.code == code, done.err
    monkeypatch.delitem(sys.modules, "deepinfer")


def test_the_hf_engine_repeats_itself(check: Callable[..., Done]) -> None:
    done = check("--batch", "1", "--set", "threads=1", engine=None)
    assert done.code == 0, done.err
    assert all(line.compared == 20 for line in result().lines)


@pytest.mark.model
def test_real_bf16_drifts_in_a_batch_and_only_there(
    check: Callable[..., Done], smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control on a real model: sums in a different order in a batch must fail the check."""
    sum_by_batch(monkeypatch)
    real = ("--sequences", "3", "--tokens", "2", "--set", "dtype=bfloat16", "--set", "threads=1")
    drifting = check(*real, "-o", "d", engine=None, model=smollm2)
    assert drifting.code == 1, drifting.err
    assert "as one batch of 3" in drifting.err
    logprobs = result("d").lines[1]
    assert logprobs.state == "differs"
    steady = check(*real, "--batch", "1", "-o", "s", engine=None, model=smollm2)
    assert steady.code == 0, steady.err
