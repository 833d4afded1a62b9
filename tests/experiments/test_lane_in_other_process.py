"""A lane of an engine in rip's own process, with variables or an interpreter: rip starts anew for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import gguf
import numpy as np
import pyarrow.parquet as pq
import pytest
from rip.schemas.trace import HEADER_KEY, TraceHeader

TESTS = Path(__file__).parent.parent
ENGINE = "fakes.narrow_engines:PlantedEngine"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One request and a small checkpoint; the engines of the tests are found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    request = {
        "request_id": "r",
        "prompt_token_ids": [10, 20, 30, 40],
        "sampling": {"temperature": 0, "max_tokens": 5, "ignore_eos": True},
    }
    Path("r.json").write_text(json.dumps(request))
    model = gguf.GGUFWriter("m.gguf", "llama")
    model.add_tensor("t", np.zeros((2, 2), np.float32))
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rip", *words], capture_output=True, text=True)


def lane(**fields: str) -> str:
    """A lane file whose engine chooses other tokens where PLANTED is set."""
    stated = {"engine": ENGINE, "model": "m.gguf", **fields}
    lines = [f'{name} = "{value}"' for name, value in stated.items() if not name.startswith("env")]
    variables = [
        f'{name.removeprefix("env_")} = "{value}"' for name, value in stated.items() if "env_" in name
    ]
    lines += ["[set]", 'culprits = "env.PLANTED"', "[env]", *variables]
    Path("lane.toml").write_text("\n".join(lines) + "\n")
    return "lane.toml"


def replayed(trace: str, *words: str) -> tuple[list[int], TraceHeader]:
    done = run("replay", "r.json", "-o", trace, *words)
    assert done.returncode == 0, done.stderr
    table = pq.read_table(trace, columns=["token_id"])
    header = TraceHeader.from_json(pq.read_metadata(trace).metadata[HEADER_KEY], trace)
    return table.column("token_id").to_pylist(), header


def test_variables_of_the_lane_reach_the_engine_and_the_trace() -> None:
    plain, header = replayed("plain.parquet", "--lane", lane())
    assert not any(name.startswith("env.") for name in header.lane.settings)
    planted, header = replayed("set.parquet", "--lane", lane(env_PLANTED="1", env_MY_KEY="hush"))
    assert planted != plain
    assert header.lane.settings["env.PLANTED"].observed == "1"
    assert "hush" not in header.to_json()
    assert "PLANTED" not in os.environ
    given, _ = replayed("given.parquet", "--lane", lane(), "--set", "env.PLANTED=1")
    assert given == planted, "an option does what the file does"


def test_the_interpreter_of_the_lane_runs_rip() -> None:
    """A wrapper: it says that it ran, and that it ran once."""
    other = Path("other-python")
    other.write_text(f'#!/bin/sh\necho "$1 $2 $3" >> ran\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    tokens, header = replayed("other.parquet", "--lane", lane(python="other-python", env_PLANTED="1"))
    assert header.lane.python == "./other-python"
    assert tokens != replayed("plain.parquet", "--lane", lane())[0]
    assert Path("ran").read_text().splitlines()[1:] == ["-P -m rip"]


def test_exit_code_and_errors_are_those_of_the_command() -> None:
    request = json.loads(Path("r.json").read_text())
    Path("r.json").write_text(json.dumps({**request, "expected": {"token_ids": [1, 2, 3, 4, 5]}}))
    done = run("replay", "r.json", "-o", "t.parquet", "--lane", lane(env_PLANTED="1"))
    assert done.returncode == 1
    assert "tokens differ from the recorded answer at step 0" in done.stderr
    again = run("replay", "r.json", "-o", "t.parquet", "--lane", lane(env_PLANTED="1"))
    assert (again.returncode, again.stderr.splitlines()[0]) == (2, "rip: t.parquet exists already")


def test_the_check_of_an_engine_runs_where_its_lane_says() -> None:
    Path("needy.toml").write_text(f'engine = "{ENGINE}"\nmodel = "m.gguf"\n[env]\nPLANTED = "1"\n')
    line = ("check", "batch-invariance", "--sequences", "2", "--tokens", "2", "-o", "c")
    done = run(*line, "--lane", "needy.toml", "--set", "needs=env.PLANTED>b")
    assert done.returncode == 2
    assert "env.PLANTED needs b" in done.stderr
    assert run(*line, "--engine", ENGINE, "--model", "m.gguf", "--set", "needs=env.PLANTED>b").returncode == 0


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (("--set", "env.A-B=1"), "--set env.A-B=1: not of the form env.NAME=VALUE", "env.OMP_NUM_THREADS"),
        (("--set", "env.A"), "--set env.A: not of the form env.NAME=VALUE", ""),
        (("--python", "no/python"), "--python no/python: cannot be run: No such file", "--python"),
        (
            ("--python", "empty/bin/python"),
            "--python empty/bin/python: rip is not installed there",
            "pip install",
        ),
    ],
)
def test_what_cannot_be_entered_is_refused(words: tuple[str, ...], message: str, fix: str) -> None:
    if "empty/bin/python" in words:
        venv.create("empty", symlinks=True)
    done = run("replay", "r.json", "--engine", ENGINE, "--model", "m.gguf", "-o", "t.parquet", *words)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert message in first
    assert fix in second
    assert not Path("t.parquet").exists()
