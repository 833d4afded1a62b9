"""`rip narrow` as a user meets it: real runs in processes of their own, interruptions, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from fakes.command_line import Done
from fakes.command_line import Rip as CommandLine
from rip.schemas.narrow import Narrow

TESTS = Path(__file__).parent.parent
PLANTED = ("--engine", "fakes.narrow_engines:PlantedEngine", "--model", "m.gguf")


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """In a folder with one request and a small checkpoint; runs find the engines of the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    request = {
        "request_id": "r",
        "prompt_token_ids": [10, 20, 30, 40],
        "sampling": {"temperature": 0, "max_tokens": 5, "ignore_eos": True},
    }
    Path("r.json").write_text(json.dumps(request))
    model = gguf.GGUFWriter("m.gguf", "llama")  # a folder would make every run look for a tokenizer
    model.add_tensor("t", np.zeros((2, 2), np.float32))
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()
    return CommandLine(monkeypatch, capsys)


def result(folder: str = "out") -> Narrow:
    return Narrow.from_json((Path(folder) / "narrow.json").read_bytes(), "narrow.json")


def refused(done: Done, message: str, fix: str = "") -> None:
    assert (done.code, done.out) == (2, ""), done.err
    first, second, *rest = done.err.splitlines()
    assert message in first
    assert second.startswith("     fix: ")
    assert fix in second
    assert rest == []


# Real runs


def test_the_setting_to_blame_is_found_on_a_real_model_though_the_search_was_killed(
    rip: CommandLine, tiny_model: Path
) -> None:
    """Two lane files that differ in two settings, of which the dtype alone changes the bits."""
    common = f'engine = "hf"\nmodel = "{tiny_model}"\n[set]\nthreads = 1\n'
    Path("good.toml").write_text(f'{common}dtype = "float32"\npadding_side = "left"\n')
    Path("bad.toml").write_text(f'{common}dtype = "bfloat16"\npadding_side = "right"\n')
    line = [
        "narrow",
        "r.json",
        "--good",
        "good.toml",
        "--bad",
        "bad.toml",
        "--require",
        "bitwise",
        "-o",
        "out",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "rip", *line], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for said in process.stderr:
            if said.startswith("run 3"):  # so two have ended
                process.kill()
                break
    assert result().state == "unfinished"
    kept = Path("out/good.parquet").stat().st_mtime_ns
    done = rip(*line, "--json")
    assert done.code == 0
    assert "continuing after 2 runs in out" in done.err or "continuing after 3 runs" in done.err
    assert "run 1:" not in done.err
    assert Path("out/good.parquet").stat().st_mtime_ns == kept, "what was run is not run again"
    assert "dtype=bfloat16 alone turns the divergence on (" in done.err
    found = Narrow.from_json(done.out, "stdout")
    assert found == result()
    assert [one.settings for one in found.found] == [["dtype"]]
    assert {one.name: one.outcome for one in found.configurations}["with-padding_side"] == "same"
    traces = [run.trace for one in found.configurations for run in one.observations]
    assert all(trace is not None and (Path("out") / trace).is_file() for trace in traces)
    assert rip(*found.commands[0][1:]).code == 1, "rip diverge sees it too"


def test_a_variable_and_a_setting_that_are_needed_together(rip: CommandLine) -> None:
    """An engine in rip's own process: each run has its own environment."""
    varied = ("--vary", "a=good:bad", "--vary", "env.PLANTED_B=:1")
    done = rip("narrow", "r.json", *PLANTED, "--set", "culprits=a+env.PLANTED_B", *varied, "-o", "out")
    assert done.code == 0
    assert "a=bad and env.PLANTED_B=1 together turn the divergence on, each alone does not" in done.err
    assert "env.PLANTED_B, without a" in done.err
    assert "-o bad-again.parquet" in done.err
    assert "--set env.PLANTED_B=1" in done.err
    assert "PLANTED_B" not in os.environ
    again = rip("narrow", "r.json", *PLANTED, "--set", "culprits=a+env.PLANTED_B", *varied, "-o", "out")
    assert again.code == 0
    assert "run 1:" not in again.err, "the same command again tells the result and runs nothing"
    refused(
        rip("narrow", "r.json", *PLANTED, *varied, "-o", "out"),
        "out holds a different search with 6 runs: a setting that is not varied has changed",
        "choose another folder with -o, or discard what out holds with --force",
    )


def test_lanes_that_do_not_diverge(rip: CommandLine) -> None:
    """The negative control."""
    done = rip("narrow", "r.json", *PLANTED, "--vary", "a=good:bad", "-o", "out")
    assert done.code == 1
    assert "does not diverge from the good one at the level token: 3 runs" in done.err
    assert result().found == []


def test_a_lane_that_does_not_repeat_itself_is_no_ground_for_a_search(rip: CommandLine) -> None:
    engine = ("--engine", "fakes.narrow_engines:RestlessEngine", "--model", "m.gguf")
    done = rip("narrow", "r.json", *engine, "--vary", "a=good:bad", "-o", "out")
    assert done.code == 3
    assert "The good lane does not repeat itself" in done.err
    assert "try --repeat 8" in done.err


def test_a_lane_that_cannot_run_ends_it_with_what_the_engine_said(rip: CommandLine) -> None:
    done = rip("narrow", "r.json", *PLANTED, "--set", "needs=a>b", "--vary", "a=good:bad", "-o", "out")
    assert done.code == 2
    assert "rip: the bad lane cannot be run: fakes.narrow_engines:PlantedEngine failed while " in done.err
    assert "ValueError: a needs b" in done.err
    assert "out/bad.log" in done.err
    assert "a needs b" in Path("out/bad.log").read_text()


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_ctrl_c_ends_the_run_and_keeps_the_others(rip: CommandLine, number: str) -> None:
    Path("mark").write_text(number)
    line = ["narrow", "r.json", *PLANTED, "--vary", "marked=good:bad", "-o", "out"]
    process = subprocess.run(
        [sys.executable, "-m", "rip", *line],
        env={**os.environ, "MARK": "mark"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.returncode == 130, process.stderr
    assert process.stderr.splitlines()[-1] == "rip: interrupted"
    assert [(one.name, len(one.observations)) for one in result().configurations] == [("good", 1)]
    assert not Path("out/bad.parquet").exists()
    assert "interrupted" in Path("out/bad.log").read_text(), "the run could end in order"


# Refused before anything runs


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        ((), "the two lanes do not differ", "--vary KEY=GOOD:BAD"),
        (("--vary", "a=x:x"), "--vary a=x:x: the good and the bad value are the same", "--set a=VALUE"),
        (("--vary", "a"), "--vary a: not of the form KEY=GOOD:BAD", "lane files"),
        (("--vary", "a=1:2:3"), "--vary a=1:2:3: not of the form KEY=GOOD:BAD", ""),
        (("--vary", "env.1=:2"), "--vary env.1=:2 (2): not of the form env.NAME=VALUE", "example env."),
        (("--vary", "a=:1", "--require", "numeric"), "--require numeric: no such choice", "token, bitwise"),
        (("--vary", "a=:1", "--capture", "tensors"), "--capture tensors: no such choice", ""),
        (("--vary", "a=:1", "--capture", "sites"), "does not support the capture of sites", ""),
        (
            ("--vary", "batch_size=1:0"),
            "--vary batch_size=1:0 (0): not a whole number",
            "example --set batch_size=2",
        ),
        (("--vary", "batch_size=no:1"), "--vary batch_size=no:1 (no): not a whole number", ""),
        (("--vary", "a=1:2", "--vary", "a=1:3"), "--vary a=1:3: a is varied already, with --vary a=1:2", ""),
        (("--vary", "a-b=1:2", "--vary", "a_b=1:3"), "a_b is varied already, with --vary a-b=1:2", ""),
        (("--vary", "a=1:2", "--set", "a=1"), "--set a=1: a is varied too, with --vary a=1:2", "leave one"),
        (("--vary", "model=:n.gguf"), "--model m.gguf: model is varied too", "leave one of the two out"),
        (("--vary", "engine=hf:vllm"), "--vary engine=hf:vllm: engine cannot be varied", "env.NAME"),
        (("--vary", "neighbours=:abc"), "--vary neighbours=:abc (abc): cannot be read", ""),
        (("--vary", "neighbours=1:-2"), "--vary neighbours=1:-2 (-2): not a number from 0 to 9999", ""),
        (
            ("--vary", "python=:no/python"),
            "--vary python=:no/python (no/python): cannot be run",
            "--vary python=",
        ),
        (("--vary", "a=1:2", "--python", "no/python"), "--python no/python: cannot be run", "with --python"),
        (("--good", "lane"), "--good lane: not a lane file", "docs/engines.md"),
        (("--good", "absent.toml"), "absent.toml: cannot be read", "check the path of --good"),
        (("--bad", "absent.toml"), "absent.toml: cannot be read", "check the path of --bad"),
        (("--bad", "hf.toml", "--vary", "threads=1:2"), "different engines", "one engine"),
    ],
)
def test_what_cannot_be_narrowed_is_refused(
    rip: CommandLine, arguments: tuple[str, ...], message: str, fix: str
) -> None:
    Path("hf.toml").write_text('engine = "hf"\nmodel = "m.gguf"\n')
    engine = PLANTED if "hf.toml" not in arguments else ("--model", "m.gguf")
    Path("planted.toml").write_text('engine = "fakes.narrow_engines:PlantedEngine"\n')
    good = ("--good", "planted.toml") if "hf.toml" in arguments else ()
    refused(rip("narrow", "r.json", *engine, *good, *arguments, "-o", "out"), message, fix)
    assert not Path("out").exists()


def test_requests_that_cannot_be_used_are_refused(rip: CommandLine) -> None:
    refused(rip("narrow", "no.json", *PLANTED, "--vary", "a=:1", "-o", "out"), "no.json: cannot be read")
    Path("text.jsonl").write_text("no envelope")
    refused(rip("narrow", "text.jsonl", *PLANTED, "--vary", "a=:1", "-o", "out"), "text.jsonl:1: not JSON")


@pytest.mark.parametrize(
    ("lane", "message", "fix"),
    [
        ('neighbours = "abc"', "bad.toml: neighbours = abc: cannot be read", "check the path"),
        ("[set]\nthreads = 0", "bad.toml: threads=0: not a whole number from 1", "example --set threads=2"),
        ("[set]\nspeed = 9", "bad.toml: speed=9: no such setting", "dtype, device"),
        ('[env]\nA-B = "1"', "bad.toml: env.A-B=1: not of the form env.NAME=VALUE", "OMP_NUM_THREADS"),
        ('tap = "t"', "bad.toml: tap = t: the engine hf writes no tap folder", "leave tap in the file out"),
        ('python = "no"', "bad.toml: python = no: cannot be run", "python in the file"),
    ],
)
def test_what_is_wrong_in_a_lane_file_is_named_as_it_stands_there(
    rip: CommandLine, lane: str, message: str, fix: str
) -> None:
    Path("good.toml").write_text('engine = "hf"\nmodel = "m.gguf"\n')
    Path("bad.toml").write_text(f'engine = "hf"\nmodel = "m.gguf"\n{lane}\n')
    done = rip("narrow", "r.json", "--good", "good.toml", "--bad", "bad.toml", "-o", "out")
    refused(done, message, fix)
    assert not Path("out").exists()


def test_what_only_the_engine_knows_is_asked_before_the_first_run(rip: CommandLine, tiny_model: Path) -> None:
    """Attention implementations of a model, arguments of an own engine, parameters of a server."""
    hf = ("--model", tiny_model, "--vary", "attention=sdpa:foo")
    refused(rip("narrow", "r.json", *hf, "-o", "out"), "--vary attention=sdpa:foo (foo): this model has no")
    swapped = ("--model", "m.gguf", "--vary", "attention=foo:sdpa")
    refused(rip("narrow", "r.json", *swapped, "-o", "out"), "--vary attention=foo:sdpa (foo): this model has")
    plain = ("--engine", "fakes.offline_engines:PlainEngine", "--model", "m.gguf", "--vary", "speed=1:2")
    refused(rip("narrow", "r.json", *plain, "-o", "out"), "unexpected keyword argument 'speed'")
    llama = ("--engine", "llama.cpp", "--model", "m.gguf", "--vary")
    refused(rip("narrow", "r.json", *llama, "thread=1:2", "-o", "out"), "--vary thread=1:2 (1): no such")
    refused(rip("narrow", "r.json", *llama, "n_ctx=64:x", "-o", "out"), "--vary n_ctx=64:x (x): not a value")
    called = ("--engine", "vllm", "--url", "http://127.0.0.1:9", "--vary", "batch_size=1:2")
    refused(rip("narrow", "r.json", *called, "-o", "out"), "http://127.0.0.1:9 cannot be asked")
    assert not Path("out").exists()
    right = ("--engine", "fakes.offline_engines:PlainEngine", "--model", "m.gguf", "--vary", "depth=1:2")
    assert rip("narrow", "r.json", *right, "-o", "out").code == 1, "the control: these values are known"


# A folder that holds an earlier search


def test_a_corrected_bad_lane_goes_on_with_the_good_lane_s_run(rip: CommandLine) -> None:
    line = ("narrow", "r.json", *PLANTED, "--set", "needs=a>b", "--set", "culprits=c", "-o", "out")
    assert rip(*line, "--vary", "a=good:bad", "--vary", "c=good:bad").code == 2
    kept = Path("out/good.parquet").stat().st_mtime_ns
    done = rip(*line, "--vary", "a=good:better", "--vary", "c=good:bad")
    assert done.code == 0, done.err
    assert "the bad lane has changed: 1 run of the good lane in out is kept" in done.err
    assert Path("out/good.parquet").stat().st_mtime_ns == kept
    assert "c=bad alone turns the divergence on" in done.err
    again = rip(*line, "--vary", "a=good:best", "--vary", "c=good:bad")
    refused(again, "out holds a different search with 6 runs: a in the bad lane: better → best", "--force")


def test_a_search_without_a_run_that_succeeded_is_started_anew(rip: CommandLine) -> None:
    line = ("narrow", "r.json", *PLANTED, "--vary", "a=good:bad", "-o", "out")
    assert rip(*line, "--set", "needs=c>b", "--set", "c=bad").code == 2
    done = rip(*line, "--set", "culprits=a")
    assert done.code == 0, done.err
    assert "no run of the earlier search in out succeeded: starting over" in done.err
    assert "run 1: good is the reference" in done.err


def test_a_search_that_was_stopped_in_its_first_run_is_no_hindrance(rip: CommandLine) -> None:
    Path("mark").write_text("SIGINT")
    line = ["narrow", "r.json", *PLANTED, "--vary", "a=good:bad", "--set", "marked=bad", "-o", "out"]
    process = subprocess.run(
        [sys.executable, "-m", "rip", *line],
        env={**os.environ, "MARK": "mark"},
        capture_output=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.returncode == 130
    assert rip(*line).code == 1


def test_a_full_disk_is_no_outcome_of_a_mixture(rip: CommandLine) -> None:
    Path("full").touch()
    line = (
        "narrow",
        "r.json",
        *PLANTED,
        "--set",
        "culprits=a",
        "--vary",
        "a=good:bad",
        "--vary",
        "full=:bad",
    )
    done = rip(*line, "-o", "out")
    refused_last = done.err.splitlines()[-2:]
    assert done.code == 2
    assert "No space left on device" in refused_last[0]
    assert "run the same command again" in refused_last[1]
    assert [one.name for one in result().configurations] == ["good"]
    Path("full").unlink()
    assert "a=bad alone turns the divergence on" in rip(*line, "-o", "out").err


def test_a_folder_with_something_else_in_it_is_left_alone(rip: CommandLine) -> None:
    Path("out").mkdir()
    Path("out/thesis.txt").write_text("42")
    refused(rip("narrow", "r.json", *PLANTED, "--vary", "a=:1", "-o", "out"), "out is not empty", "--force")
    refused(rip("narrow", "r.json", *PLANTED, "--vary", "a=:1", "-o", "no/out"), "no/out cannot be used")
    assert os.listdir("out") == ["thesis.txt"]
