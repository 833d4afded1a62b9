"""Findings as data: every kind survives JSON, with the sentence beside it that a writer filled in."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.findings import EXAMPLES, KINDS, everything
from rip.schemas.findings.statement import Statement
from rip.schemas.verdict import Verdict

GOLDEN = Path(__file__).parent.parent / "golden"


def test_every_kind_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == KINDS


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_every_kind_survives_json(example: Statement) -> None:
    worded = example.model_copy(update={"text": "a sentence"})
    for one in (example, worded):
        again = type(one).model_validate_json(one.model_dump_json())
        assert again.model_dump_json() == one.model_dump_json()
        assert again.unknown_fields() == []


def test_a_verdict_with_every_kind_survives_json() -> None:
    verdict = everything(GOLDEN / "verdict-v1.json")
    again = Verdict.from_json(verdict.to_json(), "again")
    assert again.to_object() == verdict.to_object()
    assert again.unknown_fields() == []
    for ours, theirs in zip(verdict.causes, again.causes, strict=True):
        assert [type(one) for one in ours.evidence] == [type(one) for one in theirs.evidence]
