"""`rip investigate` as a user meets it: from two sides to the postmortem, also after an interruption."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.command_line import Rip
from rip.diverge.result_folder import read_verdict
from rip.experiments import investigate as experiment
from rip.experiments.confirming import runs
from rip.schemas.errors import ErrorReport


@pytest.fixture
def made() -> list[str]:
    """The traces that were run, by name."""
    return []


@pytest.fixture
def rip(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made: list[str],
) -> Rip:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(tiny_model, tmp_path / "m")
    shutil.copytree(tiny_model, tmp_path / "m2")
    change_weight(tmp_path / "m2")
    request = {
        "request_id": "r0",
        "prompt_token_ids": [10, 20, 30],
        "sampling": {"temperature": 0, "max_tokens": 3, "ignore_eos": True},
    }
    (tmp_path / "s.jsonl").write_text(json.dumps(request) + "\n")
    for name, model in (("old", "m"), ("new", "m2")):
        (tmp_path / f"{name}.toml").write_text(f'model = "{model}"\n[set]\nthreads = 1\n')
    rip = Rip(monkeypatch, capsys)

    def in_this_process(arguments: list[str], *_: object) -> ErrorReport | None:
        made.append(Path(arguments[arguments.index("-o") + 1]).name)
        said = capsys.readouterr()
        done = rip(*arguments)
        print(said.err, end="", file=sys.stderr)
        return None if done.code in (0, 1, 3) else ErrorReport("failed", done.err, "", disk_full=False)

    for module in (runs, experiment):
        monkeypatch.setattr(module, "run_isolated", in_this_process)
    return rip


def change_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name] * 3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def steps(err: str) -> list[str]:
    return [line.split()[0] for line in err.splitlines()]


def test_two_lanes_end_in_a_postmortem_with_a_proof(rip: Rip, made: list[str], tmp_path: Path) -> None:
    arguments = ("investigate", "old.toml", "new.toml", "--requests", "s.jsonl", "-o", "incident")
    done = rip(*arguments)
    assert done.code in (0, 1)
    assert steps(done.err)[:4] == ["replay", "replay", "environment", "compare"]
    assert "Different weights: proven by experiment" in done.err
    verdict = read_verdict(tmp_path / "incident" / "result")
    assert verdict.causes[0].confirmation is not None
    assert verdict.causes[0].confirmation.state == "confirmed"
    for name in ("postmortem.html", "postmortem.md"):
        assert "proven by experiment" in (tmp_path / "incident" / name).read_text()
    before = list(made)
    again = rip(*arguments)
    assert again.code == done.code
    assert made == before  # nothing ran a second time
    assert "done before" in again.err
    (tmp_path / "new.toml").write_text('model = "m"\n')
    changed = rip(*arguments)
    assert changed.code == 2
    assert "--force" in changed.err


def test_an_interruption_is_continued(
    rip: Rip, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("investigate", "old.toml", "new.toml", "--requests", "s.jsonl", "-o", "incident")
    run = experiment.run_isolated

    def interrupted(command: list[str], *rest: Any) -> ErrorReport | None:
        if made:
            raise KeyboardInterrupt
        return run(command, *rest)

    monkeypatch.setattr(experiment, "run_isolated", interrupted)
    assert rip(*arguments).code == 130
    monkeypatch.setattr(experiment, "run_isolated", run)
    assert rip(*arguments).code in (0, 1)
    assert made.count("a.parquet") == made.count("b.parquet") == 1


def test_two_traces_need_no_requests_and_equal_ones_no_experiment(
    rip: Rip, made: list[str], tmp_path: Path
) -> None:
    for name in "ab":
        done = rip("replay", "s.jsonl", "--model", "m", "--set", "threads=1", "-o", f"{name}.parquet")
        assert done.code == 0
    done = rip("investigate", "a.parquet", "b.parquet", "-o", "incident")
    assert done.code == 0
    assert made == []
    assert "bitwise equal" in done.err
    assert (tmp_path / "incident" / "postmortem.md").is_file()


def test_two_fingerprints_run_with_what_they_differ_in(rip: Rip, tmp_path: Path) -> None:
    for name, model in (("base", "m"), ("now", "m2")):
        assert rip("fingerprint", "--model", model, "-o", f"{name}.json").code == 0
    done = rip(
        "investigate",
        "base.json",
        "now.json",
        "--requests",
        "s.jsonl",
        "--set",
        "threads=1",
        "-o",
        "incident",
    )
    assert done.code in (0, 1)
    assert "Different weights: proven by experiment" in done.err
    assert str(tmp_path / "m2") in (tmp_path / "incident" / "b.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("old.toml", "s.parquet"), "A is a lane and B a trace"),
        (("old.toml", "new.toml"), "--requests"),
        (("a.parquet", "b.parquet", "--requests", "s.jsonl"), "traces hold their requests"),
        (("old.toml", "new.toml", "--requests", "s.jsonl", "-o", "m"), "holds something else"),
        (("old.toml", "none.toml", "--requests", "s.jsonl"), "cannot be read"),
    ],
)
def test_what_cannot_be_investigated_is_said(rip: Rip, arguments: tuple[str, ...], message: str) -> None:
    done = rip("investigate", *arguments)
    assert done.code == 2
    assert message in done.err
    assert "fix: " in done.err
