"""Where golden tokens come from, and what is refused as their source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.traces import header, sequence, write_trace
from rip.replay.request.from_trace import golden_from_trace, requests_from_trace
from rip.replay.request.resolve_request import golden_for
from rip.schemas.envelope import Envelope
from rip.schemas.errors import BadInput
from rip.schemas.trace import HEADER_KEY, Request


def envelope(**fields: Any) -> Envelope:
    return Envelope.from_object({"request_id": "r0", "prompt_token_ids": [1], **fields}, "test")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(
        tmp_path / "t.parquet",
        [sequence(1, 0), sequence(1, 0, sample=1), sequence(2, 0, request_id="r1")],
        header([]),
    )


def test_a_trace_gives_the_generated_tokens_of_every_sample(trace: Path) -> None:
    golden = golden_from_trace(trace)
    assert set(golden) == {("r0", 0), ("r0", 1), ("r1", 0)}
    assert golden["r0", 1] == tuple(sequence(1, 0, sample=1).tokens[4:].tolist())
    assert golden_for(envelope(), (golden, trace)) == {0: golden["r0", 0], 1: golden["r0", 1]}


def test_the_envelope_gives_its_expected_tokens() -> None:
    assert golden_for(envelope(expected={"token_ids": [5, 6]}), None) == {0: (5, 6)}


@pytest.mark.parametrize("fields", [{}, {"expected": {"text": "hi"}}, {"expected": {"token_ids": []}}])
def test_an_envelope_without_recorded_tokens_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="is missing or empty") as refused:
        golden_for(envelope(**fields), None)
    assert "--golden" in refused.value.fix


def test_a_request_that_the_trace_lacks_is_refused(trace: Path) -> None:
    with pytest.raises(BadInput, match="r9: not in the golden trace"):
        golden_for(envelope(request_id="r9"), (golden_from_trace(trace), trace))


def test_a_trace_of_a_run_that_generated_nothing_is_refused(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.parquet", [sequence(1, 0, decode=0)], header([]))
    with pytest.raises(BadInput, match="no generated token"):
        golden_for(envelope(), (golden_from_trace(path), path))


def test_files_that_are_no_trace_are_refused(tmp_path: Path, trace: Path) -> None:
    foreign, cut, text, newer, bare = (tmp_path / f"{name}.parquet" for name in "fctnb")
    pq.write_table(pa.table({"a": [1]}), foreign)
    cut.write_bytes(trace.read_bytes()[:-100])
    text.write_text("{}")
    said = header([]).to_json().replace("rip.trace/1", "rip.trace/9").encode()
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({HEADER_KEY: said}), newer)
    same = header([]).to_json().encode()
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({HEADER_KEY: same}), bare)
    for path, message in (
        (foreign, "not a rip trace"),
        (cut, "cannot be read as a trace"),
        (text, "cannot be read as a trace"),
        (newer, "newer rip"),
        (bare, "without its column 'request_id'"),
        (tmp_path / "none.parquet", "no such file"),
        (tmp_path, "cannot be read as a trace"),
    ):
        with pytest.raises(BadInput, match=message) as refused:
            golden_from_trace(path)
        assert refused.value.fix


def test_a_position_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.parquet", [sequence(1, 0), sequence(1, 0)], header([]))
    with pytest.raises(BadInput, match="holds position 0 twice"):
        golden_from_trace(path)


def test_tokens_that_are_text_are_refused(tmp_path: Path, trace: Path) -> None:
    plain = pq.read_table(trace)
    words = pa.array([str(token) for token in plain["token_id"].to_pylist()])
    path = tmp_path / "words.parquet"
    pq.write_table(plain.set_column(plain.schema.get_field_index("token_id"), "token_id", words), path)
    with pytest.raises(BadInput, match="'token_id' holds no integers"):
        golden_from_trace(path)


def test_the_requests_of_a_trace_can_be_run_again(tmp_path: Path) -> None:
    first, second = envelope(), envelope(request_id="r1", sampling={"temperature": 0.5})
    recorded = [
        Request(request_id=one.request_id, envelope_sha256="0" * 64, envelope=one.to_object())
        for one in (first, second)
    ]
    path = write_trace(tmp_path / "t.parquet", [sequence(1, 0)], header([], requests=recorded))
    assert requests_from_trace(path) == [first, second]
    write_trace(path, [sequence(1, 0)], header([]))
    with pytest.raises(BadInput, match="by its digest only"):
        requests_from_trace(path)
