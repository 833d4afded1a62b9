"""`rip bundle` and `rip verify`: all is in it, all is private, and every flipped bit is found."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import stat
from pathlib import Path

import pytest
from fakes.acceptance import POLICY, WEIGHTS, Acceptance, environment
from fakes.command_line import Rip as CommandLine
from rip.experiments.bundle import verify_bundle
from rip.schemas.bundle import Bundle
from rip.schemas.errors import BadInput

FLIPS = 300
TORCH = environment({"frameworks.torch": "2.13"})


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """The command line beside evidence that passes with a drift report."""
    monkeypatch.chdir(tmp_path)
    Acceptance(next=TORCH).write(Path("acceptance"))
    return CommandLine(monkeypatch, capsys)


def pack(rip: CommandLine, *more: str) -> Bundle:
    done = rip("bundle", "acceptance", "--policy", "policy.toml", "-o", "evidence", *more)
    assert done.code == 0, done.err
    return Bundle.from_json(Path("evidence/manifest.json").read_bytes(), "manifest.json")


def test_a_bundle_holds_the_artifacts_and_says_which_is_absent(rip: CommandLine) -> None:
    manifest = pack(rip)
    artifacts = {packed.artifact for packed in manifest.files}
    assert artifacts == {"requests", "claims", "evidence", "fingerprints", "policy"}
    assert manifest.absent == ["cost"]
    for packed in manifest.files:
        content = (Path("evidence") / packed.path).read_bytes()
        assert (packed.bytes, packed.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in Path("evidence").rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_it_says_the_same_wherever_it_lies(
    rip: CommandLine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pack(rip)
    shutil.rmtree("acceptance")
    Path("policy.toml").unlink()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "bundle"
    shutil.move("evidence", elsewhere)
    done = rip("verify", elsewhere)
    assert done.code == 0
    assert "Pass with a drift report" in done.out
    assert rip("gate", elsewhere).code == 0
    strict = POLICY.replace("within tolerance", "must match")
    Path("strict.toml").write_text(strict)
    assert rip("gate", elsewhere, "--policy", "strict.toml").code == 1


def test_a_decision_to_block_is_packed_too(rip: CommandLine) -> None:
    Path("policy.toml").write_text(POLICY.replace("within tolerance", "must match"))
    pack(rip)
    assert rip("verify", "evidence").code == 0, "it is intact"
    assert rip("gate", "evidence").code == 1
    statement = json.loads(Path("evidence/statement.json").read_text())
    assert statement["predicate"]["result"] == "FAILED"
    assert statement["predicate"]["failedTests"] == ["change/next/frameworks.torch"]


def test_the_statement_is_what_a_signer_takes(rip: CommandLine) -> None:
    pack(rip)
    statement = json.loads(Path("evidence/statement.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert statement["subject"] == [{"name": "model.safetensors", "digest": {"sha256": WEIGHTS}}]
    assert statement["predicate"]["result"] == "WARNED"
    assert statement["predicate"]["passedTests"] == ["claim/restart", "claim/upgrade"]
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["predicate"]["configuration"]}
    manifest = Path("evidence/manifest.json").read_bytes()
    assert digests["manifest.json"] == hashlib.sha256(manifest).hexdigest()


def is_intact(folder: Path) -> bool:
    try:
        return not verify_bundle(folder).faults
    except BadInput:
        return False


def test_one_flipped_bit_anywhere_is_found(rip: CommandLine) -> None:
    """Every bit counts, those of the manifest and the statement included; unflipped, it is intact again."""
    pack(rip)
    folder = Path("evidence")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    draw = random.Random(7)
    for number in range(FLIPS):
        path = files[number % len(files)]
        content = bytearray(path.read_bytes())
        at = draw.randrange(len(content))
        content[at] ^= 1 << draw.randrange(8)
        kept = path.read_bytes()
        path.write_bytes(content)
        assert not is_intact(folder), f"{path.name}, byte {at}"
        path.write_bytes(kept)
    assert is_intact(folder)


def test_a_file_more_or_less_or_a_link_is_found(rip: CommandLine) -> None:
    pack(rip)
    folder = Path("evidence")
    (folder / "extra").write_text("x")
    done = rip("verify", folder)
    assert done.code == 1
    assert "extra: not listed" in done.out
    assert rip("gate", folder).code == 2
    (folder / "extra").unlink()
    (folder / "ledger.jsonl").rename("ledger.jsonl")
    assert "ledger.jsonl: missing" in rip("verify", folder).out
    (folder / "ledger.jsonl").symlink_to(Path("ledger.jsonl").absolute())
    assert rip("verify", folder).code == 1


def test_a_verdict_that_its_ledger_does_not_say_is_found(rip: CommandLine) -> None:
    """Whoever changes the decision and every digest with it still contradicts the evidence."""
    from rip.experiments.gating.bundle_folder import packed_file

    pack(rip)
    folder = Path("evidence")
    gate = json.loads((folder / "gate.json").read_text())
    gate["decision"], gate["changed"] = "pass", []
    (folder / "gate.json").write_text(json.dumps(gate, indent=2, ensure_ascii=False) + "\n")
    manifest = Bundle.from_json((folder / "manifest.json").read_bytes(), "manifest.json")
    files = [packed_file(folder, folder / each.path, each.artifact) for each in manifest.files]
    old = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(manifest.model_copy(update={"files": files}).to_json())
    new = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    statement = (folder / "statement.json").read_text()
    (folder / "statement.json").write_text(statement.replace(old, new))
    done = rip("verify", folder)
    assert done.code == 1
    assert "gate.json: not what the evidence says" in done.out


def test_traces_can_be_left_out(rip: CommandLine) -> None:
    manifest = pack(rip, "--no-traces")
    assert not manifest.traces
    assert not any(packed.path.startswith("traces/") for packed in manifest.files)
    assert rip("verify", "evidence").code == 0


def test_what_cannot_be_packed_is_said(rip: CommandLine) -> None:
    pack(rip)
    assert rip("bundle", "acceptance", "--policy", "policy.toml", "-o", "evidence").code == 2
    assert rip("bundle", "evidence", "--policy", "policy.toml", "-o", "again").code == 2
    next(Path("acceptance/traces").iterdir()).unlink()
    done = rip("bundle", "acceptance", "--policy", "policy.toml", "-o", "other")
    assert done.code == 2
    assert "--no-traces" in done.err
    assert not list(Path().glob("*other*")), "nothing is left behind"
    assert rip("verify", "acceptance").code == 2
