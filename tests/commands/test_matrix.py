"""`rip matrix`: plans that are run, killed, gone on with, and judged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from fakes.command_line import Rip as CommandLine
from rip.schemas.matrix import MatrixVerdict

TESTS = Path(__file__).parent.parent
CONTROL = """
[[vary]]
dimension = "set:b"
values = ["good", "bad"]
[[claims]]
id = "control"
level = "token"
varied = ["set:b"]
control = true
"""


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """The command line beside three requests and a small checkpoint; the engines of the tests are found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    with Path("set.jsonl").open("w") as lines:
        for index in range(3):
            request = {
                "request_id": f"r{index}",
                "prompt_token_ids": list(range(10, 14 + index)),
                "sampling": {"temperature": 0, "max_tokens": 5, "ignore_eos": True},
            }
            lines.write(json.dumps(request) + "\n")
    model = gguf.GGUFWriter("m.gguf", "llama")
    model.add_tensor("t", np.zeros((2, 2), np.float32))
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()
    return CommandLine(monkeypatch, capsys)


def write_plan(
    claims: str, engine: str = "PlantedEngine", culprits: str = "b", control: str = CONTROL
) -> None:
    Path("plan.toml").write_text(
        f"""requests = "set.jsonl"
rounds = 2
[lanes.one]
engine = "fakes.narrow_engines:{engine}"
model = "m.gguf"
[lanes.one.set]
culprits = "{culprits}"
{claims}{control}"""
    )


CLAIM = """
[[vary]]
dimension = "set:a"
values = ["good", "bad"]
[[claims]]
id = "a-does-not-matter"
level = "token"
varied = ["set:a"]
"""


def verdict() -> MatrixVerdict:
    return MatrixVerdict.from_json(Path("out/verdict.json").read_text(), "verdict.json")


def state(claim: str) -> str:
    return next(one.state for one in verdict().claims if one.id == claim)


def test_a_claim_holds_where_its_control_fails_and_nothing_runs_twice(rip: CommandLine) -> None:
    write_plan(CLAIM)
    planned = rip("matrix", "plan", "plan.toml")
    assert planned.code == 0
    assert "set:a: good → bad" in planned.out
    assert "2 cells, 2 claims, 8 runs" in planned.err
    done = rip("matrix", "run", "plan.toml", "-o", "out")
    assert done.code == 0, done.err
    assert "a-does-not-matter (token): holds: 0 of 6 outputs differ (at most 39.3% at 95 %)" in done.out
    assert "control (token): fails, as a control must" in done.out
    traces = {path.name: path.stat().st_mtime_ns for path in Path("out/traces").iterdir()}
    assert rip("matrix", "run", "plan.toml", "-o", "out").code == 0
    assert {path.name: path.stat().st_mtime_ns for path in Path("out/traces").iterdir()} == traces
    shown = rip("matrix", "show", "out", "--json")
    assert MatrixVerdict.from_json(shown.out, "stdout").claims == verdict().claims


def test_a_failing_claim_opens_as_a_comparison(rip: CommandLine) -> None:
    write_plan(CLAIM, culprits="a/b")
    done = rip("matrix", "run", "plan.toml", "-o", "out")
    assert done.code == 1
    assert state("a-does-not-matter") == "fails"
    assert "first token: r0 step 0" in done.out
    results = [path for path in Path("out/cells").iterdir() if path.name.endswith("a-b-1-1")]
    assert len(results) == 2, "of the claim and of the control"
    assert rip("report", str(results[0]), "-o", "report.md").code == 0


def test_a_plan_whose_control_holds_is_invalid(rip: CommandLine) -> None:
    write_plan(CLAIM, culprits="c")
    done = rip("matrix", "run", "plan.toml", "-o", "out")
    assert done.code == 3
    assert "its negative control holds, so equal results prove nothing" in done.out
    write_plan(CLAIM, control="")
    done = rip("matrix", "run", "plan.toml", "-o", "other")
    assert done.code == 3
    assert "it has no negative control" in done.out


def test_noise_inside_a_lane_is_no_difference_between_its_sides(
    rip: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNT", str(Path("count").absolute()))
    write_plan(CLAIM, engine="RestlessEngine")
    done = rip("matrix", "run", "plan.toml", "-o", "out")
    assert done.code == 1
    assert "side A does not repeat itself" in done.out
    claim = next(one for one in verdict().claims if one.id == "a-does-not-matter")
    assert [cell.state for cell in claim.cells] == ["noise"]


def test_a_failed_run_makes_its_cell_invalid(rip: CommandLine) -> None:
    write_plan(CLAIM.replace('"bad"', '"bad"').replace("token", "bitwise"), culprits='b"\nneeds = "a>z')
    done = rip("matrix", "run", "plan.toml", "-o", "out")
    assert done.code == 3
    assert state("a-does-not-matter") == "invalid"
    assert "side B: a run failed: " in done.out
    assert "a needs z" in done.out


def test_a_killed_plan_goes_on_and_loses_no_finished_cell(rip: CommandLine) -> None:
    write_plan(CLAIM)
    line = [sys.executable, "-m", "rip", "matrix", "run", "plan.toml", "-o", "out"]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        ledger = Path("out/ledger.jsonl")
        while process.poll() is None and (not ledger.exists() or ledger.read_text().count("\n") < 3):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = ledger.read_text().splitlines()
    ledger.write_text("\n".join(before) + '\n{"kind":"cell","id":"torn')
    done = rip("matrix", "run", "plan.toml", "-o", "out")
    assert done.code == 0, done.err
    after = ledger.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == len(
        {json.loads(one).get("id") or (json.loads(one)["key"], json.loads(one)["launch"]) for one in after}
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('dimension = "set:a"|dimension = "weather"', "there is no dimension 'weather'"),
        ('values = ["good", "bad"]|values = ["good"]', "one value only"),
        ('level = "token"|level = "numeric"', "states no tolerance"),
        ('level = "token"|level = "semantic"', "states no scorer"),
        ('dimension = "set:a"|dimension = "arrival"', "cannot vary it"),
    ],
)
def test_a_wrong_plan_says_what_is_wrong(rip: CommandLine, wrong: str, said: str) -> None:
    old, new = wrong.split("|")
    write_plan(CLAIM.replace(old, new))
    done = rip("matrix", "plan", "plan.toml")
    assert done.code == 2
    assert said in done.err


def test_a_new_plan_can_be_run_and_scored_again(
    rip: CommandLine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a real model: repeats and restarts are equal to the bit, and a different dtype is not.

    The scorers are planted: one finds all answers alike, the other never finds two alike.
    """
    monkeypatch.syspath_prepend(tmp_path)
    made = rip("matrix", "init", "set.jsonl", "--model", str(tiny_model), "-o", "plan.toml")
    assert made.code == 0
    Path("scorers.py").write_text(
        "from itertools import count\nnumbers = count()\n"
        "def anything(*_):\n    return 1\n\ndef nothing(*_):\n    return next(numbers)\n"
    )
    semantic = (
        '\n[[claims]]\nid = "says-the-same"\nlevel = "semantic"\nvaried = ["repeat"]\n'
        'scorers = [{ scorer = "scorers:anything" }]\n'
    )
    plan = Path("plan.toml").read_text().replace("values = [3]", "values = [2]") + semantic
    Path("plan.toml").write_text(plan)
    done = rip("matrix", "run", "plan.toml", "-o", "out")
    assert done.code == 0, done.out + done.err
    assert {claim.id: claim.state for claim in verdict().claims} == {
        "repeats": "holds",
        "restarts": "holds",
        "control": "fails",
        "says-the-same": "holds",
    }
    runs = Path("out/ledger.jsonl").read_text().count('"kind":"run"')
    Path("plan.toml").write_text(plan.replace("scorers:anything", "scorers:nothing"))
    assert rip("matrix", "run", "plan.toml", "-o", "out").code == 1
    assert state("says-the-same") == "fails", "scored again"
    assert Path("out/ledger.jsonl").read_text().count('"kind":"run"') == runs, "and not generated again"
