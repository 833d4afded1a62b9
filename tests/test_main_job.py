"""The main job through the command line, on the real model: record, replay, compare, report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.batch_kernels import sum_by_batch
from rip.cli import app
from rip.commands.demo import REQUESTS
from rip.replay.request.expected_answer import first_difference
from typer.testing import CliRunner

pytestmark = pytest.mark.model

MAX_TOKENS = 40


def rip(*words: object) -> tuple[int, str]:
    """Exit code and stdout of one command."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.fixture(scope="module", autouse=True)
def kernels_by_batch() -> Iterator[None]:
    """A batch differs from its sequences run alone on every machine, and only where there is a batch."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        sum_by_batch(monkeypatch)
        yield


@pytest.fixture(scope="module")
def traces(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four requests replayed alone, alone again, and in one batch of eight; in bfloat16."""
    folder = tmp_path_factory.mktemp("main-job")
    for index, text in enumerate(REQUESTS[:4]):
        sampling = ("--sampling", "temperature=0", "--sampling", f"max_tokens={MAX_TOKENS}")
        words = ("--chat", text * 3, "--id", f"r{index}", *sampling, "-o", folder / "set.jsonl")
        assert rip("envelope", "create", "--model", smollm2, *words)[0] == 0
    replay = ("replay", folder / "set.jsonl", "--model", smollm2, "--set", "dtype=bfloat16")
    assert rip(*replay, "-o", folder / "alone.parquet")[0] == 0
    assert rip(*replay, "-o", folder / "again.parquet")[0] == 0
    batched = ("--set", "batch_size=4", "--neighbours", 4)
    assert rip(*replay, *batched, "-o", folder / "batched.parquet")[0] == 0
    return folder


def diverge(folder: Path, a: str, b: str, *more: object) -> tuple[int, dict[str, Any]]:
    code, text = rip("diverge", folder / a, folder / b, "-o", folder / f"{a}-{b}", "--json", "--force", *more)
    return code, json.loads(text)


def tokens_of(trace: Path) -> dict[str, list[int]]:
    """Generated tokens by request, read without rip."""
    import pyarrow.parquet as pq

    table = pq.read_table(trace, columns=["request_id", "step", "token_id"]).to_pylist()
    found: dict[str, list[int]] = {}
    for row in table:
        if row["step"] is not None:
            found.setdefault(row["request_id"], []).append(row["token_id"])
    return found


def test_two_identical_replays_are_equal_bit_for_bit(traces: Path) -> None:
    code, verdict = diverge(traces, "alone.parquet", "again.parquet")
    assert code == 0
    assert verdict["schema"] == "rip.verdict/3"
    assert verdict["level"] == "bitwise"
    assert verdict["first_token"] is None
    assert verdict["first_site"] is None
    assert verdict["causes"] == []
    assert verdict["compared"]["rows"] > 100_000
    assert verdict["compared"]["rows_differing"] == 0


def test_a_batch_of_eight_differs_and_the_first_token_is_what_a_plain_loop_finds(traces: Path) -> None:
    code, verdict = diverge(traces, "alone.parquet", "batched.parquet", "--html", traces / "report.html")
    alone, batched = tokens_of(traces / "alone.parquet"), tokens_of(traces / "batched.parquet")
    diverging = {
        name: step for name in alone if (step := first_difference(alone[name], batched[name])) is not None
    }
    assert verdict["levels"]["bitwise"]["state"] == "fails"
    assert verdict["first_site"]["is_origin"]
    assert code == (1 if diverging else 0)
    assert verdict["compared"]["sequences_diverging"] == len(diverging)
    if diverging:
        name, step = min(diverging.items(), key=lambda found: found[1])  # the earliest step says most
        first = verdict["first_token"]
        assert (first["request_id"], first["step"]) == (name, step)
        assert (first["token_a"], first["token_b"]) == (alone[name][step], batched[name][step])
    assert "batch" in " ".join(cause["id"] for cause in verdict["causes"])
    assert "</html>" in (traces / "report.html").read_text(encoding="utf-8")


def test_the_command_that_confirms_the_cause_gives_the_numbers_of_a_again(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(traces)
    _, text = rip("diverge", "alone.parquet", "batched.parquet", "-o", "why", "--json", "--force")
    batch = next(cause for cause in json.loads(text)["causes"] if cause["id"] == "batch-shape")
    commands = [batch["confirm"]["argv"], batch["confirm"]["then"]]
    assert [command[:2] for command in commands] == [["rip", "replay"], ["rip", "diverge"]]
    assert rip(*commands[0][1:])[0] == 0
    code, text = rip(*commands[1][1:], "--json")
    assert (code, json.loads(text)["level"]) == (0, "bitwise")


def test_forcing_a_run_s_own_tokens_gives_its_numbers_again(traces: Path, smollm2: Path) -> None:
    forced = traces / "forced.parquet"
    golden = ("--mode", "golden-decode", "--golden", traces / "alone.parquet")
    assert (
        rip(
            "replay",
            traces / "set.jsonl",
            "--model",
            smollm2,
            "--set",
            "dtype=bfloat16",
            *golden,
            "-o",
            forced,
        )[0]
        == 0
    )
    code, verdict = diverge(traces, "alone.parquet", "forced.parquet")
    assert code == 0
    assert verdict["level"] == "bitwise"


def test_the_golden_path_keeps_every_position_comparable(traces: Path, smollm2: Path) -> None:
    forced = traces / "forced-batch.parquet"
    golden = ("--mode", "golden-decode", "--golden", traces / "alone.parquet", "--set", "batch_size=4")
    words = ("replay", traces / "set.jsonl", "--model", smollm2, "--set", "dtype=bfloat16")
    assert rip(*words, *golden, "-o", forced)[0] == 0
    _, verdict = diverge(traces, "alone.parquet", "forced-batch.parquet")
    assert verdict["first_token"] is None, "all tokens are equal: they were forced"
    [why] = [one for one in verdict["levels"]["token"]["why"] if one["kind"] == "tokens forced"]
    assert why["forced"] == why["generated"] > 0
    assert verdict["levels"]["bitwise"]["state"] == "fails"
    positions = rip("query", traces / "alone.parquet", "SELECT count(*) AS n FROM tokens", "--format", "csv")[
        1
    ]
    assert verdict["compared"]["positions"] == int(positions.split()[1])
