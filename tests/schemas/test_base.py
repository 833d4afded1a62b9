"""Documents: the schema field, versions, unknown fields, strict types, round trips."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
from rip.schemas.base import Document, Real, Record
from rip.schemas.errors import BadInput


class Part(Record):
    size: int
    share: float | None = None
    measured: Real | None = None


class Inner(Document):
    KIND: ClassVar[str] = "inner"
    parts: list[Part] = []


class Sample(Document):
    """Version 3 of a document: 1 called `name` `title`, 2 had `size` in KiB."""

    KIND: ClassVar[str] = "sample"
    VERSION: ClassVar[int] = 3
    UPGRADES: ClassVar[Any] = {
        1: lambda old: {**{key: value for key, value in old.items() if key != "title"}, "name": old["title"]},
        2: lambda old: {**old, "size": old["size"] * 1024},
    }

    name: str
    size: int
    result: int | None
    note: str | None = None
    parts: dict[str, Part] = {}
    inner: Inner | None = None


def load(**fields: object) -> Sample:
    return Sample.from_object(
        {"schema": "rip.sample/3", "name": "n", "size": 1, "result": None, **fields}, "s.json"
    )


@pytest.mark.parametrize(
    ("old", "size"),
    [
        ({"schema": "rip.sample/1", "title": "n", "size": 2, "result": 7}, 2048),
        ({"schema": "rip.sample/2", "name": "n", "size": 2, "result": 7}, 2048),
        ({"schema": "rip.sample/3", "name": "n", "size": 2, "result": 7}, 2),
    ],
)
def test_older_versions_are_upgraded_step_by_step(old: dict[str, Any], size: int) -> None:
    loaded = Sample.from_object(old, "old.json")
    assert (loaded.name, loaded.size, loaded.result) == ("n", size, 7)
    assert loaded.to_object()["schema"] == "rip.sample/3"
    assert loaded.unknown_fields() == []


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ("rip.sample/4", "written by a newer rip"),
        ("rip.sample/999999", "written by a newer rip"),
        ("rip.sample/0", "not a rip.sample/3 document"),
        ("rip.sample/03", "not a rip.sample/3 document"),
        ("rip.sample/²", "not a rip.sample/3 document"),
        ("rip.sample/" + "9" * 5000, "not a rip.sample/3 document"),
        ("rip.sample", "not a rip.sample/3 document"),
        ("rip.inner/1", 'its schema field is "rip.inner/1"'),
        (None, "its schema field is null"),
        (3, "its schema field is 3"),
    ],
)
def test_other_schemas_are_refused(schema: object, fault: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(schema=schema)
    assert fault in caught.value.message
    assert caught.value.exit_code == 2


def test_a_missing_schema_field_is_named() -> None:
    with pytest.raises(BadInput, match="it has no schema field"):
        Sample.from_object({"name": "n", "size": 1, "result": 1}, "s.json")


def test_a_version_without_an_upgrade_path_is_refused() -> None:
    class Gap(Document):
        KIND: ClassVar[str] = "gap"
        VERSION: ClassVar[int] = 2

    with pytest.raises(BadInput, match=r"rip\.gap/1 is no longer readable"):
        Gap.from_object({"schema": "rip.gap/1"}, "g.json")


def test_a_document_inside_a_document_carries_and_checks_its_own_schema() -> None:
    outer = Sample(name="n", size=1, result=1, inner=Inner(parts=[Part(size=3)]))
    written = outer.to_object()
    assert written["inner"]["schema"] == "rip.inner/1"
    assert Sample.from_object(written, "w") == outer
    with pytest.raises(BadInput, match=r"^outer.json: written by a newer rip \(rip.inner/2"):
        Sample.from_object({**written, "inner": {"schema": "rip.inner/2"}}, "outer.json")


def test_unknown_fields_are_kept_and_reported_at_every_depth() -> None:
    loaded = load(
        later=None,
        parts={"a": {"size": 1, "colour": "red"}},
        inner={"schema": "rip.inner/1", "parts": [{"size": 1}, {"size": 2, "deep": {"x": None}}], "mood": 1},
    )
    assert sorted(loaded.unknown_fields()) == ["inner.mood", "inner.parts.1.deep", "later", "parts.a.colour"]
    written = loaded.to_object()
    assert written["later"] is None
    assert written["parts"]["a"]["colour"] == "red"
    assert written["inner"]["parts"][1]["deep"] == {"x": None}
    assert Sample.from_object(written, "again").to_object() == written


def test_optional_nulls_are_left_out_and_required_ones_written() -> None:
    written = load(note=None).to_object()
    assert "note" not in written
    assert written["result"] is None
    assert Sample.from_object(written, "again") == load()


def test_constructed_and_loaded_documents_are_equal() -> None:
    built = Sample(name="n", size=1, result=None)
    assert built == load()
    assert built.sha256() == load().sha256()


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"name": 1}, "name"),
        ({"size": "1"}, "size"),
        ({"size": 1.0}, "size"),
        ({"size": True}, "size"),
        ({"size": None}, "size"),
        ({"parts": {"a": {"size": 1, "share": "0.5"}}}, "parts.a.share"),
        ({"parts": {"a": {"size": 1, "share": "Infinity"}}}, "parts.a.share"),
        ({"parts": {"a": {"size": 1, "share": math.nan}}}, "parts.a.share"),
        ({"parts": {"a": {"size": 1, "measured": "inf"}}}, "parts.a.measured"),
        ({"parts": [1]}, "parts"),
        ({"inner": 3}, "inner"),
    ],
)
def test_wrong_types_are_named_by_field(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(**fields)
    assert caught.value.message.startswith(f"s.json: {place}: ")


def test_an_error_names_three_fields_and_no_values() -> None:
    with pytest.raises(BadInput) as caught:
        Sample.from_object({"schema": "rip.sample/3", "name": 1, "size": "a secret", "note": 5}, "s.json")
    assert "name: " in caught.value.message
    assert "(and 1 more)" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.25])
def test_real_fields_hold_non_finite_values_through_a_round_trip(value: float) -> None:
    written = load(parts={"a": {"size": 1, "measured": value}}).to_json()
    again = Sample.from_json(written, "w").parts["a"].measured
    assert again is not None
    assert again == value or (math.isnan(again) and math.isnan(value))


def test_documents_cannot_be_changed() -> None:
    with pytest.raises(Exception, match="frozen"):
        load().name = "other"  # type: ignore[misc]
