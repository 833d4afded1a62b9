"""What counts as a change between two fingerprints, in which order, and with which rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint.drift import compare, describe, drift, source_changes
from rip.fingerprint.rules import NO_RULE, RULES
from rip.schemas.fingerprint import FLAT_KEYS, SECTIONS, Fact, Fingerprint, Section, fact, unavailable


def document(**sections: dict[str, Fact]) -> Fingerprint:
    built = {name: Section(facts=facts) for name, facts in sections.items()}
    return Fingerprint.build("0.1.0", "2026-07-14T09:30:00+00:00", built)


def one(
    before: Fact | None, after: Fact | None, section: str = "cpu", field: str = "model"
) -> tuple[Fingerprint, Fingerprint]:
    sides = [
        document(**{section: {} if reading is None else {field: reading}}) for reading in (before, after)
    ]
    return sides[0], sides[1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (fact("a", "s"), fact("b", "s")),
        (fact(1, "s"), fact(2, "s")),
        (fact(True, "s"), fact(1, "s")),
        (fact("1", "s"), fact(1, "s")),
        (fact({"a": [1]}, "s"), fact({"a": [2]}, "s")),
        (fact("a", "s"), unavailable("gone", "s")),
        (unavailable("not installed", "s"), unavailable("not loaded", "s")),
        (None, fact("a", "s")),
        (fact("a", "s"), None),
    ],
)
def test_a_change(before: Fact | None, after: Fact | None) -> None:
    changes = drift(*one(before, after))
    assert [(change.before, change.after) for change in changes] == [(before, after)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (fact("a", "s"), fact("a", "s")),
        (fact({"a": 1, "b": 2}, "s"), fact({"b": 2, "a": 1}, "s")),
        (fact(1, "s"), fact(1.0, "s")),
        (unavailable("not set", "s"), unavailable("not set", "s")),
        (fact(2**60, "s"), fact(str(2**60), "s")),  # as a stored document keeps it
    ],
)
def test_no_change(before: Fact, after: Fact) -> None:
    assert drift(*one(before, after)) == []


def test_another_source_is_a_note_and_no_change() -> None:
    base, now = one(fact("a", "importlib.metadata"), fact("a", "torch"))
    assert drift(base, now) == []
    assert source_changes(base, now) == ["cpu.model: importlib.metadata → torch"]
    assert base.root_digest != now.root_digest


def test_volatile_readings_are_not_compared() -> None:
    sides = [
        Fingerprint.build("0", "now", {"process": Section(volatile={"pid": fact(pid, "getpid")})})
        for pid in (1, 2)
    ]
    assert drift(*sides) == []
    assert sides[0].root_digest == sides[1].root_digest


def test_flat_keys_come_first_then_sections_in_their_order() -> None:
    fields = [*FLAT_KEYS.values(), *((section, "another") for section in SECTIONS), ("zoo", "unknown")]
    sections: dict[str, dict[str, Fact]] = {}
    for section, field in reversed(fields):
        sections.setdefault(section, {})[field] = fact("x", "s")
    found = [(change.section, change.field) for change in drift(document(), document(**sections))]
    assert found == fields


def test_a_rule_names_level_reason_and_source() -> None:
    change = drift(*one(fact("12.8", "s"), fact("12.9", "s"), "libraries", "cublas"))[0]
    assert change.risk == "bitwise"
    assert change.rule.endswith("(cuBLAS, Results reproducibility)")
    unknown = drift(*one(fact(1, "s"), fact(2, "s"), "process", "observed"))[0]
    assert (unknown.risk, unknown.rule) == (None, NO_RULE)


def test_no_rule_is_hidden_behind_a_more_general_one() -> None:
    from fnmatch import fnmatchcase

    for place, rule in enumerate(RULES):
        general = [earlier.pattern for earlier in RULES[:place] if fnmatchcase(rule.pattern, earlier.pattern)]
        assert general == [], rule.pattern


def test_of_two_tables_only_the_differing_entries_are_shown() -> None:
    digest = "ab" * 32
    before = fact({"same": 1, "w.safetensors": {"sha256": digest, "size": 3}}, "s")
    after = fact({"same": 1, "w.safetensors": {"sha256": "cd" * 32, "size": 3}, "more": 1}, "s")
    change = drift(*one(before, after))[0]
    assert describe(change) == (
        "more=absent, w.safetensors: (sha256=abababababab…)",
        "more=1, w.safetensors: (sha256=cdcdcdcdcdcd…)",
    )


def test_control_characters_of_a_foreign_document_stay_visible() -> None:
    change = drift(*one(fact("a\x1b[2Jb", "s"), unavailable("x\x07", "s")))[0]
    assert describe(change) == ("a\\x1b[2Jb", "unavailable: x\\x07")


json_values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(value=json_values)
def test_a_stored_fingerprint_equals_the_one_that_was_read(value: Any) -> None:
    now = document(cpu={"model": fact(value, "s")})
    stored = Fingerprint.from_json(now.to_json(), "it")
    assert compare(stored, now).changes == []
    assert stored.root_digest == now.root_digest
