"""The commands of a postmortem: all of them work in the one folder that the document names."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from fakes.command_line import Rip
from fakes.traces import disturb, header, llama_sites, sequence, write_trace
from rip.diverge.causes.commands import Commands
from rip.diverge.compare import diverge
from rip.diverge.present.report.build import write_report
from rip.diverge.present.report.reading.traces import find_sources
from rip.diverge.result_folder import read_verdict
from rip.schemas.findings.statement import Command
from rip.schemas.fingerprint import Fingerprint, Section, fact

SITES = llama_sites(2)
STATED = re.compile(r"Run all commands in `([^`]+)`")


def commands_of(markdown: str) -> list[str]:
    """Every command of a document, as one would paste it."""
    blocks = re.findall(r"```console\n(.*?)```", markdown, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]
    return list(dict.fromkeys(lines))


def pasted(rip: Rip, line: str) -> list[int]:
    """The exit codes of a line of commands."""
    return [rip(*shlex.split(command)[1:]).code for command in line.split("; ")]


def test_every_command_of_a_real_report_runs_in_the_folder_it_names(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replays ran in one folder, the comparison in another, the report is made in a third."""
    rip = Rip(monkeypatch, capsys)
    incident, elsewhere = tmp_path / "incident", tmp_path / "elsewhere"
    (incident / "runs").mkdir(parents=True)
    elsewhere.mkdir()
    shutil.copytree(tiny_model, incident / "model")
    request = {
        "request_id": "r",
        "prompt_token_ids": [10, 20, 30],
        "sampling": {"temperature": 0, "max_tokens": 6, "ignore_eos": True},
    }
    monkeypatch.chdir(incident / "runs")
    Path("r.json").write_text(json.dumps(request))
    for dtype in ("float32", "bfloat16"):
        lane = ("--lane", dtype, "--set", f"dtype={dtype}", "-o", f"{dtype}.parquet")
        assert rip("replay", "r.json", "--model", "../model", *lane).code == 0
    monkeypatch.chdir(incident)
    traces = ("runs/float32.parquet", "runs/bfloat16.parquet")
    assert rip("diverge", *traces, "-o", "result", "--require", "bitwise").code == 1
    monkeypatch.chdir(elsewhere)
    assert rip("report", "../incident/result", "-o", "r.md").code == 0
    markdown = Path("r.md").read_text()
    stated = STATED.findall(markdown)
    assert set(stated) == {str(incident)}
    commands = commands_of(markdown)
    confirming = [line for line in commands if "try-dtype" in line]
    assert confirming
    assert any("a-again.parquet" in line for line in commands)
    monkeypatch.chdir(stated[0])
    codes = {line: pasted(rip, line) for line in commands}
    assert [line for line, ended in codes.items() if set(ended) - {0, 1}] == []
    assert codes[confirming[0]] == [0, 0]  # with A's dtype B is A
    again = next(line for line in commands if "a-again.parquet" in line)
    assert codes[again] == [0, 0]


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An incident's folder: two traces and a result, named from within it."""
    home = tmp_path / "incident"
    home.mkdir()
    monkeypatch.chdir(home)
    other = sequence(1, len(SITES))
    disturb(other, 5, 3)
    other.tokens[8] = 7
    write_trace(Path("a.parquet"), [sequence(1, len(SITES))], header(SITES))
    write_trace(Path("b b.parquet"), [other], header(SITES))
    diverge(Path("a.parquet"), Path("b b.parquet"), Path("result"))
    return home


def test_from_any_folder_the_same_commands_and_the_same_folder(
    compared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(Path("result"), compared / "here.md", form="markdown")
    monkeypatch.chdir(compared.parent)
    write_report(compared / "result", compared / "there.md", form="markdown")
    here, there = (compared / "here.md").read_text(), (compared / "there.md").read_text()
    assert here == there
    assert set(STATED.findall(here)) == {str(compared)}
    assert "rip diverge a.parquet 'b b.parquet' -o result --force" in commands_of(here)


def test_an_incident_that_moved_as_a_whole_names_its_new_folder(compared: Path, tmp_path: Path) -> None:
    new = tmp_path / "archive"
    shutil.move(compared, new)
    write_report(new / "result", tmp_path / "r.md", form="markdown")
    text = (tmp_path / "r.md").read_text()
    assert set(STATED.findall(text)) == {str(new)}
    assert "rip diverge a.parquet 'b b.parquet' -o result --force" in commands_of(text)


def test_a_trace_that_moved_alone_is_named_where_it_lies(compared: Path, tmp_path: Path) -> None:
    shutil.move(compared / "b b.parquet", compared / "result" / "b b.parquet")
    paths, sources = find_sources(read_verdict(compared / "result"), compared / "result")
    assert [source.path for source in sources] == ["a.parquet", "result/b b.parquet"]
    again = Command(
        purpose="rerun",
        argv=["rip", "replay", "b b.parquet", "-o", "try.parquet"],
        then=["rip", "diverge", "a.parquet", "try.parquet"],
    )
    assert paths.command(again) == (
        "rip replay 'result/b b.parquet' -o try.parquet; rip diverge a.parquet try.parquet"
    )
    show = Command(purpose="show", argv=["rip", "query", "old", "SELECT 1"])
    assert paths.command(show) == "rip query result 'SELECT 1'"
    # A document of version 1 holds the command as text only.
    assert paths.command(Command(purpose="not known", text="rip query old")) == "rip query old"


def test_a_model_is_named_by_its_whole_path_where_the_replay_ran_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    model = {"path": fact(str(tmp_path / "models" / "m"), "rip")}
    seen = Fingerprint.build("0", "2026-01-01T00:00:00Z", {"model": Section(volatile=model)})
    about = header([], lane={"name": "l", "engine": "hf", "model": "m"}, fingerprint=seen.to_object())

    def name(folder: Path) -> str:
        argv = Commands("a.parquet", "b.parquet", "r", about, about, folder=folder).replay().argv
        return argv[argv.index("--model") + 1]

    assert name(tmp_path / "models") == "m"
    assert name(tmp_path) == str(tmp_path / "models" / "m")
    shutil.rmtree(tmp_path / "models")
    assert name(tmp_path) == "m"  # gone: as it was called
