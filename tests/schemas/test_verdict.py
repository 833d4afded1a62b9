"""The verdict: nulls that mean something are written, and non-finite measurements survive."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rip.schemas.verdict import FirstToken, Verdict

GOLDEN = Path(__file__).parent.parent / "golden" / "verdict-v3.json"


def test_nothing_found_is_written_as_null() -> None:
    raw: dict[str, Any] = json.loads(GOLDEN.read_text("utf-8"))
    same = {**raw, "level": "bitwise", "first_token": None, "first_site": None, "changes": [], "causes": []}
    written = Verdict.from_object(same, "v").to_object()
    assert written["first_token"] is None
    assert written["first_site"] is None
    assert Verdict.from_object(written, "v").to_object() == written


def test_a_shorter_trace_and_rows_with_nan_survive() -> None:
    verdict = Verdict.from_json(GOLDEN.read_bytes(), "v")
    first = verdict.first_token
    assert first
    assert first.token_b is None, "trace B ended"
    assert first.margin_b is not None
    assert math.isnan(first.margin_b)
    assert first.max_abs_logit_diff == math.inf
    assert json.loads(verdict.to_json(), parse_constant=lambda word: word) == verdict.to_object()
    assert verdict.to_object()["first_token"]["margin_b"] == "NaN"


def test_a_built_verdict_writes_every_required_field() -> None:
    built = FirstToken(
        request_id="r",
        sample=0,
        step=None,
        position=3,
        token_a=1,
        token_b=None,
        margin_a=None,
        margin_b=None,
        max_abs_logit_diff=None,
    )
    required = {name for name, field in FirstToken.model_fields.items() if field.is_required()}
    assert set(built.model_dump(mode="json")) == required
