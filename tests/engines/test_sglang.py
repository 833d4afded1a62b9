"""SGLang for real: SmolLM2 in bfloat16 on the CPU, called over HTTP."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from rip.replay.engines.http.server_process import Launch, StartedServer

from .conftest import ROOT, diverged, replayed, rip

PYTHON = ROOT / ".engines" / "sglang" / "bin" / "python"
START = ROOT / "tests" / "engines" / "sglang" / "serve.py"
KEY = "sk-sglang-key-that-must-never-be-kept"
KEY_NAME = "SGLANG_TEST_KEY"
ARGUMENTS = {
    "device": "cpu",
    "dtype": "bfloat16",
    "attention-backend": "torch_native",
    "max-total-tokens": "8192",
    "context-length": "2048",
    "max-running-requests": "16",
    "random-seed": "1",
    "api-key": KEY,
    "log-requests-level": "3",
    "log-requests-format": "json",
}
SWITCHES = (
    "disable-overlap-schedule",
    "disable-cuda-graph",
    "skip-server-warmup",
    "sleep-on-idle",
    "log-requests",
)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
COLUMNS = ["request_id", "position", "step", "token_id", "topk_ids", "topk_logprobs"]


@dataclass(frozen=True)
class Sglang:
    """A server that runs while the tests do."""

    url: str
    model: Path
    log: Path

    @property
    def lane(self) -> tuple[object, ...]:
        """Options of a replay on it."""
        return ("--engine", "sglang", "--url", self.url, "--api-key-env", KEY_NAME, "--model", self.model)

    def http(self) -> httpx.Client:
        """For what a plain script sees."""
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False)


@pytest.fixture(scope="module")
def sglang(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sglang]:
    """SmolLM2 in bfloat16 on SGLang."""
    if not PYTHON.exists():
        pytest.fail("SGLang is not installed: make engines")
    options = [word for name, value in ARGUMENTS.items() for word in (f"--{name}", value)]
    options += [f"--{name}" for name in SWITCHES]
    where = ["--model-path", str(smollm2), "--host", "127.0.0.1", "--port", "{port}"]
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    os.environ[KEY_NAME] = KEY
    server = StartedServer(Launch([str(PYTHON), str(START), *where, *options], ENVIRONMENT, log))
    try:
        server.wait_ready()
        yield Sglang(server.url, smollm2, log)
    finally:
        server.stop()
        del os.environ[KEY_NAME]


@pytest.fixture(scope="module")
def traces(
    sglang: Sglang, request_set: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Eight chat requests alone, alone again, and together."""
    folder = tmp_path_factory.mktemp("sglang-traces")
    for name, size in (("alone", 1), ("again", 1), ("together", 8)):
        lane = (*sglang.lane, "--set", f"batch_size={size}", "--sampling", "max_tokens=16")
        replayed(request_set(8), *lane, "-o", folder / f"{name}.parquet")
    return folder


def rows(trace: Path) -> list[dict[str, Any]]:
    """Of a trace, read without rip."""
    return pq.read_table(trace, columns=COLUMNS).to_pylist()


def header(trace: Path) -> dict[str, Any]:
    """Of a trace, read without rip."""
    found: dict[str, Any] = json.loads(pq.read_metadata(trace).metadata[b"rip.trace"])
    return found


def generated(trace: Path) -> dict[str, list[int]]:
    """The tokens of every answer."""
    found: dict[str, list[int]] = {}
    for row in rows(trace):
        if row["step"] is not None:
            found.setdefault(row["request_id"], []).append(row["token_id"])
    return found


def test_repeats_are_equal_to_the_bit_and_held_to_their_tokens(traces: Path) -> None:
    assert rows(traces / "alone.parquet") == rows(traces / "again.parquet")
    code, verdict = diverged(traces / "alone.parquet", traces / "again.parquet", "--require", "token")
    assert (code, verdict["levels"]["token"]["state"]) == (0, "holds")
    assert verdict["max_abs_logprob_diff"] == 0
    assert verdict.get("agreement") is None
    assert not [line for line in header(traces / "alone.parquet")["findings"] if "seed" in line]
    assert KEY.encode() not in (traces / "alone.parquet").read_bytes()


def test_a_plain_script_gets_the_tokens_and_numbers_that_the_trace_holds(
    sglang: Sglang, traces: Path
) -> None:
    one = [row for row in rows(traces / "alone.parquet") if row["request_id"] == "q0"]
    prompt = [row["token_id"] for row in one if row["step"] is None]
    sampling = {"temperature": 0, "max_new_tokens": 16}
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 20}
    with sglang.http() as http:
        answer = http.post("/generate", json={**body, "extra_key": "a script's own"}).json()
    assert answer["output_ids"] == generated(traces / "alone.parquet")["q0"]
    said = [[logprob for logprob, *_ in likely] for likely in answer["meta_info"]["output_top_logprobs"]]
    # The distribution that a token was chosen from stands in the row before it.
    kept = [row["topk_logprobs"] for row in one[len(prompt) - 1 : -1]]
    assert kept == [pytest.approx(likely, abs=1e-6) for likely in said]


def test_together_they_part_where_a_plain_comparison_sees_it(traces: Path) -> None:
    alone, together = (generated(traces / f"{name}.parquet") for name in ("alone", "together"))
    code, verdict = diverged(traces / "alone.parquet", traces / "together.parquet")
    # Whether bits or tokens part depends on the CPU; rip and the comparison must agree.
    assert verdict["levels"]["token"]["state"] == ("holds" if alone == together else "fails")
    assert code == (0 if alone == together else 1)
    differ = rows(traces / "alone.parquet") != rows(traces / "together.parquet")
    assert any(verdict.get(name) for name in ("first_logprob", "first_token")) == differ
    assert "no-seed" not in [cause["id"] for cause in verdict["causes"]]


def test_forced_tokens_are_scored_and_held_to(
    sglang: Sglang, traces: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    golden = ("--mode", "golden-prefill", "--golden", traces / "alone.parquet")
    scored, again = tmp_path / "scored.parquet", tmp_path / "scored-again.parquet"
    for out in (scored, again):
        replayed(request_set(2), *sglang.lane, *golden, "-o", out)
    assert rows(scored) == rows(again)
    free = generated(traces / "alone.parquet")
    assert generated(scored) == {name: free[name] for name in ("q0", "q1")}
    without = [row for row in rows(scored) if row["topk_ids"] is None]
    assert len(without) == 2  # all positions are scored but the last of each, which is not fed
    code, verdict = diverged(scored, again, "--require", "token")
    assert (code, verdict["levels"]["token"]["state"]) == (0, "holds")
    _, verdict = diverged(traces / "alone.parquet", scored)
    assert verdict.get("first_logprob") or verdict["max_abs_logprob_diff"] == 0


def test_a_warm_cache_is_reported_and_a_flush_waits_for_its_turn(
    sglang: Sglang, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    warm = (*sglang.lane, "--sampling", "max_tokens=4", "--set", "cache=warm")
    flush(sglang)
    for name in ("first", "second"):
        replayed(request_set(1), *warm, "-o", tmp_path / f"{name}.parquet")
    said = [
        [one["data"]["tokens"] for one in header(tmp_path / f"{name}.parquet")["findings_data"]
         if one["kind"] == "prefix-cached"]
        for name in ("first", "second")
    ]  # fmt: skip
    assert said[0] == []
    assert said[1][0] > 0
    # While an answer is under way the server refuses, and nothing of rip needs the flush: cold is by a key.
    busy = threading.Thread(target=long_answer, args=(sglang,))
    busy.start()
    try:
        replayed(request_set(1), *sglang.lane, "--sampling", "max_tokens=4", "-o", tmp_path / "cold.parquet")
    finally:
        busy.join()
    assert "prefix-cached" not in [one["kind"] for one in header(tmp_path / "cold.parquet")["findings_data"]]
    assert "extra_key" not in json.dumps(header(tmp_path / "cold.parquet")["requests"])


def long_answer(sglang: Sglang) -> None:
    """Keep the server busy for a while."""
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}
    with sglang.http() as http:
        http.post("/generate", json=body).raise_for_status()


def flush(sglang: Sglang) -> None:
    """Empty the server's cache, which it does when no request runs."""
    with sglang.http() as http:
        for _ in range(100):
            if http.post("/flush_cache").status_code == httpx.codes.OK:
                return
            time.sleep(0.1)
    pytest.fail("the server is never idle")


@pytest.mark.parametrize("files", [True, False])
def test_a_token_outside_of_the_vocabulary_is_refused_and_the_server_lives(
    files: bool, sglang: Sglang, tmp_path: Path
) -> None:
    sampling = {"temperature": 0, "max_tokens": 2}
    for name, ids in (("wrong", [5, 49152, 7]), ("right", [5, 49151, 7])):
        envelope = {"request_id": name, "prompt_token_ids": ids, "sampling": sampling}
        (tmp_path / f"{name}.json").write_text(json.dumps(envelope), encoding="utf-8")
    lane = sglang.lane if files else sglang.lane[:-2]
    said = rip("replay", tmp_path / "wrong.json", *lane, "-o", tmp_path / "wrong.parquet")
    assert said.code == 2
    assert "token id 49152 in the prompt is outside the vocabulary of 49152" in said.err
    replayed(tmp_path / "right.json", *lane, "-o", tmp_path / "right.parquet")


def test_texts_of_tokens_come_in_one_call(
    sglang: Sglang, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    def calls() -> int:
        return sglang.log.read_text("utf-8").count('"POST /detokenize ')

    before = calls()
    without_files = (*sglang.lane[:-2], "--sampling", "max_tokens=4")
    replayed(request_set(1), *without_files, "-o", tmp_path / "t.parquet")
    assert len(header(tmp_path / "t.parquet")["token_text"]) > 5
    assert 1 < calls() - before <= 6  # the others find the end of the vocabulary


def test_a_structured_output_is_what_the_request_states(sglang: Sglang, tmp_path: Path) -> None:
    envelope = {
        "request_id": "digits",
        "prompt_text": "The year is ",
        "sampling": {"temperature": 0, "max_tokens": 8, "structured_outputs": {"regex": "[0-9]{4}"}},
    }
    (tmp_path / "digits.json").write_text(json.dumps(envelope), encoding="utf-8")
    replayed(tmp_path / "digits.json", *sglang.lane, "-o", tmp_path / "digits.parquet")
    [result] = header(tmp_path / "digits.parquet")["results"]
    assert re.fullmatch("[0-9]{4}", result["text"])


def test_an_experiment_on_the_server_confirms_a_cause(
    sglang: Sglang, traces: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    """By construction: B may not choose A's first token, and A's sampling gives A again."""
    first = generated(traces / "alone.parquet")["q0"][0]
    lane = (*sglang.lane, "--sampling", "max_tokens=6")
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    replayed(request_set(1), *lane, "-o", a)
    replayed(request_set(1), *lane, "--sampling", f'logit_bias={{"{first}": -100}}', "-o", b)
    code, verdict = diverged(a, b)
    assert (code, verdict["first_token"]["step"]) == (1, 0)
    assert verdict["causes"][0]["id"] == "sampling-contract"
    said = rip("confirm", tmp_path / "a-b", "--json")
    assert said.code == 0, said.err
    assert said.json["causes"][0]["confirmation"]["state"] == "confirmed", said.out


def test_the_fingerprint_of_the_live_server(sglang: Sglang, tmp_path: Path) -> None:
    out = tmp_path / "server.json"
    said = rip("fingerprint", "--url", sglang.url, "--api-key-env", KEY_NAME, "-o", out)
    assert said.code == 0, said.err
    text = out.read_text("utf-8")
    assert KEY not in text
    assert "launch_command" not in text
    facts = {
        f"{section}.{name}": fact.get("value")
        for section, held in json.loads(text)["sections"].items()
        for name, fact in held["facts"].items()
    }
    assert facts["engine.name"] == "sglang"
    assert facts["engine.version"] == "0.5.23"
    assert facts["engine.attention_backend"] == "torch_native"
    assert facts["engine.quantization"] == facts["model.quantization_method"] == "none"
    assert facts["model.architecture"] == "LlamaForCausalLM"
    assert facts["determinism.engine_seed"] == 1
    again = tmp_path / "again.json"
    assert rip("fingerprint", "--url", sglang.url, "--api-key-env", KEY_NAME, "-o", again).code == 0
    assert rip("drift", out, again, "--json").json["changes"] == []


def test_the_start_up_log_is_read_as_a_fingerprint(sglang: Sglang, tmp_path: Path) -> None:
    out = tmp_path / "log.json"
    said = rip("fingerprint", "--read", sglang.log, "-o", out)
    assert said.code == 0, said.err
    text = out.read_text("utf-8")
    assert KEY not in text
    engine = json.loads(text)["sections"]["engine"]["facts"]
    assert engine["name"]["value"] == "sglang"
    assert engine["attention_backend"]["value"] == "torch_native"
    assert engine["dtype"]["value"] == "bfloat16"


def test_the_request_log_becomes_envelopes_that_replay(
    sglang: Sglang, traces: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    out = tmp_path / "logged.jsonl"
    said = rip("envelope", "import", sglang.log, "-o", out)
    assert said.code == 0, said.err
    logged = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    [first] = [json.loads(line) for line in request_set(1).read_text("utf-8").splitlines()]
    [one, *_] = [item for item in logged if item.get("prompt_token_ids") == first["prompt_token_ids"]]
    assert one["sampling"]["temperature"] == 0
    assert one["sampling"]["max_tokens"] == 16
    assert one["expected"]["token_ids"] == generated(traces / "alone.parquet")["q0"]
    assert one["request"]["extra_key"].startswith("rip-")  # a key of the cache, no secret
    (tmp_path / "one.jsonl").write_text(json.dumps(one) + "\n", encoding="utf-8")
    replayed(tmp_path / "one.jsonl", *sglang.lane, "-o", tmp_path / "one.parquet")
