"""A decision in the forms that build systems read: JUnit XML, SARIF and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ...schemas.errors import MissingPackage
from ...schemas.gate import Gate
from . import sentences

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~@&-])")
_LEVELS = {"passed": "none", "reported": "warning", "recorded": "note", "failed": "error", "refused": "error"}
_RULES = {
    "claim": "A required claim holds",
    "change": "A variable is as the policy allows",
    "evidence": "The evidence supports a decision",
}
MARKS = {"passed": "✓", "reported": "~", "recorded": "○", "failed": "✗", "refused": "!"}


@dataclass(frozen=True)
class Check:
    """One thing that the gate has looked at.

    Attributes:
        about: A claim, a changed variable, or the evidence.
        name: Stable from run to run.
    """

    about: Literal["claim", "change", "evidence"]
    name: str
    outcome: Literal["passed", "reported", "recorded", "failed", "refused"]
    sentence: str


def list_checks(gate: Gate) -> Iterator[Check]:
    """Everything that the gate has looked at: claims, changes, refusals."""
    for held in gate.claims:
        yield Check("claim", held.id, "passed" if held.state == "holds" else "failed", sentences.claim(held))
    for one in gate.changed:
        outcome: Literal["failed", "reported", "recorded"] = "failed"
        if one.effect != "block":
            outcome = "reported" if one.effect == "drift report" else "recorded"
        sentence = f"{sentences.change(one)}: {sentences.effect(one)}"
        yield Check("change", f"{one.lane}/{one.change.name}", outcome, sentence)
    for why in gate.refusals:
        name = "/".join(part for part in (why.kind, why.lane, why.claim) if part)
        yield Check("evidence", name, "refused", sentences.refusal(why))


def to_junit(gate: Gate) -> str:
    """JUnit XML: a test case for each check; what is only recorded is skipped, what refuses is an error.

    Raises:
        MissingPackage: junitparser is not installed.
    """
    try:
        from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
    except ImportError:
        raise MissingPackage("JUnit XML needs junitparser", "pip install 'rip-forensics[gate]'") from None
    suite = TestSuite("rip gate")
    suite.timestamp = gate.created
    suite.add_property("decision", gate.decision)
    suite.add_property("rollback", _xml(gate.rollback))
    kinds = {"failed": Failure, "refused": Error, "recorded": Skipped}
    for check in list_checks(gate):
        case = TestCase(_xml(check.name), f"rip.gate.{check.about}")
        sentence = _xml(check.sentence)
        if check.outcome in kinds:
            case.result = [kinds[check.outcome](sentence)]
        else:
            case.system_out = sentence
        suite.add_testcase(case)
    report = JUnitXml("rip")
    report.add_testsuite(suite)
    return str(report.tostring().decode("utf-8"))


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(letter if letter in "\t\n" or (letter.isprintable()) else "�" for letter in text)


def to_sarif(gate: Gate, policy: str) -> str:
    """SARIF 2.1.0: a result for everything that does not simply pass.

    Args:
        policy: Path of the policy, at which results are shown.
    """
    checks = [check for check in list_checks(gate) if check.outcome != "passed"]
    rules = [{"id": f"rip.gate.{name}", "shortDescription": {"text": text}} for name, text in _RULES.items()]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "rip gate", "version": gate.tool_version, "rules": rules}},
        "results": [_sarif_result(check, policy) for check in checks],
        "properties": {"decision": gate.decision, "rollback": gate.rollback},
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_result(check: Check, policy: str) -> dict[str, Any]:
    from urllib.parse import quote

    return {
        "ruleId": f"rip.gate.{check.about}",
        "level": _LEVELS[check.outcome],
        "message": {"text": check.sentence},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": quote(policy)}, "region": {"startLine": 1}},
                "logicalLocations": [{"fullyQualifiedName": check.name}],
            }
        ],
        "partialFingerprints": {"check/v1": f"{check.about}/{check.name}"},
    }


def to_markdown(gate: Gate) -> str:
    """A comment for a pull request: the decision first, then everything that was looked at."""
    lines = [f"## {sentences.DECISIONS[gate.decision]}", "", _plain(sentences.headline(gate)), ""]
    checks = list(list_checks(gate))
    if checks:
        lines += ["| | Checked | |", "|---|---|---|"]
        lines += [
            f"| {MARKS[check.outcome]} | {check.about} | {_plain(check.sentence)} |" for check in checks
        ]
        lines.append("")
    if gate.not_inherited:
        lines += [_plain(sentences.not_inherited(gate)), ""]
    lines += [
        _plain(sentences.rollback(gate)),
        "",
        f"policy `{gate.policy[:12]}`, evidence `{gate.evidence[:12]}`",
    ]
    return "\n".join(lines) + "\n"


def _plain(content: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(content.split()))
