"""`rip drift`, `rip fingerprint --against`, `--read` and `--export` as a user meets them."""

from __future__ import annotations

import hashlib
import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rip.schemas.fingerprint import Fact, Fingerprint, Section, fact

PASTED = Path(__file__).parent.parent / "fingerprint" / "pasted"


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


class Rip:
    """Runs the command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Done:
        from rip.cli import main

        self._monkeypatch.setattr(sys, "argv", ["rip", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(int(stopped.value.code or 0), said.out, said.err)


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
        engine__version="0.10.2",
        tokenizer__sha256="ab" * 32,
        zoo__animals=3,
    )


@pytest.fixture
def now(tmp_path: Path) -> Path:
    return write(
        tmp_path / "now.json",
        os__kernel="6.2",
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
    assert "no change" in done.out
    assert "note: ignored: os.kernel" in done.out
    document = json.loads(rip("drift", base, now, "--ignore", "os.*", "--json").out)
    assert [change["field"] for change in document["ignored"]] == ["kernel"]
    assert len(document["changes"]) == 3


def test_the_json_document_says_risk_rule_sources_and_replay(rip: Rip, base: Path, now: Path) -> None:
    done = rip("drift", base, now, "--json")
    document = json.loads(done.out)
    assert (done.code, document["schema"], document["compared"]) == (1, "rip.drift/1", 4)
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
        (["--json", "--markdown", "-"], "both print"),
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


@pytest.mark.parametrize(
    "option", [["--json"], ["--fail-on", "token"], ["--ignore", "os.*"], ["--html", "x.html"]]
)
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
