"""JSON text: what is refused, what is held exactly, and the canonical form."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.schemas.base import canonical_json, exactly_representable, parse_json_object, sha256_of
from rip.schemas.errors import BadInput
from rip.schemas.jsontext import MAX_DEPTH

json_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | json_text,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(json_text, children, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("[]", "not an array"),
        ("null", "not null"),
        ('"text"', "not a string"),
        ("{'a': 1}", "column 2"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6"),
        ('{"a": 1} {"b": 2}', "Extra data"),
        ('{"a": 1, "a": 1}', "'a' stands twice"),
        ('{"x": [{"a": 1, "a": 2}]}', "'a' stands twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 5000 + "}", "thousands of digits"),
        (r'{"a": "\ud800"}', "lone surrogate"),
        (r'{"\udfff": 1}', "lone surrogate"),
        (nested(MAX_DEPTH + 1), "nested more than"),
        (nested(100_000), "nested more than"),
        ('{"a":' + "[" * 5000 + "]" * 5000 + "}", "nested more than"),
        (b"\xff\xfe{}", "not UTF-8 text (byte 0)"),
        (b'{"a": "caf\xe9"}', "not UTF-8 text (byte 10)"),
        (b"PAR1\x00\x00", "not JSON"),
    ],
)
def test_refuses_what_readers_disagree_about(text: str | bytes, fault: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_json_object(text, "some.json")
    assert caught.value.message.startswith("some.json: ")
    assert fault in caught.value.message
    assert caught.value.fix


def test_reads_what_is_unusual_but_sound() -> None:
    assert parse_json_object(b"\xef\xbb\xbf{}", "w") == {}, "a byte order mark is skipped"
    assert parse_json_object('{"a": "\\ud83d\\ude00"}', "w") == {"a": "😀"}, (
        "a pair of surrogates is a character"
    )
    assert parse_json_object(nested(MAX_DEPTH), "w")
    assert parse_json_object('{"a": 18446744073709551615}', "w") == {"a": 2**64 - 1}
    assert parse_json_object('{"": {"": 0}}', "w") == {"": {"": 0}}


def test_values_beyond_what_json_holds_become_strings() -> None:
    kept = [2**53 - 1, -(2**53 - 1), True, 1.5, "NaN", None]
    assert exactly_representable(kept) == kept
    assert exactly_representable([2**53, -(2**53), 2**64]) == [
        "9007199254740992",
        "-9007199254740992",
        "18446744073709551616",
    ]
    assert exactly_representable({"a": (math.nan, math.inf, -math.inf)}) == {
        "a": ["NaN", "Infinity", "-Infinity"]
    }


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ({}, b"{}"),
        ({"b": [1, 2], "a": None}, b'{"a":null,"b":[1,2]}'),
        # Keys are sorted by UTF-16 code units: U+1F680 starts with 0xD83D and comes before U+FF21.
        (
            {"\uff21": 1, "🚀": 2, "é": 3, "z": 4, "10": 5, "9": 6},
            '{"10":5,"9":6,"z":4,"é":3,"🚀":2,"Ａ":1}'.encode(),
        ),
        # Only what must be escaped is, in the shortest form.
        (
            {"t": '\b\t\n\f\r"\\/\u0001\u007f\u2028é'},
            '{"t":"\\b\\t\\n\\f\\r\\"\\\\/\\u0001\u007f\u2028é"}'.encode(),
        ),
        # Numbers as ECMAScript prints them.
        ([0.0, -0.0, 1.0, 100.0, 0.1, -2.5], b"[0,0,1,100,0.1,-2.5]"),
        ([1e20, 1e21, 123456789012345680000.0], b"[100000000000000000000,1e+21,123456789012345680000]"),
        ([1e-6, 1e-7, 1.5e-9], b"[0.000001,1e-7,1.5e-9]"),
        ([5e-324, 1.7976931348623157e308], b"[5e-324,1.7976931348623157e+308]"),
        ([0.1 + 0.2, 1 / 3], b"[0.30000000000000004,0.3333333333333333]"),
        ([2**53 - 1, 2**53], b'[9007199254740991,"9007199254740992"]'),
    ],
)
def test_canonical_form(value: object, canonical: bytes) -> None:
    assert canonical_json(value) == canonical


def read_canonical(canonical: bytes) -> object:
    # RFC 8785 prints large floats of integral value without exponent: digits beyond 2^53 are a float.
    return json.loads(
        canonical, parse_int=lambda digits: int(digits) if abs(int(digits)) < 2**53 else float(digits)
    )


@given(json_values)
def test_canonical_form_is_json_of_the_same_value(value: object) -> None:
    canonical = canonical_json(value)
    assert read_canonical(canonical) == exactly_representable(value)
    assert canonical_json(read_canonical(canonical)) == canonical, "and a fixed point"


@given(st.dictionaries(json_text, json_values, min_size=2), st.randoms())
def test_digest_does_not_depend_on_key_order(value: dict[str, object], random: object) -> None:
    keys = list(value)
    random.shuffle(keys)  # type: ignore[attr-defined]
    assert sha256_of({key: value[key] for key in keys}) == sha256_of(value)


@given(st.dictionaries(json_text, st.integers(), min_size=1))
def test_digest_depends_on_every_value(value: dict[str, int]) -> None:
    """The negative control of the test above."""
    key = next(iter(value))
    assert sha256_of({**value, key: value[key] + 1}) != sha256_of(value)
