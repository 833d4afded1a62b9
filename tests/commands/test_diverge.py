"""`rip diverge` as a user meets it: exit codes, what goes where, errors without traceback."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes.traces import disturb, header, llama_sites, sequence, write_trace
from rip import cli

SITES = llama_sites(2)


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    about = header(SITES, token_text={"7": " \x1b[31m</script>"})
    equal, drifted, parted, other = (sequence(1, len(SITES)) for _ in range(4))
    disturb(drifted, 5, 3)
    parted.tokens[8] = 7
    other.request_id = "someone else"
    for name, one in {
        "a": equal,
        "same": equal,
        "drifted": drifted,
        "parted": parted,
        "other": other,
    }.items():
        write_trace(tmp_path / f"{name}.parquet", [one], about)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["rip", "diverge", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.parametrize(
    ("b", "code"), [("same", 0), ("drifted", 0), ("parted", 1), ("other", 3), ("absent", 2)]
)
def test_exit_codes(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], b: str, code: int
) -> None:
    assert run(monkeypatch, "a.parquet", f"{b}.parquet") == code
    out, err = capsys.readouterr()
    assert bool(out) == (code < 2)  # the verdict is the data
    assert "Traceback" not in err
    assert (traces / f"a-vs-{b}").is_dir() == (code < 2)
    if code >= 2:
        assert "fix: " in err
    else:
        assert f"Wrote a-vs-{b}" in err


def test_json_is_the_summary_and_alone_on_stdout(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "a.parquet", "parted.parquet", "-o", "result", "--json") == 1
    out, err = capsys.readouterr()
    assert out == (traces / "result" / "summary.json").read_text()
    said = json.loads(out)
    assert said["schema"] == "rip.verdict/3"
    assert (said["first_token"]["position"], said["first_token"]["token_b"]) == (8, 7)
    assert said["level"] is None
    assert "\x1b[31m" not in err  # token text cannot command the terminal


def test_an_earlier_result_stays_without_force(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "a.parquet", "parted.parquet") == 1
    assert run(monkeypatch, "a.parquet", "parted.parquet") == 2
    assert "--force" in capsys.readouterr().err
    assert run(monkeypatch, "a.parquet", "same.parquet", "-o", "a-vs-parted", "--force") == 0
    assert json.loads((traces / "a-vs-parted" / "summary.json").read_text())["level"] == "bitwise"


def test_a_full_disk_leaves_nothing_behind(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    before = sorted(traces.iterdir())
    assert run(monkeypatch, "a.parquet", "drifted.parquet") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert sorted(traces.iterdir()) == before


def test_the_report_is_written_beside(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    assert (
        run(monkeypatch, "a.parquet", "drifted.parquet", "--html", "report.html", "--tolerance", "0.5") == 0
    )
    assert "<html" in (traces / "report.html").read_text()


def test_no_trace_is_overwritten_by_a_report_or_a_result(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (traces / "a.parquet").read_bytes()
    assert run(monkeypatch, "a.parquet", "drifted.parquet", "--html", "a.parquet", "--force") == 2
    assert "not the name of an HTML file" in capsys.readouterr().err
    assert run(monkeypatch, "a.parquet", "drifted.parquet", "-o", ".", "--force") == 2
    assert "not a name of a folder" in capsys.readouterr().err
    assert (traces / "a.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("b", "level", "code"),
    [
        ("same", ("bitwise",), 0),
        ("drifted", ("bitwise",), 1),
        ("drifted", ("token",), 0),
        ("drifted", ("numeric", "--tolerance", "0.5"), 0),
        ("drifted", ("numeric",), 2),
        ("parted", ("semantic",), 1),
        ("same", ("exact",), 2),
    ],
)
def test_another_level_can_be_required(
    traces: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    b: str,
    level: tuple[str, ...],
    code: int,
) -> None:
    assert run(monkeypatch, "a.parquet", f"{b}.parquet", "--require", *level) == code
    if code == 2:
        assert "fix: " in capsys.readouterr().err


def test_equal_says_how_much_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one = sequence(1, len(SITES))
    write_trace(tmp_path / "whole.parquet", [one], header(SITES))
    write_trace(tmp_path / "filtered.parquet", [one], header(SITES, site_filter="mlp"))
    run(monkeypatch, "whole.parquet", "whole.parquet", "-o", "r1")
    assert "The two runs are bitwise equal" in capsys.readouterr().out
    run(monkeypatch, "whole.parquet", "filtered.parquet", "-o", "r2", "--verbose")
    out = capsys.readouterr().out
    assert "bitwise equal" not in out
    assert "No difference found: tokens, logits and" in out
    assert "Look closer:" not in out


def test_layers_that_were_not_observed_are_not_drawn_as_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    upper = [site for site in SITES if site.name.startswith("layers.1")]
    one, other = sequence(1, len(upper)), sequence(1, len(upper))
    disturb(other, 5, 0)
    write_trace(tmp_path / "a.parquet", [one], header(upper))
    write_trace(tmp_path / "b.parquet", [other], header(upper))
    run(monkeypatch, "a.parquet", "b.parquet", "--verbose")
    out = capsys.readouterr().out
    assert "layer 0 … 1  ?" in out
    assert "? not observed" in out
