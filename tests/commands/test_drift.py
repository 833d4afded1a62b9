"""`rip drift`, `rip fingerprint --against`, `--read` and `--export` as a user meets them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import sys
from pathlib import Path

import pytest
from fakes.command_line import Done, Rip
from rip.schemas.fingerprint import Fact, Fingerprint, Section, fact

PASTED = Path(__file__).parent.parent / "fingerprint" / "pasted"


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rip:
    return Rip(monkeypatch, capsys)


def write(path: Path, **fields: object) -> Path:
    """A fingerprint of `section__field=value`."""
    sections: dict[str, dict[str, Fact]] = {}
    for name, value in fields.items():
        section, _, field = name.partition("__")
        sections.setdefault(section, {})[field] = value if isinstance(value, Fact) else fact(value, "test")
    built = {name: Section(facts=facts) for name, facts in sections.items()}
    path.write_text(Fingerprint.build("0.1.0", "2026-07-14T09:30:00+00:00", built).to_json())
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(
        tmp_path / "base.json",
        os__kernel="6.1",
        engine__name="vllm",
        engine__version="0.10.2",
        tokenizer__sha256="ab" * 32,
        zoo__animals=3,
    )


@pytest.fixture
def now(tmp_path: Path) -> Path:
    return write(
        tmp_path / "now.json",
        os__kernel="6.2",
        engine__name="vllm",
        engine__version="0.11.0",
        tokenizer__sha256="cd" * 32,
        zoo__animals=4,
    )


def test_changes_are_shown_by_risk_with_reason_and_what_to_replay(rip: Rip, base: Path, now: Path) -> None:
    done = rip("drift", base, now)
    assert done.code == 1
    changes = [line for line in done.out.splitlines() if line.endswith("]") and "→" in line]
    assert [line.partition(":")[0] for line in changes] == [
        "tokenizer.sha256",
        "engine.version",
        "zoo.animals",
        "os.kernel",
    ]
    assert [line.rpartition("[")[2] for line in changes] == ["semantic]", "bitwise]", "no rule]", "none]"]
    assert "why: promised only for the same hardware and the same engine version (vLLM, Repr" in done.out
    assert "to know: on both sides `rip replay" in done.out
    assert "no rule, replay to know" in done.out
    assert "4 changes (semantic 1, bitwise 1, no rule 1, none 1)." in done.out


def test_nothing_changed(rip: Rip, base: Path) -> None:
    assert rip("drift", base, base) == Done(0, "no change\n", "")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 1),
        (["--fail-on", "semantic"], 1),
        (["--fail-on", "semantic", "--ignore", "tokenizer.*"], 1),  # zoo.animals has no rule
        (["--fail-on", "semantic", "--ignore", "tokenizer.*", "--ignore", "zoo.*"], 0),
        (["--fail-on", "numeric", "--ignore", "tokenizer.*", "--ignore", "zoo.*"], 0),
        (["--fail-on", "bitwise", "--ignore", "tokenizer.*", "--ignore", "zoo.*"], 1),
        (["--ignore", "tokenizer.*", "--ignore", "zoo.*", "--ignore", "engine.version"], 1),
        (["--fail-on", "bitwise", "--ignore", "tokenizer.*", "--ignore", "zoo.*", "--ignore", "engine.*"], 0),
        (["--ignore", "*"], 0),
    ],
)
def test_what_fails_a_check_can_be_chosen(
    rip: Rip, base: Path, now: Path, options: list[str], code: int
) -> None:
    assert rip("drift", base, now, *options).code == code
    assert rip("fingerprint", "--read", now, "--against", base, *options).code == code


def test_ignored_changes_are_still_named(rip: Rip, base: Path, now: Path) -> None:
    done = rip("drift", base, now, "--ignore", "*")
    assert "no change that counts\n" in done.out
    assert "note: ignored: os.kernel" in done.out
    document = json.loads(rip("drift", base, now, "--ignore", "os.*", "--json").out)
    assert [change["field"] for change in document["ignored"]] == ["kernel"]
    assert len(document["changes"]) == 3


def test_the_json_document_says_risk_rule_sources_and_replay(rip: Rip, base: Path, now: Path) -> None:
    done = rip("drift", base, now, "--json")
    document = json.loads(done.out)
    assert (done.code, document["schema"], document["compared"]) == (1, "rip.drift/1", 5)
    change = next(change for change in document["changes"] if change["field"] == "version")
    assert (change["before"]["value"], change["after"]["value"]) == ("0.10.2", "0.11.0")
    assert change["risk"] == "bitwise"
    assert change["sources"] == ["https://docs.vllm.ai/en/latest/usage/reproducibility/"]
    assert "golden-decode" in change["replay"]


def test_reports_are_written_privately_and_not_overwritten_unasked(
    rip: Rip, base: Path, now: Path, tmp_path: Path
) -> None:
    page, text = tmp_path / "drift.html", tmp_path / "drift.md"
    done = rip("drift", base, now, "--html", page, "--markdown", text)
    assert done.code == 1
    assert f"Wrote {page}" in done.err
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "<h2>Semantic in doubt" in page.read_text()
    assert "## Semantic in doubt" in text.read_text()
    again = rip("drift", base, now, "--html", page)
    assert again.code == 2
    assert "exists already" in again.err
    assert rip("drift", base, now, "--html", page, "--force").code == 1


def test_markdown_can_be_printed(rip: Rip, base: Path, now: Path) -> None:
    done = rip("drift", base, now, "--markdown", "-")
    assert done.out.startswith("# Environment drift\n")
    assert "why:" not in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fail-on", "perfect"], "no such level"),
        (["--json", "--markdown", "-"], "both write to standard output"),
        (["--markdown", "-", "--html", "-"], "both write to standard output"),
        (["--html", "-", "--json"], "both write to standard output"),
        (["--html", "/nowhere/at/all.html"], "is not a folder"),
    ],
)
def test_options_that_cannot_be_met_are_refused(
    rip: Rip, base: Path, now: Path, options: list[str], message: str
) -> None:
    for command in (("drift", base, now), ("fingerprint", "--read", now, "--against", base)):
        done = rip(*command, *options)
        assert (done.code, done.out) == (2, "")
        assert message in done.err


def test_nothing_in_common_is_no_pass(rip: Rip, base: Path) -> None:
    done = rip("drift", PASTED / "torch-cpu.txt", base)
    assert done.code == 1, "the kernel is in both"
    done = rip("drift", PASTED / "transformers-cpu.txt", base, "--ignore", "os.kernel")
    assert done.code == 0
    only_zoo = write(base.with_name("zoo.json"), zoo__animals=3)
    nothing = rip("drift", PASTED / "torch-cpu.txt", only_zoo)
    assert nothing.code == 3
    assert "no field in common" in nothing.err


def test_two_texts_without_a_common_fact_are_no_pass(rip: Rip, tmp_path: Path) -> None:
    one, other = tmp_path / "torch.txt", tmp_path / "transformers.txt"
    one.write_text("PyTorch version: 2.8.0\n")
    other.write_text("- `transformers` version: 4.55.0\n")
    for command in (("drift", one, other), ("fingerprint", "--read", other, "--against", one)):
        done = rip(*command, "--fail-on", "token")
        assert done.code == 3
        assert "no field in common" in done.err
        assert "no change" not in done.out + done.err
    assert rip("drift", one, one).code == 0


@pytest.mark.parametrize("pattern", ["os.kernle", "", "[", "kernel"])
def test_a_pattern_that_fits_no_field_is_named(rip: Rip, base: Path, now: Path, pattern: str) -> None:
    done = rip("drift", base, now, "--ignore", pattern, "--ignore", "os.*")
    assert done.code == 1
    notes = [line for line in done.err.splitlines() if "matched no field" in line]
    assert len(notes) == 1
    assert pattern in notes[0]


def test_a_report_replaces_no_input_and_no_other_report(rip: Rip, base: Path, now: Path) -> None:
    before = base.read_bytes(), now.read_bytes()
    link = base.with_name("link.json")
    link.symlink_to(base)
    both, same = base.with_name("both"), str(base.parent / "." / "both")
    against = ("fingerprint", "--read", now, "--against", base)
    for command in (
        ("drift", base, now, "--html", base),
        ("drift", base, now, "--markdown", link),
        ("drift", link, now, "--html", base),
        ("drift", base, now, "--html", both, "--markdown", same),
        (*against, "-o", base),
        (*against, "-o", now),
        (*against, "--html", now),
        (*against, "-o", both, "--html", same),
        ("fingerprint", "--read", now, "-o", now),
    ):
        done = rip(*command, "--force")
        assert (done.code, done.out) == (2, "")
        assert "is also" in done.err
    assert (base.read_bytes(), now.read_bytes()) == before
    assert not both.exists()


def test_an_edited_fingerprint_is_not_to_be_mended_by_hand(rip: Rip, base: Path, now: Path) -> None:
    base.write_text(base.read_text().replace('"6.1"', '"6.3"'))
    done = rip("drift", base, now)
    assert done.code == 2
    assert "changed after they were read" in done.err
    assert "take the original file, or record it again" in done.err


@pytest.mark.parametrize(
    ("content", "says", "fix"),
    [
        (b"PAR1....PAR1", "a trace", "rip diverge"),
        (b"GGUF\x03", "a model", "--model"),
        (b'{"schema": "rip.envelope/1", "prompt_token_ids": [1]}', "a request", "rip replay"),
        (b'{"prompt_token_ids": [1]}', "a request", "rip replay"),
        (b'{"schema": "rip.drift/1"}', "the result of a comparison", "rip fingerprint -o"),
        (b'{"schema": "rip.verdict/1"}', "the result of `rip diverge`", "rip diverge"),
        (b'{"a": 1}', "no schema field", "rip.fingerprint/1"),
        (b"", "is empty", "rip fingerprint -o"),
        (b"hello\n", "no report or log of an environment was recognised in it", "paste"),
        (b"[pip3] numpy==2.4\n", "was recognised in it", "paste"),
    ],
)
def test_what_is_no_fingerprint_is_called_by_its_name(
    rip: Rip, base: Path, content: bytes, says: str, fix: str
) -> None:
    other = base.with_name("other")
    other.write_bytes(content)
    for command in (
        ("drift", other, base),
        ("fingerprint", "--read", base, "--against", other),
        ("fingerprint", "--read", other),
    ):
        done = rip(*command)
        assert (done.code, done.out) == (2, "")
        assert says in done.err
        assert fix in done.err.partition("fix: ")[2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--flat"], "the flat form"),
        (["--export", "cyclonedx"], "a CycloneDX BOM"),
        (["--export", "in-toto"], "an in-toto statement"),
    ],
)
def test_other_forms_of_a_fingerprint_are_not_read_back(
    rip: Rip, base: Path, options: list[str], says: str
) -> None:
    other = base.with_name("other.json")
    assert rip("fingerprint", "--read", base, *options, "-o", other).code == 0
    done = rip("drift", base, other)
    assert done.code == 2
    assert says in done.err
    refused = rip("fingerprint", "--read", base, "--against", base, *options)
    assert (refused.code, refused.out) == (2, "")
    assert "add -o" in refused.err


def test_an_output_that_is_a_directory_is_called_one(rip: Rip, base: Path, tmp_path: Path) -> None:
    for force in ([], ["--force"]):
        done = rip("fingerprint", "--read", base, "-o", tmp_path, *force)
        assert done.code == 2
        assert "is a directory" in done.err
        assert "--force" not in done.err


def test_a_dash_is_standard_input_or_output(
    rip: Rip, base: Path, now: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def given(path: Path) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))

    monkeypatch.chdir(tmp_path)
    printed = rip("fingerprint", "--read", base, "-o", "-")
    assert printed.out == base.read_text()
    given(now)
    assert rip("drift", base, "-").code == 1
    given(base)
    assert rip("drift", "-", base).code == 0
    given(base)
    assert rip("fingerprint", "--read", "-").out == base.read_text()
    given(base)
    beside = rip("fingerprint", "--read", now, "--against", "-", "-o", "-")
    assert (beside.code, beside.out) == (1, now.read_text())
    assert rip("drift", base, now, "--html", "-").out.startswith("<!DOCTYPE html>")
    for command in (("drift", "-", "-"), ("fingerprint", "--read", "-", "--against", "-")):
        assert rip(*command).code == 2
    twice = rip("fingerprint", "--read", now, "--against", base, "-o", "-", "--json")
    assert (twice.code, twice.out) == (2, "")
    assert not (tmp_path / "-").exists()


def test_a_pipe_without_a_writer_is_not_waited_for(rip: Rip, base: Path) -> None:
    pipe = base.with_name("pipe")
    os.mkfifo(pipe)
    for command in (("drift", pipe, base), ("fingerprint", "--read", pipe), ("drift", base, base.parent)):
        done = rip(*command)
        assert (done.code, done.out) == (2, "")
        assert "a pipe into which no program writes" in done.err or "is a directory" in done.err


def test_a_pasted_text_is_compared_in_what_it_tells(rip: Rip, tmp_path: Path) -> None:
    now = write(
        tmp_path / "now.json",
        frameworks__torch="2.8.1+cu128",
        driver__version="570.124.06",
        model__sha256="ab" * 32,
    )
    done = rip("drift", PASTED / "vllm-h100.txt", now)
    assert done.code == 1
    assert "frameworks.torch: 2.8.0+cu128 → 2.8.1+cu128  [bitwise]" in done.out
    assert "model.sha256" not in done.out
    assert "could not be compared" in done.out


def test_a_pasted_text_can_be_kept_as_a_fingerprint(rip: Rip, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    assert rip("fingerprint", "--read", PASTED / "torch-a100.txt", "-o", old).code == 0
    kept = Fingerprint.from_json(old.read_bytes(), "old.json")
    assert kept.flat()["torch_version"] == "2.4.0+cu121"
    assert rip("drift", PASTED / "torch-a100.txt", old).code == 0


def test_a_recorded_fingerprint_is_exported(rip: Rip, base: Path, tmp_path: Path) -> None:
    bom = json.loads(rip("fingerprint", "--read", base, "--export", "cyclonedx").out)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    target = tmp_path / "statement.json"
    assert rip("fingerprint", "--read", base, "--export", "in-toto", "-o", target).code == 0
    subject = json.loads(target.read_text())["subject"][0]
    assert subject == {
        "name": "base.json",
        "digest": {"sha256": hashlib.sha256(base.read_bytes()).hexdigest()},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--export", "spdx"], "no such format"),
        (["--export", "in-toto"], "recorded fingerprint"),
        (["--export", "cyclonedx", "--flat"], "two formats"),
        (["--read", "BASE", "--model", "x"], "--read"),
    ],
)
def test_exports_that_make_no_sense_are_refused(
    rip: Rip, base: Path, options: list[str], message: str
) -> None:
    done = rip("fingerprint", *(str(base) if word == "BASE" else word for word in options))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "fix: " in done.err


@pytest.mark.parametrize("option", [["--fail-on", "token"], ["--ignore", "os.*"], ["--html", "x.html"]])
def test_options_of_a_comparison_need_one(rip: Rip, base: Path, option: list[str]) -> None:
    done = rip("fingerprint", "--read", base, *option)
    assert (done.code, done.out) == (2, "")
    assert "add --against" in done.err


def test_a_request_shows_its_opentelemetry_names(rip: Rip, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(
        '{"request_id": "r", "prompt_token_ids": [1], "sampling": {"temperature": 0, "seed": 7}}'
    )
    shown = json.loads(rip("envelope", "show", request, "--otel").out)
    assert shown["gen_ai.request.seed"] == 7
    assert shown["gen_ai.request.temperature"] == 0
