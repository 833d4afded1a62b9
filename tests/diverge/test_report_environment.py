"""What a postmortem says of the environment, and of a result folder that is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.traces import disturb, header, llama_sites, sequence, write_trace
from rip.diverge.compare import diverge
from rip.diverge.present.report.build import write_report
from rip.diverge.present.report.environment import where_it_ran
from rip.diverge.present.report.environment_changes import group_by_rule
from rip.diverge.present.report.reading.traces import find_sources
from rip.schemas.change import Change
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fingerprint, Section, fact, unavailable
from rip.schemas.trace import TraceHeader

SITES = llama_sites(2)


def written(folder: Path, form: str) -> str:
    """The report of `result`, as HTML or Markdown."""
    out = folder / f"r.{form}"
    write_report(folder / "result", out, form="html" if form == "html" else "markdown")
    return out.read_text()


def test_it_says_where_both_ran_and_what_was_not_recorded(tmp_path: Path) -> None:
    def about(dtype: str, torch: str) -> TraceHeader:
        sections = {
            "cpu": Section(facts={"model": fact("EPYC", "cpuinfo"), "logical_cpus": fact(2, "os")}),
            "frameworks": Section(
                facts={"torch": fact(torch, "pip"), "transformers": fact({"version": "5.1"}, "pip")}
            ),
            "gpus": Section(facts={"name": unavailable("no driver", "nvml")}),
            "model": Section(facts={"sha256": fact("ab" * 32, "file")}),
        }
        seen = Fingerprint.build("0", "2026-01-01T00:00:00Z", sections)
        settings = {
            "dtype": {"resolved": dtype, "observed": dtype, "source": "lane"},
            "threads": {"resolved": 2, "source": "engine default"},
            "padding_side": {"resolved": "left", "source": "engine default"},
            "batch_size": {"resolved": 1 if dtype == "float32" else 8, "source": "lane"},
            "arrival": {"source": "engine default"},
        }
        lane = {"name": dtype, "engine": "hf", "model": "m", "settings": settings}
        return header(SITES, lane=lane, fingerprint=seen.to_object())

    parted = sequence(1, len(SITES))
    parted.tokens[8] = 7
    write_trace(tmp_path / "a.parquet", [sequence(1, len(SITES))], about("float32", "2.13"))
    write_trace(tmp_path / "b.parquet", [parted], about("bfloat16", "2.14"))
    verdict = diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "result")
    _, sources = find_sources(verdict, tmp_path / "result")
    found = where_it_ran(sources)
    rows = {name: (left, right) for name, left, right in found.rows}
    assert rows["CPU"] == ("EPYC, 2 logical CPUs",) * 2
    assert rows["GPU"] == ("none found",) * 2
    assert rows["torch"] == ("2.13", "2.14")
    assert rows["transformers"] == ("5.1", "5.1")
    assert rows["model"] == ("m, SHA-256 abababababab…",) * 2
    assert rows["dtype"] == ("float32", "bfloat16")
    assert rows["threads"] == ("2", "2")
    assert rows["batch_size"] == ("1", "8")
    assert ("padding_side", "left") in found.equal
    assert {"operating system", "python", "attention", "arrival"} <= set(found.unknown)
    html, markdown = (written(tmp_path, form) for form in ("html", "md"))
    assert "<strong>Not recorded:</strong>" in html
    assert "| **torch** | `2.13` | `2.14` |" in markdown
    assert "· threads `2`" in markdown
    assert "| threads |" not in markdown
    (tmp_path / "b.parquet").unlink()
    assert "| **torch** | `2.13` | `trace not read` |" in written(tmp_path, "md")


def test_only_the_entries_that_differ_are_shown_of_a_reading_with_many() -> None:
    tensors = {f"layers.{index}.weight": {"blake3": "same", "shape": [index]} for index in range(300)}
    one = tensors | {"layers.7.weight": {"blake3": "other", "shape": [7]}}
    many = {name: {"blake3": "other"} for name in tensors}

    def rows(after: dict[str, Any]) -> list[tuple[str, str, str]]:
        said = {"section": "model", "field": "tensors", "risk": "semantic", "rule": "other weights"}
        sides = {"before": fact(tensors, "t"), "after": fact(after, "t")}
        return group_by_rule([Change.model_validate(said | sides)], limit=3)[0].fields

    assert rows(one) == [("model.tensors › layers.7.weight › blake3", "same", "other")]
    assert len(rows(many)) == 9
    assert rows(many)[-1] == ("model.tensors: 592 more entries", "…", "…")


def test_a_damaged_folder_is_told_with_what_makes_it_whole(tmp_path: Path) -> None:
    other = sequence(1, len(SITES))
    disturb(other, 5, 3)
    write_trace(tmp_path / "a.parquet", [sequence(1, len(SITES))], header(SITES))
    write_trace(tmp_path / "b.parquet", [other], header(SITES))
    compared = tmp_path / "result"
    diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", compared)
    whole = (compared / "summary.json").read_text()
    newer = whole.replace("rip.verdict/3", "rip.verdict/9")
    for damaged in (whole[:400], "", "[]", '{"schema": "rip.verdict/1"}'):
        (compared / "summary.json").write_text(damaged)
        with pytest.raises(BadInput) as caught:
            write_report(compared, tmp_path / "r.md", form="markdown")
        assert "run rip diverge again" in caught.value.fix
    (compared / "summary.json").write_text(newer)
    with pytest.raises(BadInput, match="newer rip") as caught:
        write_report(compared, tmp_path / "r.md", form="markdown")
    assert "upgrade" in caught.value.fix
    (compared / "summary.json").write_text(whole)
    table = compared / "tokens.parquet"
    content = bytearray(table.read_bytes())
    for place in range(8, len(content) * 2 // 3, 5):
        content[place] ^= 0x5A
    table.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        write_report(compared, tmp_path / "r.md", form="markdown")
    assert "run rip diverge again" in caught.value.fix


def test_many_settings_are_bounded_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    def about(side: str) -> TraceHeader:
        equal = {
            f"equal-{index}": {"resolved": "x" * 900, "source": "told by the server"} for index in range(300)
        }
        other = {
            f"other-{index}": {"resolved": f"{side}{'y' * 900}", "source": "told by the server"}
            for index in range(300)
        }
        return header(SITES, lane={"name": side, "engine": "vllm", "settings": equal | other})

    for side in "ab":
        write_trace(tmp_path / f"{side}.parquet", [sequence(1, len(SITES))], about(side))
    verdict = diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "result")
    found = where_it_ran(find_sources(verdict, tmp_path / "result")[1])
    assert len([row for row in found.rows if row[0].startswith("other-")]) == 60
    assert (len(found.equal), found.left_out) == (80, 240 + 220)
    assert len(written(tmp_path, "md")) < 40_000
    assert "460 settings of the two runs" in written(tmp_path, "html")
