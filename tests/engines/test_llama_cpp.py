"""llama.cpp for real: the server of xllamacpp, started by rip, on SmolLM2."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from rip.replay.engines.http.llama_cpp import LlamaCppEngine

from .conftest import diverged, replayed, rip

COLUMNS = ["request_id", "position", "step", "token_id", "topk_ids", "topk_logprobs", "elapsed_s"]


def rows(trace: Path) -> list[dict[str, object]]:
    """The generated part of a trace, read without rip; and the row that predicts it."""
    return pq.read_table(trace, columns=COLUMNS).to_pylist()


def running_children() -> set[int]:
    """Process ids of this process's children that have not ended."""
    children = psutil.Process().children()
    return {child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture
def lane(gguf: Path) -> tuple[object, ...]:
    """Options of a started llama.cpp; the envelopes name another form of the model."""
    return ("--engine", "llama.cpp", "--model", gguf, "--allow-drift", "--set", "n_ctx=2048")


def test_golden_decode_returns_the_recorded_tokens_with_the_free_runs_logprobs(
    lane: tuple[object, ...], request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    free, forced = tmp_path / "free.parquet", tmp_path / "forced.parquet"
    replayed(request_set(2), *lane, "-o", free)
    replayed(request_set(2), *lane, "--mode", "golden-decode", "--golden", free, "-o", forced)
    told = [(row["token_id"], row["topk_ids"], row["topk_logprobs"]) for row in rows(free)]
    again = [(row["token_id"], row["topk_ids"], row["topk_logprobs"]) for row in rows(forced)]
    assert again == told
    assert sum(row["topk_ids"] is not None for row in rows(free)) >= 90
    _, verdict = diverged(free, forced)
    assert verdict["levels"]["token"]["state"] == "holds"
    assert verdict["first_token"] is None
    # The control: other tokens, forced, are what comes, with other numbers behind them.
    lines = [json.loads(line) for line in request_set(2).read_text("utf-8").splitlines()]
    chosen = [
        [row["token_id"] for row in rows(free) if row["request_id"] == one["request_id"]] for one in lines
    ]
    for one, ids in zip(lines, chosen, strict=True):
        one["expected"] = {"token_ids": ids[len(one["prompt_token_ids"]) :][::-1]}
    backwards = tmp_path / "backwards.jsonl"
    backwards.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    other = tmp_path / "other.parquet"
    replayed(backwards, *lane, "--mode", "golden-decode", "-o", other)
    generated = [row["token_id"] for row in rows(other) if row["step"] is not None]
    assert generated == [token for one in lines for token in one["expected"]["token_ids"]]
    assert [row["topk_logprobs"] for row in rows(other)] != [row["topk_logprobs"] for row in rows(free)]


def test_a_lane_repeats_itself_and_another_one_has_other_logprobs(
    lane: tuple[object, ...], request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    one, again, two = (tmp_path / f"{name}.parquet" for name in ("one", "again", "two"))
    replayed(request_set(2), *lane, "--set", "threads=1", "--set", "threads_batch=1", "-o", one)
    replayed(request_set(2), *lane, "--set", "threads=1", "--set", "threads_batch=1", "-o", again)
    replayed(request_set(2), *lane, "--set", "n_ubatch=16", "--set", "flash_attn=off", "-o", two)
    logprobs = [
        [(row["topk_ids"], row["topk_logprobs"]) for row in rows(trace)] for trace in (one, again, two)
    ]
    assert logprobs[0] == logprobs[1]
    assert logprobs[0] != logprobs[2]
    code, verdict = diverged(one, again)
    assert (code, verdict["levels"]["token"]["state"]) == (0, "holds")


def test_a_trace_says_what_a_client_waited(
    lane: tuple[object, ...], request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    trace = tmp_path / "t.parquet"
    replayed(request_set(1), *lane, "--set", "stream=true", "-o", trace)
    generated = [row["elapsed_s"] for row in rows(trace) if row["step"] is not None]
    assert generated == sorted(generated)  # type: ignore[type-var]
    assert all(row["elapsed_s"] is None for row in rows(trace) if row["step"] is None)
    assert (tmp_path / "t.parquet.server.log").stat().st_size > 0


def test_a_server_that_dies_is_said_and_leaves_nothing_behind(
    lane: tuple[object, ...],
    request_set: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generated = LlamaCppEngine._generated
    tokens = 0

    async def killing(self: LlamaCppEngine, plan: object) -> object:
        nonlocal tokens
        async for event in generated(self, plan):  # type: ignore[arg-type]
            tokens += 1
            if tokens == 10:
                assert self.started is not None
                os.killpg(self.started.pid, signal.SIGKILL)
            yield event

    monkeypatch.setattr(LlamaCppEngine, "_generated", killing)
    before = running_children()
    said = rip("replay", request_set(1), *lane, "--set", "stream=true", "-o", tmp_path / "t.parquet")
    assert said.code == 2
    assert "q0" in said.err
    assert "SIGKILL" in said.err
    assert (tmp_path / "t.parquet.parts").is_dir()
    assert not (tmp_path / "t.parquet").exists()
    kept = rip(
        "query", tmp_path / "t.parquet.parts", "SELECT count(*) AS n FROM tokens WHERE step IS NOT NULL"
    )
    assert int(kept.out.split()[-1]) >= 8
    assert running_children() == before


def test_a_model_that_is_no_gguf_is_refused_before_anything_starts(
    smollm2: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    said = rip(
        "replay", request_set(1), "--engine", "llama.cpp", "--model", smollm2, "-o", tmp_path / "t.parquet"
    )
    assert said.code == 2
    assert "llama.cpp serves GGUF files" in said.err
