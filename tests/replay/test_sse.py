"""Event streams as bytes: nothing is lost or changed however they are cut, and events end where they end."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.replay import sse
from rip.replay.sse import EventTooLong, Splitter, data_of, with_data

ENDS = st.sampled_from(["\n", "\r\n"])
LINES = st.sampled_from([": comment", "event: token", "id: 7", "retry: 5", "", "field without colon"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes | None]]:
    """A stream with one kind of line end, and the data of its events."""
    end = draw(ENDS)
    text, found = "", []
    for _ in range(draw(st.integers(0, 5))):
        data = draw(
            st.lists(
                st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=6),
                max_size=3,
            )
        )
        others = [line for line in draw(st.lists(LINES, max_size=2)) if line]
        lines = [*others, *(f"data: {part}" for part in data)]
        if lines:
            text += "".join(line + end for line in lines) + end
            found.append("\n".join(data).encode() if data else None)
    return text.encode(), found


def cut(content: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(content), *(place % (len(content) + 1) for place in places)})
    return [content[a:b] for a, b in pairwise(edges)]


@given(streams(), st.lists(st.integers(0, 1000), max_size=12))
def test_any_cut_gives_the_same_events(stream: tuple[bytes, list[bytes | None]], places: list[int]) -> None:
    content, data = stream
    splitter = Splitter()
    events = [event for chunk in cut(content, places) for event in splitter.feed(chunk)]
    assert b"".join(events) + splitter.rest() == content, "no byte is lost"
    assert [found for found in map(data_of, events) if found is not None] == [
        d for d in data if d is not None
    ]


@given(st.binary(max_size=60).map(lambda b: b.replace(b"\x00", b"\n").replace(b"\x01", b"\r")), st.data())
def test_no_byte_is_lost_of_anything(content: bytes, data: st.DataObject) -> None:
    splitter = Splitter()
    places = data.draw(st.lists(st.integers(0, 60), max_size=8))
    events = [event for chunk in cut(content, places) for event in splitter.feed(chunk)]
    assert b"".join(events) + splitter.rest() == content


@given(streams())
def test_rewriting_changes_the_data_only(stream: tuple[bytes, list[bytes | None]]) -> None:
    for event in Splitter().feed(stream[0]):
        if data_of(event) is None:
            continue
        new = with_data(event, b'{"a":1}')
        assert data_of(new) == b'{"a":1}'
        kept = [line for line in event.splitlines() if not line.startswith(b"data")]
        assert [line for line in new.splitlines() if not line.startswith(b"data")] == kept


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"data: a\r\rdata: b\r\r", [b"data: a\r\r", b"data: b\r\r"]),
        (b"data: a\r\n\r\ndata: b\n\n", [b"data: a\r\n\r\n", b"data: b\n\n"]),
        (b"data: a\r\ndata: b\r\n", []),
        (b"data: a\n", []),
    ],
)
def test_events_end_at_a_blank_line(text: bytes, events: list[bytes]) -> None:
    assert Splitter().feed(text) == events


def test_a_line_end_of_two_bytes_is_one_even_when_cut() -> None:
    splitter = Splitter()
    chunks = [b"data: a\r", b"\ndata: b\r", b"\n\r", b"\ndata: c\r\n\r\n"]
    data = [data_of(event) for chunk in chunks for event in splitter.feed(chunk)]
    assert data == [b"a\nb", b"c"]


def test_a_mark_at_the_beginning_is_no_part_of_the_field() -> None:
    event = b"\xef\xbb\xbfdata: [1]\n\n"
    assert json.loads(data_of(event) or b"") == [1]
    assert with_data(event, b"[2]") == b"\xef\xbb\xbfdata: [2]\n\n"


def test_an_event_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    splitter = Splitter()
    splitter.feed(b"x" * 90)
    with pytest.raises(EventTooLong):
        splitter.feed(b"y" * 90)
    assert splitter.rest() == b"x" * 90 + b"y" * 90
