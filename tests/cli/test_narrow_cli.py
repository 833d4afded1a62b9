"""`rip narrow` as a user meets it: real runs in processes of their own, interruptions, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fakes.command_line import Done
from fakes.command_line import Rip as CommandLine
from rip.cli.lane import Chosen
from rip.cli.narrow_lanes import Mixture, Prepared, parse_vary, vary
from rip.schemas.errors import BadInput
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
            if said.startswith("run 2:"):
                process.kill()
                break
    assert result().state == "unfinished"
    kept = Path("out/good.parquet").stat().st_mtime_ns
    done = rip(*line, "--json")
    assert done.code == 0
    assert "going on after 2 runs" in done.err
    assert "run 1:" not in done.err
    assert Path("out/good.parquet").stat().st_mtime_ns == kept, "what was run is not run again"
    assert "dtype=bfloat16 alone turns the divergence on (" in done.err
    found = Narrow.from_json(done.out, "stdout")
    assert found == result()
    assert [one.settings for one in found.found] == [["dtype"]]
    assert {one.name: one.outcome for one in found.configurations}["with-padding_side"] == "same"
    traces = [run.trace for one in found.configurations for run in one.observations]
    assert all(trace is not None and (Path("out") / trace).is_file() for trace in traces)
    assert rip(*found.commands[0].split()[1:]).code == 1, "rip diverge sees it too"


def test_a_variable_and_a_setting_that_are_needed_together(rip: CommandLine) -> None:
    """An engine in rip's own process: each run has its own environment."""
    varied = ("--vary", "a=good:bad", "--vary", "env.PLANTED_B=:1")
    done = rip("narrow", "r.json", *PLANTED, "--set", "culprits=a+env.PLANTED_B", *varied, "-o", "out")
    assert done.code == 0
    assert "a=bad and env.PLANTED_B=1 together turn the divergence on, each alone does not" in done.err
    assert "env.PLANTED_B, without a" in done.err
    assert "PLANTED_B=1 rip replay r.json -o bad-again.parquet" in done.err
    assert "PLANTED_B" not in os.environ
    again = rip("narrow", "r.json", *PLANTED, "--set", "culprits=a+env.PLANTED_B", *varied, "-o", "out")
    assert again.code == 0
    assert "run 1:" not in again.err, "the same command again tells the result and runs nothing"
    refused(
        rip("narrow", "r.json", *PLANTED, *varied, "-o", "out"),
        "out holds another search",
        "start anew with --force",
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
    assert "--repeat 8 may tell" in done.err


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
        (("--vary", "a=x:x"), "the two lanes do not differ", ""),
        (("--vary", "a"), "--vary a: not of the form KEY=GOOD:BAD", "lane files"),
        (("--vary", "a=1:2:3"), "--vary a=1:2:3: not of the form KEY=GOOD:BAD", ""),
        (("--vary", "env.1=:2"), "not of the form env.NAME=VALUE", ""),
        (("--vary", "a=:1", "--require", "numeric"), "--require numeric: no such choice", "token, bitwise"),
        (("--vary", "a=:1", "--capture", "tensors"), "--capture tensors: no such choice", ""),
        (("--vary", "a=:1", "--capture", "sites"), "shows no sites", ""),
        (("--vary", "batch_size=1:0"), "batch_size=0: not a whole number", ""),
        (("--good", "lane"), "--good lane: not a lane file", "docs/engines.md"),
        (("--good", "absent.toml"), "absent.toml: cannot be read", ""),
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


def test_a_request_set_that_is_not_there_is_refused(rip: CommandLine) -> None:
    refused(rip("narrow", "no.json", *PLANTED, "--vary", "a=:1", "-o", "out"), "no.json: cannot be read")


def test_a_folder_with_something_else_in_it_is_left_alone(rip: CommandLine) -> None:
    Path("out").mkdir()
    Path("out/thesis.txt").write_text("42")
    refused(rip("narrow", "r.json", *PLANTED, "--vary", "a=:1", "-o", "out"), "out is not empty", "--force")
    refused(rip("narrow", "r.json", *PLANTED, "--vary", "a=:1", "-o", "no/out"), "no/out cannot be used")
    assert os.listdir("out") == ["thesis.txt"]


# Lanes as settings


def prepared(in_process: bool = True, **values: str) -> Prepared:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return Prepared("hf" if in_process else "vllm", in_process, named, ())


def test_a_mixture_runs_as_its_lanes_would() -> None:
    good = prepared(model="m", dtype="float32", env__A="1", neighbours="7")
    bad = prepared(model="m", dtype="bfloat16", python="other/python")
    mixture = Mixture.of(good, bad)
    assert mixture.names == ("dtype", "env.A", "neighbours", "python")
    command = mixture.run(["python", "env.A"], ["r.json"])
    assert command.line() == (
        "other/python -m rip replay r.json --engine hf --model m --set dtype=float32 --neighbours 7"
    )
    assert command.process()[0] == "other/python"
    assert mixture.run([], ["r.json"]).environment == {"A": "1"}
    assert mixture.run([], ["r.json"]).process()[0] == sys.executable


def test_a_setting_may_be_spelled_in_two_ways() -> None:
    good = Prepared("vllm", False, {"max-model-len": "1", "seed": "1"}, ())
    bad = Prepared("vllm", False, {"max_model_len": "2", "seed": "1"}, ())
    mixture = Mixture.of(good, bad)
    assert mixture.names == ("max-model-len",)
    assert mixture.run(["max-model-len"], []).line().endswith("--set max-model-len=2 --set seed=1")


def test_a_started_server_gets_its_variables_and_interpreter_from_rip_replay() -> None:
    mixture = Mixture.of(
        prepared(False, model="m", python="p", env__A="1"), prepared(False, model="m", python="q")
    )
    command = mixture.run([], [])
    assert command.environment == {}
    assert command.line() == "rip replay --engine vllm --model m --python p --set env.A=1"
    assert "--allow-drift" not in command.words


def test_another_model_is_allowed_to_be_another() -> None:
    mixture = Mixture.of(prepared(model="old"), prepared(model="new"))
    assert "--allow-drift" in mixture.run([], []).words


def test_what_may_be_a_secret_is_in_no_result() -> None:
    mixture = Mixture.of(prepared(False, env__API_KEY="hush", a="1"), prepared(False, env__API_KEY="psst"))
    assert "hush" in mixture.run([], []).line()
    assert "hush" not in mixture.run([], [], shown=True).line()
    shown = repr(mixture.varied())
    assert "hush" not in shown
    assert "psst" not in shown


def test_varied_settings_replace_those_of_the_lane() -> None:
    lane = Chosen("n", "vllm", "m", None, None, None, None, ("max-model-len=1", "a=1", "env.X_Y=1"), "7")
    changes = [("max_model_len", "2"), ("a", ""), ("env.X_Y", "2"), ("neighbours", ""), ("python", "p")]
    changed = vary(lane, changes)
    assert changed.settings == ("max_model_len=2", "env.X_Y=2")
    assert (changed.neighbours, changed.python) == (None, "p")
    assert parse_vary(["a=:b"]) == [("a", "", "b")]


def test_lanes_must_agree_in_what_cannot_be_varied() -> None:
    tapped: dict[str, Any] = {"engine": "vllm", "in_process": False, "values": {"a": "1"}}
    with pytest.raises(BadInput, match="api_key_env or tap"):
        Mixture.of(Prepared(**tapped, fixed=("--tap", "x")), Prepared(**tapped, fixed=("--tap", "y")))
