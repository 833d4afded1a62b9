"""`rip report` as a user meets it: where it writes, both forms, errors with a fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.traces import disturb, header, llama_sites, sequence, write_trace
from rip import cli

SITES = llama_sites(2)
HOSTILE = "<script>alert(1)</script>|`x`"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two traces and, under `deep/result`, what rip diverge says of them."""
    monkeypatch.chdir(tmp_path)
    parted = sequence(1, len(SITES))
    disturb(parted, 5, 3)
    parted.tokens[8] = 7
    about = header(SITES, token_text={"7": HOSTILE})
    write_trace(tmp_path / "a.parquet", [sequence(1, len(SITES))], about)
    write_trace(tmp_path / "b.parquet", [parted], about)
    (tmp_path / "deep").mkdir()
    assert run(monkeypatch, "diverge", "a.parquet", "b.parquet", "-o", "deep/result") == 1
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["rip", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_it_writes_beside_the_folder_and_not_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(monkeypatch, "report", "deep/result") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Wrote deep/result.html\n"
    page = (folder / "deep" / "result.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert run(monkeypatch, "report", "deep/result/") == 2
    assert "exists already" in capsys.readouterr().err
    assert run(monkeypatch, "report", "deep/result", "--force") == 0


def test_force_replaces_what_a_link_leads_to_and_keeps_the_link(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kept.md").write_text("old")
    (folder / "link.md").symlink_to("kept.md")
    assert run(monkeypatch, "report", "deep/result", "-o", "link.md") == 2
    assert (folder / "kept.md").read_text() == "old"
    assert run(monkeypatch, "report", "deep/result", "-o", "link.md", "--force") == 0
    assert (folder / "link.md").is_symlink()
    assert (folder / "kept.md").read_text().startswith("# The answer differs")
    (folder / "latest").symlink_to("deep/result")
    assert run(monkeypatch, "diverge", "a.parquet", "a.parquet", "-o", "latest", "--force") == 0
    assert (folder / "latest").is_symlink()
    assert run(monkeypatch, "report", "latest", "-o", "equal.md") == 0
    assert (folder / "equal.md").read_text().startswith("# The two runs are bitwise equal")


def test_it_writes_markdown_by_the_ending_of_the_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "report", "deep/result", "-o", "p.md", "--title", "Replica 7") == 0
    text = (folder / "p.md").read_text()
    assert text.startswith("# Replica 7\n")
    assert "layers.0.mlp" in text
    assert "<script>" not in text


def test_diverge_and_report_write_the_same_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "diverge", "a.parquet", "b.parquet", "-o", "r", "--html", "one.html") == 1
    assert run(monkeypatch, "report", "r", "-o", "two.html") == 0
    assert (folder / "one.html").read_text() == (folder / "two.html").read_text()


def test_it_says_which_trace_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b.parquet").unlink()
    assert run(monkeypatch, "report", "deep/result") == 0
    assert "note: Trace B was not read (b.parquet does not exist)." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["deep/result", "-o", "p.pdf"], "end it in .html or .md"),
        (["deep"], "is not a result of rip diverge"),
        (["nowhere"], "is not a result of rip diverge"),
        (["a.parquet"], "is not a result of rip diverge"),
        (["deep/result", "-o", "nowhere/p.html"], "is not a folder"),
    ],
)
def test_bad_input_is_an_error_with_a_fix(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    assert run(monkeypatch, "report", *arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "fix: " in err
    assert "Traceback" not in err
    assert not list(folder.glob("*.html"))
