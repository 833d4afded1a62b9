"""`rip gate`: what passes, what blocks, what is refused, and the reports that build systems read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import junitparser
import pytest
import sarif_pydantic
from fakes.acceptance import POLICY, Acceptance, environment
from fakes.command_line import Rip as CommandLine
from rip.schemas.gate import Gate

CHANGED = environment({"frameworks.torch": "2.13"})
CLAIMED = environment(strength="claimed")


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


def decide(rip: CommandLine, acceptance: Acceptance, policy: str = POLICY, *more: str) -> tuple[int, Gate]:
    folder = acceptance.write(Path("acceptance"))
    Path("policy.toml").write_text(policy)
    done = rip("gate", folder, "--policy", "policy.toml", "--json", *more)
    return done.code, Gate.from_json(done.out, "stdout")


def test_equal_environments_and_claims_that_hold_pass(rip: CommandLine) -> None:
    code, gate = decide(rip, Acceptance())
    assert (code, gate.decision) == (0, "pass")
    assert {claim.id: claim.state for claim in gate.claims} == {"restart": "holds", "upgrade": "holds"}


def test_what_leads_to_what(rip: CommandLine) -> None:
    """A tolerated change is reported, an unsupported one ends what was guaranteed."""
    tolerated = environment({"frameworks.torch": "2.13", "gpus.name_and_compute_capability": "B200 10.0"})
    code, gate = decide(rip, Acceptance(next=tolerated))
    assert (code, gate.decision) == (0, "drift report")
    effects = {one.change.name: one.effect for one in gate.changed}
    assert effects == {"frameworks.torch": "drift report", "gpus.name_and_compute_capability": "recorded"}
    assert gate.not_inherited == ["gpus.name_and_compute_capability"]


def test_a_variable_without_a_rule_must_match(rip: CommandLine) -> None:
    for change in ({"lane.dtype": "bfloat16"}, {"engine.version": "2"}):
        code, gate = decide(rip, Acceptance(next=environment(change)))
        assert (code, gate.decision) == (1, "block")
    done = rip("gate", "acceptance", "--policy", "policy.toml")
    assert "Go back to image:1.0" in done.out
    assert "engine.version: 1 → 2" in done.out


def test_a_required_claim_that_fails_blocks(rip: CommandLine) -> None:
    code, gate = decide(rip, Acceptance(differing=("dtype", "lane")))
    assert (code, gate.decision) == (1, "block")


@pytest.mark.parametrize(
    ("acceptance", "policy", "kind"),
    [
        (Acceptance(differing=()), POLICY, "invalid plan"),
        (Acceptance(missing=("lane",)), POLICY, "claim not covered"),
        (Acceptance(invalid=("restart",)), POLICY, "invalid cell"),
        (Acceptance(sequences=0), POLICY, "nothing compared"),
        (Acceptance(next=CLAIMED), POLICY, "claimed hashes"),
        (Acceptance(relaunched=CHANGED), POLICY, "stale cell"),
        (Acceptance(), "require = []\n" + POLICY, "nothing required"),
        (Acceptance(), 'require = ["speed"]\n' + POLICY, "no such claim"),
        (Acceptance(), "max_age_days = 1\n" + POLICY, "too old"),
        # A tolerance is worth what was compared: restarts of one lane say nothing of two.
        (
            Acceptance(next=CHANGED),
            POLICY.replace('["upgrade"]', '["restart"]'),
            "not compared with the baseline",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_evidence_that_is_none_is_refused(
    rip: CommandLine, acceptance: Acceptance, policy: str, kind: str
) -> None:
    code, gate = decide(rip, acceptance, policy)
    assert (code, gate.decision) == (3, "refused")
    assert kind in {why.kind for why in gate.refusals}
    assert rip("gate", "acceptance", "--policy", "policy.toml").code == 3


def test_evidence_of_another_environment_is_refused(rip: CommandLine) -> None:
    Path("here.json").write_text(environment().to_json())
    code, gate = decide(rip, Acceptance(), POLICY, "--environment", "here.json")
    assert (code, gate.decision) == (0, "pass")
    Path("here.json").write_text(CHANGED.to_json())
    done = rip("gate", "acceptance", "--policy", "policy.toml", "--environment", "here.json")
    assert done.code == 3
    assert "frameworks.torch" in done.out


def test_the_baseline_may_be_a_fingerprint(rip: CommandLine) -> None:
    """A lane that ran in an equal environment stands for it; without one, a tolerance covers nothing."""
    Path("base.json").write_text(environment().to_json())
    policy = POLICY.replace("lane:now", "base.json")
    code, gate = decide(rip, Acceptance(next=CHANGED), policy)
    assert gate.decision == "drift report"
    assert code == 0
    Path("base.json").write_text(environment({"frameworks.torch": "2.11"}).to_json())
    done = rip("gate", "acceptance", "--policy", "policy.toml")
    assert done.code == 3


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("rollback = ", "policy.toml is not TOML"),
        (POLICY.replace("lane:now", "lane:other"), "the plan has lane:now, lane:next"),
        ("speed = 3\n" + POLICY, "no field 'speed'"),
        (POLICY.replace("unsupported", "ignored"), "rules.1.action"),
        (POLICY.replace("lane:now", "no-such.json"), "no-such.json could not be read"),
    ],
)
def test_a_policy_that_cannot_be_used_is_an_error_that_says_why(
    rip: CommandLine, policy: str, said: str
) -> None:
    Acceptance().write(Path("acceptance"))
    Path("policy.toml").write_text(policy)
    done = rip("gate", "acceptance", "--policy", "policy.toml")
    assert done.code == 2
    assert said in done.err


def test_build_systems_read_the_reports(rip: CommandLine) -> None:
    changed = environment(
        {
            "frameworks.torch": "2.13 <a|b>\x1b",
            "gpus.name_and_compute_capability": "B200",
            "engine.version": "2",
        }
    )
    Acceptance(next=changed, invalid=("restart",)).write(Path("acceptance"))
    reports = ("--junit", "gate.xml", "--sarif", "gate.sarif", "--markdown", "gate.md")
    assert rip("gate", "acceptance", "--policy", "policy.toml", *reports).code == 3
    suite = next(iter(junitparser.JUnitXml.fromfile("gate.xml")))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (6, 2, 1, 1)
    log = json.loads(Path("gate.sarif").read_text())
    read = sarif_pydantic.Sarif.model_validate(log)
    assert not unknown(read), "every field is one that SARIF has"
    results = log["runs"][0]["results"]
    assert sorted(result["level"] for result in results) == ["error", "error", "error", "note", "warning"]
    text = Path("gate.md").read_text()
    assert text.startswith("## Refused")
    assert "\\<a\\|b\\>" in text
    assert "image:1.0" in text


def unknown(record: Any, at: str = "") -> list[str]:
    """Names of fields that SARIF's types do not have."""
    found = [f"{at}.{name}" for name in (record.model_extra or {})]
    for name in type(record).model_fields:
        value = getattr(record, name)
        for each in value if isinstance(value, list) else [value]:
            if hasattr(each, "model_extra"):
                found += unknown(each, f"{at}.{name}")
    return found
