"""Two lanes as settings by name: where they differ, and the command that runs a mixture of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from rip.experiments.lanes.isolated import isolated_command
from rip.experiments.lanes.request import LaneRequest
from rip.experiments.settings_search.mixtures import Mixture, Prepared, RunOptions
from rip.experiments.settings_search.two_lanes import Varied, parse_vary, with_values
from rip.schemas.command_line import shell_line
from rip.schemas.errors import BadInput


def prepared(engine: str = "vllm", **values: str) -> Prepared:
    return Prepared(engine, {name.replace("__", "."): value for name, value in values.items()})


def line(mixture: Mixture, *on: str, shown: bool = False) -> str:
    """The `rip replay` of a configuration."""
    return shell_line(mixture.command(on, RunOptions(Path("r.json")), "t.parquet", shown).arguments())


def test_a_mixture_runs_as_its_lanes_would() -> None:
    good = prepared("hf", model="m", dtype="float32", env__A="1", neighbours="7")
    bad = prepared("hf", model="m", dtype="bfloat16", python="other/python")
    mixture = Mixture.of(good, bad)
    assert mixture.names == ("dtype", "env.A", "neighbours", "python")
    assert line(mixture, "python", "env.A") == (
        "rip replay r.json --model m --engine hf --python other/python --neighbours 7 --set dtype=float32 "
        "-o t.parquet"
    )
    assert "--set env.A=1" in line(mixture)
    assert isolated_command(["replay"]) == [sys.executable, "-P", "-m", "rip", "replay"]


def test_a_setting_may_be_spelled_in_two_ways() -> None:
    good = Prepared("vllm", {"max-model-len": "1", "seed": "1"})
    bad = Prepared("vllm", {"max_model_len": "2", "seed": "1"})
    mixture = Mixture.of(good, bad)
    assert mixture.names == ("max-model-len",)
    assert "--set max-model-len=2 --set seed=1" in line(mixture, "max-model-len")


def test_another_model_is_allowed_to_be_another() -> None:
    mixture = Mixture.of(prepared(model="old"), prepared(model="new"))
    assert "--allow-drift" in line(mixture)
    same = Mixture.of(prepared(model="m", a="1"), prepared(model="m", a="2"))
    assert "--allow-drift" not in line(same)


def test_what_may_be_a_secret_is_in_no_result() -> None:
    mixture = Mixture.of(prepared(env__API_KEY="hush", a="1"), prepared(env__API_KEY="psst"))
    assert "hush" in line(mixture)
    assert "hush" not in line(mixture, shown=True)
    shown = repr(mixture.varied())
    assert "hush" not in shown
    assert "psst" not in shown


def test_varied_settings_replace_those_of_the_lane() -> None:
    settings = ("max-model-len=1", "a=1", "env.X_Y=1")
    lane = LaneRequest("n", "vllm", "m", settings=settings, neighbours="7")
    changes = [("max_model_len", "2"), ("a", ""), ("env.X_Y", "2"), ("neighbours", ""), ("python", "p")]
    changed = with_values(lane, changes)
    assert changed.settings == ("max_model_len=2", "env.X_Y=2")
    assert (changed.neighbours, changed.python) == (None, "p")
    assert parse_vary(["a=:b"]) == [Varied("a", "", "b")]


def test_lanes_must_agree_in_what_cannot_be_varied() -> None:
    tapped: dict[str, Any] = {"engine": "vllm", "values": {"a": "1"}}
    with pytest.raises(BadInput, match="api_key_env or tap"):
        Mixture.of(Prepared(**tapped, tap="x"), Prepared(**tapped, tap="y"))
