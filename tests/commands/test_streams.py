"""What the exit code says when the reader of the output goes away, the disk is full, or --debug is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "trace-v1.parquet"


def rip(*words: object, stdout: int | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from rip.cli import main; main()", *map(str, words)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def changed_fingerprint(folder: Path) -> tuple[Path, Path]:
    base, now = folder / "base.json", folder / "now.json"
    rip("fingerprint", "-o", base)
    environment = {**os.environ, "NCCL_ALGO": "Ring"}
    command = [sys.executable, "-c", "from rip.cli import main; main()", "fingerprint", "-o", str(now)]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return base, now


@pytest.mark.parametrize("how", [(), ("--json",)], ids=["table", "json"])
def test_a_closed_pipe_does_not_turn_a_change_into_a_pass(tmp_path: Path, how: tuple[str, ...]) -> None:
    base, now = changed_fingerprint(tmp_path)
    assert rip("drift", base, now, *how, stdout=closed_pipe()).returncode == 1
    assert rip("drift", base, base, *how, stdout=closed_pipe()).returncode == 0


def test_files_are_written_although_nobody_reads_the_summary(tmp_path: Path) -> None:
    result, html = tmp_path / "result", tmp_path / "report.html"
    words = ["diverge", GOLDEN, GOLDEN, "-o", result, "--html", html, "--json"]
    command = [sys.executable, "-c", "from rip.cli import main; main()", *map(str, words)]
    pipe = closed_pipe()
    assert subprocess.run(command, stdout=pipe, stderr=pipe, check=False).returncode == 0
    assert (result / "summary.json").is_file()
    assert html.is_file()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_are_closed_from_the_start_change_nothing(tmp_path: Path, closed: str) -> None:
    out = tmp_path / "result"
    command = f"exec '{sys.executable}' -m rip diverge '{GOLDEN}' '{GOLDEN}' -o '{out}' --json {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert (out / "summary.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_an_error_with_a_mend() -> None:
    with open("/dev/full", "wb") as full:
        done = rip("fingerprint", stdout=full.fileno())
    assert done.returncode == 2
    assert b"No space left" in done.stderr
    assert b"fix: free disk space" in done.stderr
    assert b"Traceback" not in done.stderr


def test_debug_shows_the_traceback_and_keeps_the_exit_code(tmp_path: Path) -> None:
    plain = rip("drift", tmp_path / "no.json", tmp_path / "no.json")
    debug = rip("drift", tmp_path / "no.json", tmp_path / "no.json", "--debug")
    assert (plain.returncode, debug.returncode) == (2, 2)
    assert b"Traceback" not in plain.stderr
    assert b"Traceback" in debug.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_stderr_changes_no_exit_code(tmp_path: Path) -> None:
    def code(*words: object) -> int:
        command = [sys.executable, "-m", "rip", *map(str, words)]
        with open("/dev/full", "wb") as full:
            return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, check=False).returncode

    assert code("envelope", "check", tmp_path / "none.json") == 2
    assert code("query", GOLDEN, "SELECT 1 AS x", "-o", tmp_path / "rows.csv") == 0
    assert (tmp_path / "rows.csv").read_text() == "x\n1\n"


def test_an_ascii_stdout_gets_json_that_says_the_same() -> None:
    command = [
        sys.executable,
        "-m",
        "rip",
        "query",
        str(GOLDEN),
        "SELECT chr(128512) AS x",
        "--format",
        "json",
    ]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["rows"] == [{"x": "\U0001f600"}]


@pytest.mark.parametrize("command", ["diverge", "query", "report", "replay", "envelope check"])
def test_no_name_is_a_fault_of_rip(tmp_path: Path, command: str) -> None:
    for name in ("A" * 300, tmp_path, "/dev/null" if command != "replay" else tmp_path):
        second = {"diverge": [GOLDEN], "query": ["SELECT 1"], "replay": ["--engine", "hf"]}.get(command, [])
        done = rip(*command.split(), name, *second)
        assert done.returncode == 2, done.stderr
        assert b"unexpected" not in done.stderr


def test_a_value_that_python_has_no_type_for_is_refused_in_words() -> None:
    done = rip("query", GOLDEN, "SELECT * FROM test_all_types()")
    assert done.returncode == 2
    assert b"CAST" in done.stderr
