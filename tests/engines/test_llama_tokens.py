"""llama.cpp for real: tokens that end an answer or end inside a character, and the batch-invariance check."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from .conftest import replayed, rip

END, SPACE, FIRST_HALF, SECOND_HALF = 2, 216, 162, 116
"""Of SmolLM2: the end of a turn, and two bytes that make one Hebrew letter together."""


@pytest.fixture
def replay(gguf: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Replays one envelope and gives the rows of its generated tokens, with what predicted each."""
    lane = ("--engine", "llama.cpp", "--model", gguf, "--set", "n_ctx=512", "--set", "threads=1")

    def run(raw: dict[str, Any], *words: object) -> list[dict[str, Any]]:
        request, out = tmp_path / "r.json", tmp_path / "t.parquet"
        request.write_text(json.dumps({"request_id": "r", "prompt_token_ids": [1, 9690, 198], **raw}))
        replayed(request, *lane, *words, "-o", out)
        found = pq.read_table(out).to_pylist()
        return [
            {"token": row["token_id"], "logprob": before["next_logprob"], "ids": before["topk_ids"]}
            for before, row in pairwise(found)
            if row["step"] is not None
        ]

    return run


def test_end_tokens_are_forced_like_any_other(replay: Callable[..., list[dict[str, Any]]]) -> None:
    golden = [SPACE, END, 0, SPACE]
    rows = replay({"expected": {"token_ids": golden}}, "--mode", "golden-decode")
    assert [row["token"] for row in rows] == golden
    assert all(row["logprob"] < 0 for row in rows)


def test_tokens_that_end_inside_a_character_are_never_lost_in_silence(
    replay: Callable[..., list[dict[str, Any]]], gguf: Path, tmp_path: Path
) -> None:
    """The server's stream leaves them out: that is an error; asked for no stream, it tells them."""
    sampling = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    # A bias on both halves makes the model write them and nothing else.
    sampling["logit_bias"] = {str(FIRST_HALF): 90.0, str(SECOND_HALF): 90.0}
    rows = replay({"sampling": sampling})
    assert len(rows) == 6
    assert {row["token"] for row in rows} <= {FIRST_HALF, SECOND_HALF}
    assert any(row["token"] == FIRST_HALF and row["ids"] is None for row in rows)
    lane = ("--engine", "llama.cpp", "--model", gguf, "--set", "n_ctx=512", "--set", "threads=1")
    said = rip(
        "replay", tmp_path / "r.json", *lane, "--set", "stream=true", "-o", tmp_path / "stream.parquet"
    )
    assert said.code == 2
    assert "the server's stream left out" in said.err
    assert "--set stream=false" in said.err


def test_one_by_one_twice_it_repeats_itself(gguf: Path, tmp_path: Path) -> None:
    said = rip(
        *("check", "batch-invariance", "--engine", "llama.cpp", "--model", gguf, "--set", "n_ctx=1024"),
        *("--set", "threads=1", "--sequences", "3", "--tokens", "4", "--max-length", "40", "--batch", "1"),
        *("-o", tmp_path / "check", "--json"),
    )
    assert said.code == 0, said.err
    lines = said.json["lines"]
    assert [line["state"] for line in lines] == ["equal"] * 4
    assert lines[1]["compared"] + lines[1]["not_returned"] == 12
