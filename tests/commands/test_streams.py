"""What the exit code says when the reader of the output goes away, the disk is full, or --debug is given."""

from __future__ import annotations

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
