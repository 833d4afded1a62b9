"""vLLM for real: SmolLM2 in bfloat16 on the CPU engine, called over HTTP and observed from inside."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.tee import Exchange, tee

from .conftest import Server, diverged, replayed, rip

GEMMS = (
    "lm_head",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
)


@dataclass(frozen=True)
class Heard:
    """One answer as a plain script reads it from the wire."""

    tokens: list[int]
    logprobs: list[dict[str, float]]


def heard(exchanges: list[Exchange]) -> dict[tuple[int, ...], Heard]:
    """Answers by prompt, of the questions that were recorded requests."""
    found: dict[tuple[int, ...], Heard] = {}
    for exchange in exchanges:
        if exchange.path != "/v1/completions" or not exchange.asked.get("vllm_xargs", {}).get("rip_tap"):
            continue
        tokens: list[int] = []
        logprobs: list[dict[str, float]] = []
        for event in exchange.events():
            for choice in event["choices"]:
                tokens += choice["token_ids"]
                logprobs += (choice["logprobs"] or {}).get("top_logprobs", [])
        found.setdefault(tuple(exchange.asked["prompt"]), Heard(tokens, logprobs))
    return found


def first_difference(a: list[int], b: list[int]) -> int | None:
    """By hand, without rip."""
    for step, pair in enumerate(zip(a, b, strict=False)):
        if pair[0] != pair[1]:
            return step
    return None if len(a) == len(b) else min(len(a), len(b))


def largest_difference(a: Heard, b: Heard, steps: int) -> float:
    """Of the log-probabilities that both list, over the steps whose prefix is equal."""
    return max(
        abs(left[token] - right[token])
        for left, right in zip(a.logprobs[:steps], b.logprobs[:steps], strict=True)
        for token in left.keys() & right.keys()
    )


@pytest.fixture(scope="module")
def traces(
    vllm: Server, smollm2: Path, request_set: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, dict[tuple[int, ...], Heard]]]:
    """Eight chat requests alone, alone again, and together; and what passed over the wire meanwhile."""
    folder = tmp_path_factory.mktemp("vllm-traces")
    wire = {}
    for name, size in (("alone", 1), ("again", 1), ("together", 8)):
        with tee(vllm.url) as between:
            lane = (
                "--url",
                between.url,
                "--tap",
                vllm.tap,
                "--model",
                smollm2,
                "--set",
                f"batch_size={size}",
            )
            replayed(request_set(8), "--engine", "vllm", *lane, "-o", folder / f"{name}.parquet")
        wire[name] = heard(between.exchanges)
    return folder, wire


def test_alone_and_alone_are_equal_bit_for_bit(traces: tuple[Path, Any]) -> None:
    folder, _ = traces
    code, verdict = diverged(folder / "alone.parquet", folder / "again.parquet", "--require", "bitwise")
    assert code == 0
    assert verdict["level"] == "bitwise"
    assert verdict["compared"]["sites"] > 400
    assert verdict["compared"]["rows_differing"] == 0
    assert verdict["max_abs_logit_diff"] == 0


def test_together_they_part_where_a_plain_script_sees_it(traces: tuple[Path, Any]) -> None:
    folder, wire = traces
    code, _ = diverged(folder / "alone.parquet", folder / "together.parquet")
    assert [len(wire[name]) for name in ("alone", "together")] == [8, 8]
    parted = {
        prompt: first_difference(answer.tokens, wire["together"][prompt].tokens)
        for prompt, answer in wire["alone"].items()
    }
    # Which tokens part, and whether any does, depends on the CPU; rip and the script must agree on each.
    assert code == (1 if any(step is not None for step in parted.values()) else 0)
    result = folder / "alone-together"
    prompts = prompts_of(folder / "alone.parquet")
    found = {
        row["request_id"]: row["step"]
        for row in json.loads(
            rip(
                "query",
                result,
                "SELECT request_id, min(step) AS step FROM tokens WHERE token_a IS DISTINCT FROM token_b"
                " AND step IS NOT NULL GROUP BY request_id",
                "--format",
                "json",
            ).out
        )["rows"]
    }
    assert {prompts[name]: step for name, step in found.items()} == {
        prompt: step for prompt, step in parted.items() if step is not None
    }
    for name, prompt in prompts.items():
        a, b = wire["alone"][prompt], wire["together"][prompt]
        step = parted[prompt]
        comparable = len(a.logprobs) if step is None else step + 1
        told = logprob_difference(folder, name)
        assert told == pytest.approx(largest_difference(a, b, comparable), abs=1e-6)


def prompts_of(trace: Path) -> dict[str, tuple[int, ...]]:
    """The prompt of each request."""
    header = json.loads(pq.read_metadata(trace).metadata[b"rip.trace"])
    return {item["request_id"]: tuple(item["envelope"]["prompt_token_ids"]) for item in header["requests"]}


def tokens_of(trace: Path, request: str) -> list[int]:
    """The tokens of a request, by position."""
    rows = pq.read_table(trace, columns=["request_id", "position", "token_id"]).to_pylist()
    return [row["token_id"] for row in rows if row["request_id"] == request]


def logprob_difference(folder: Path, request: str) -> float:
    """The largest log-probability difference that rip's tables give, over rows whose prefix is equal."""
    sides = []
    for name in ("alone", "together"):
        columns = ["request_id", "position", "token_id", "topk_ids", "topk_logprobs"]
        rows = pq.read_table(folder / f"{name}.parquet", columns=columns).to_pylist()
        sides.append({row["position"]: row for row in rows if row["request_id"] == request})
    largest = 0.0
    for position in sorted(sides[0].keys() & sides[1].keys()):
        a, b = sides[0][position], sides[1][position]
        if a["token_id"] != b["token_id"]:
            break
        if a["topk_ids"] is None or b["topk_ids"] is None:
            continue
        left = dict(zip(a["topk_ids"], a["topk_logprobs"], strict=True))
        right = dict(zip(b["topk_ids"], b["topk_logprobs"], strict=True))
        largest = max([largest, *(abs(left[token] - right[token]) for token in left.keys() & right.keys())])
    return largest


def test_an_origin_inside_vllm_is_a_named_gemm_before_the_divergent_token(traces: tuple[Path, Any]) -> None:
    folder, _ = traces
    _, verdict = diverged(folder / "alone.parquet", folder / "together.parquet")
    token, site = verdict["first_token"], verdict["first_site"]
    if site is None:
        assert verdict["level"] == "bitwise"
        pytest.skip("on this CPU eight requests together have the same bits as alone")
    if token is not None:
        assert site["request_id"] == token["request_id"]
        assert site["position"] < token["position"]
    assert site["is_origin"], site
    assert site["site"].rsplit(".", 1)[-1] in GEMMS, site


def test_the_observer_check_was_made_and_held(traces: tuple[Path, Any]) -> None:
    folder, _ = traces
    for name in ("alone", "together"):
        header = json.loads(pq.read_metadata(folder / f"{name}.parquet").metadata[b"rip.trace"])
        assert header["observer"]["state"] == "equal", header["observer"]


def test_golden_decode_repeats_the_free_run_bit_for_bit(
    traces: tuple[Path, Any], vllm: Server, smollm2: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    folder, _ = traces
    forced = tmp_path / "forced.parquet"
    lane = ("--engine", "vllm", "--url", vllm.url, "--tap", vllm.tap, "--model", smollm2)
    golden = ("--mode", "golden-decode", "--golden", folder / "together.parquet")
    replayed(request_set(2), *lane, *golden, "-o", forced)
    columns = ["request_id", "position", "token_id", "topk_ids", "topk_logprobs", "logits_hash"]
    recorded = {
        (row["request_id"], row["position"]): row
        for row in pq.read_table(folder / "together.parquet", columns=columns).to_pylist()
    }
    rows = pq.read_table(forced, columns=columns).to_pylist()
    for row in rows:
        assert row["token_id"] == recorded[row["request_id"], row["position"]]["token_id"]
    # Forced by its own tokens, a free run's numbers come again.
    own = tmp_path / "own.parquet"
    golden = ("--mode", "golden-decode", "--golden", folder / "alone.parquet")
    replayed(request_set(2), *lane, *golden, "-o", own)
    code, verdict = diverged(folder / "alone.parquet", own, "--require", "bitwise")
    assert (code, verdict["max_abs_logit_diff"]) == (0, 0)
    # The control: forced by the other run's tokens, they diverge exactly where that run chose differently.
    chosen = [
        {name: tokens_of(folder / f"{trace}.parquet", name) for name in {row["request_id"] for row in rows}}
        for trace in ("alone", "together")
    ]
    differing = diverged(own, forced)[1]
    expected = sum(chosen[0][name] != chosen[1][name] for name in chosen[0])
    assert differing["compared"]["sequences_diverging"] == expected


def test_golden_prefill_scores_the_recorded_tokens(
    traces: tuple[Path, Any], vllm: Server, smollm2: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    folder, _ = traces
    scored = tmp_path / "scored.parquet"
    lane = ("--engine", "vllm", "--url", vllm.url, "--model", smollm2, "--capture", "tokens")
    golden = ("--mode", "golden-prefill", "--golden", folder / "alone.parquet")
    replayed(request_set(2), *lane, *golden, "-o", scored)
    rows = pq.read_table(scored, columns=["position", "request_id", "topk_ids"]).to_pylist()
    without = [row for row in rows if row["topk_ids"] is None]
    assert len(without) == 2  # every position is scored but the last token of each, which is not fed
    _, verdict = diverged(folder / "alone.parquet", scored)
    assert verdict["first_token"] is None
    [measured] = [why for why in verdict["levels"]["numeric"]["why"] if why["kind"] == "measured"]
    assert measured["compared"] > 0


def test_a_wrong_name_is_answered_with_those_that_are_served(
    vllm: Server, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    said = rip(
        "replay", request_set(1), "--url", vllm.url, "--model", "no-such", "-o", tmp_path / "t.parquet"
    )
    assert said.code == 2
    assert "the server does not serve 'no-such'" in said.err
    assert "it serves: " in said.err
