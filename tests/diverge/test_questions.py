"""Named questions of `rip query`: each runs on a real trace and on a real comparison, and is documented."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.command_line import Rip
from rip.diverge.views.questions import QUESTIONS

DOCS = Path(__file__).parents[2] / "docs" / "queries.md"
OF = [(name, over) for name, question in QUESTIONS.items() for over in question.by_input]
WITHOUT_ROWS = {
    ("first-divergence", "result"): "the tokens are equal",
    ("near-ties", "result"): "no choice is that close",
    ("causes", "result"): "the tokens are equal",
    ("changes", "result"): "both lanes ran in one environment",
    ("slowest", "trace"): "no server was called",
    ("repeats", "trace"): "the engine repeats itself",
    ("unlikely-tokens", "trace"): "greedy decoding takes the most likely token",
}


@pytest.fixture(scope="module")
def folder(tiny_models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`t.parquet` with two repeats, and `result`: it against a run whose dtype differs."""
    from rip.cli import app
    from typer.testing import CliRunner

    def rip(*words: object) -> None:
        done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert done.exit_code in (0, 1), done.output

    path = tmp_path_factory.mktemp("questions")
    sampling = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    lines = [
        {"request_id": f"r{index}", "prompt_token_ids": [index + 1, 20, 30, 40], "sampling": sampling}
        for index in range(3)
    ]
    (path / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay = ("replay", path / "set.jsonl", "--model", tiny_models("llama"), "--set", "threads=1")
    rip(*replay, "--repeat", 2, "-o", path / "t.parquet")
    rip(*replay, "--repeat", 2, "--set", "dtype=float16", "-o", path / "half.parquet")
    rip("diverge", path / "t.parquet", path / "half.parquet", "-o", path / "result")
    return path


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rip:
    return Rip(monkeypatch, capsys)


@pytest.mark.parametrize(("name", "over"), OF)
def test_every_question_runs_on_what_it_is_about(rip: Rip, folder: Path, name: str, over: str) -> None:
    path = folder / {"result": "result", "trace": "t.parquet"}[over]
    done = rip("query", path, "--ask", name, "--format", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["columns"]
    assert found["rows"] or (name, over) in WITHOUT_ROWS
    assert rip("query", "--ask", name, path, "--format", "json").out == done.out


def test_a_question_finds_what_it_is_for(rip: Rip, folder: Path) -> None:
    rows = json.loads(rip("query", folder / "result", "--ask", "drift-by-layer", "--format", "json").out)[
        "rows"
    ]
    assert [row["layer"] for row in rows] == [0, 1, 2]
    shapes = json.loads(rip("query", folder / "t.parquet", "--ask", "batch-shapes", "--format", "json").out)
    assert [(row["phase"], row["num_tokens"]) for row in shapes["rows"]] == [("decode", 1), ("prompt", 4)]


def test_without_a_name_the_questions_are_listed_and_with_one_alone_its_sql(rip: Rip) -> None:
    listed = rip("query", "--ask")
    assert all(re.search(rf"^  {name} +\S", listed.out, re.MULTILINE) for name in QUESTIONS)
    assert max(map(len, listed.out.splitlines())) <= 80
    assert QUESTIONS["slowest"].by_input["trace"] in rip("query", "--ask", "slowest").out


def test_a_question_that_is_none_or_about_another_file_is_refused(rip: Rip, folder: Path) -> None:
    wrong = rip("query", folder / "t.parquet", "--ask", "causes")
    assert (wrong.code, "causes is a question about a result" in wrong.err) == (2, True)
    unknown = rip("query", folder / "t.parquet", "--ask", "meaning")
    assert (unknown.code, "no question 'meaning'" in unknown.err) == (2, True)
    assert rip("query").code == 2


def test_the_documentation_lists_every_question() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert rows[1:] == [(name, ", ".join(one.by_input), one.answers) for name, one in QUESTIONS.items()]
