"""The published JSON Schema files: in step with the classes, and right about real documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rip.schemas import generate
from rip.schemas.base import Document
from rip.schemas.fingerprint import Fingerprint
from rip.schemas.lane import Lane, Setting
from rip.schemas.trace import Request, Site, TraceHeader

GOLDEN = Path(__file__).parent.parent / "golden"


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((generate.FOLDER / name).read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def golden(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return value


def test_files_are_in_step_with_the_classes() -> None:
    assert generate.stale_files() == [], "run: make schemas"


def test_every_kind_of_document_has_its_file() -> None:
    kinds = {kind for kind in Document.__subclasses__() if kind.__module__.startswith("rip.schemas.")}
    assert kinds == set(generate.DOCUMENTS.values())


def test_a_missing_changed_or_foreign_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "envelope.json").write_text("{}")
    (tmp_path / "recipe.json").write_text("{}")
    assert generate.stale_files(tmp_path) == sorted([*generate.DOCUMENTS, "recipe.json"])


@pytest.mark.parametrize(
    "name",
    [
        "check-v2",
        "drift-v1",
        "envelope-published",
        "envelope-v1",
        "fingerprint-v1",
        "narrow-v2",
        "verdict-v3",
    ],
)
def test_golden_documents_are_valid(name: str) -> None:
    validator(f"{name.split('-')[0]}.json").validate(golden(name))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("envelope-v1", {"schema": "rip.envelope/2"}),
        ("envelope-v1", {"request_id": 7}),
        ("envelope-v1", {"prompt_token_ids": [-1]}),
        ("envelope-v1", {"sampling": {"temperature": "0.7"}}),
        ("envelope-v1", {"sampling": {"seed": "42"}}),
        ("envelope-v1", {"expected": {"logprobs": ["nan"]}}),
        ("fingerprint-v1", {"schema": None}),
        ("fingerprint-v1", {"sections": {"cpu": {"facts": {"threads": 2}}}}),
        ("drift-v1", {"changes": [{"section": "cpu"}]}),
        ("verdict-v1", {"level": "exact"}),
        ("verdict-v1", {"compared": {}}),
    ],
)
def test_what_rip_refuses_the_schema_refuses(name: str, change: dict[str, Any]) -> None:
    assert not validator(f"{name.split('-')[0]}.json").is_valid({**golden(name), **change})


def test_a_trace_header_is_valid_and_survives_a_round_trip() -> None:
    lane = Lane(name="default", engine="hf", settings={"dtype": Setting(requested="bfloat16", source="lane")})
    header = TraceHeader(
        tool_version="0.1.0",
        created="2026-07-14T09:30:00Z",
        lane=lane,
        mode="free",
        capture="sites",
        requests=[Request(request_id="r", envelope_sha256="0" * 64, envelope=golden("envelope-v1"))],
        fingerprint=Fingerprint.from_object(golden("fingerprint-v1"), "f"),
        sites=[Site(name="layers.0.mlp", width=576, dtype="bfloat16")],
    )
    written = header.to_object()
    validator("trace-header.json").validate(written)
    assert TraceHeader.from_json(header.to_json(), "t") == header
    for change in (
        {"mode": "fast"},
        {"fingerprint": {**golden("fingerprint-v1"), "schema": "rip.fingerprint/2"}},
    ):
        assert not validator("trace-header.json").is_valid({**written, **change})


def test_only_the_envelope_may_omit_its_schema_field() -> None:
    for name in ("drift-v1", "fingerprint-v1", "verdict-v1"):
        raw = golden(name)
        del raw["schema"]
        assert not validator(f"{name.split('-')[0]}.json").is_valid(raw)


def test_fields_are_described() -> None:
    described = json.loads((generate.FOLDER / "verdict.json").read_text("utf-8"))["$defs"]["FirstToken"][
        "properties"
    ]
    assert described["token_a"]["description"] == "None: trace A ended before this position."
