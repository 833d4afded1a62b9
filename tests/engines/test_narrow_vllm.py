"""`rip narrow` on real vLLM: a search on a server that runs, what is refused first, a started one's end.

A whole search with started servers is not here: four runs and more of over half a minute each. docs/narrow.md
shows one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rip.schemas.narrow import Narrow

from .conftest import VLLM_SETTINGS, Server, rip


def test_the_batch_is_named_and_not_a_setting_that_does_nothing(
    vllm: Server, smollm2: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    lane = ("--engine", "vllm", "--url", vllm.url, "--model", smollm2, "--capture", "tokens")
    # Bits, not tokens: whether rounding flips a token of these prompts depends on the CPU.
    varied = ("--vary", "batch_size=1:8", "--vary", "timeout=600:500", "--require", "bitwise")
    said = rip("narrow", request_set(8), *lane, *varied, "-o", out, "--json")
    bad = [one.outcome for one in Narrow.from_json(said.out, "stdout").configurations if one.name == "bad"]
    if bad == ["same"]:
        assert said.code == 1
        pytest.skip("on this CPU eight requests together have the same bits as alone")
    assert said.code == 0, said.err
    assert "batch_size=8 alone turns the divergence on" in said.err
    found = Narrow.from_json(said.out, "stdout")
    assert [one.settings for one in found.found] == [["batch_size"]]
    outcomes = {one.name: one.outcome for one in found.configurations}
    assert (outcomes["good"], outcomes["with-timeout"]) == ("same", "same")


def lane_file(folder: Path, python: Path, model: Path) -> Path:
    """A lane whose server is started."""
    stated = {name: value for name, value in VLLM_SETTINGS.items() if not name.startswith("env.")}
    variables = {name.removeprefix("env."): value for name, value in VLLM_SETTINGS.items() if "env." in name}
    fields = {"engine": "vllm", "model": str(model), "python": str(python)}
    tables = [("", fields), ("[set]", stated), ("[env]", variables)]
    lines = [
        line
        for title, values in tables
        for line in (title, *(f"{name} = {json.dumps(value)}" for name, value in values.items()))
    ]
    path = folder / "vllm.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_argument_that_vllm_does_not_have_is_told_before_any_server_runs(
    vllm_python: Path, smollm2: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    lane = lane_file(tmp_path, vllm_python, smollm2)
    vary = ("--vary", "max-num-seqs=4:many")
    said = rip("narrow", request_set(1), "--good", lane, *vary, "-o", tmp_path / "out")
    assert said.code == 2
    assert "--vary max-num-seqs=4:many (many): vLLM refuses it: argument --max-num-seqs: invalid" in said.err
    assert not (tmp_path / "out").exists()


def test_ctrl_c_stops_the_server_that_a_run_started(
    vllm_python: Path, smollm2: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    lane = lane_file(tmp_path, vllm_python, smollm2)
    out = tmp_path / "out"
    line = ["narrow", request_set(1), "--good", lane, "--vary", "env.OMP_NUM_THREADS=1:2", "-o", out]
    with subprocess.Popen(
        [sys.executable, "-m", "rip", *map(str, line)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        log = out / "good.parquet.server.log"
        while not log.exists() or not log.stat().st_size:  # the server speaks
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert not servers_of(lane.parent), "none outlives the command"
    assert Narrow.from_json((out / "narrow.json").read_bytes(), "narrow.json").state == "unfinished"


def servers_of(folder: Path) -> list[str]:
    """Command lines of processes whose output goes into a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "fd" / "1").startswith(str(folder)):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
    return found
