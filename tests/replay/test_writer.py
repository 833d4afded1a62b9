"""The trace writer: rows in order, every column as handed over, bounded memory, the promised layout."""

import os
import stat
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes.rows import (
    PROMPT_TOKENS,
    SITES,
    in_order,
    info,
    interleave,
    parts_of,
    places,
    rows,
    start,
    summaries_of,
)
from fakes.traces import header
from hypothesis import given
from hypothesis import strategies as st
from rip.replay import trace_writer as writer_module
from rip.replay.row_summaries.rows import Rows, RowSummaries, TopK
from rip.replay.trace_writer import table_of
from rip.schemas.errors import OutputFailed
from rip.schemas.trace import HEADER_KEY, TraceHeader, arrow_schema


class Clock:
    """Stands in for the time module of the writer."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    stopped = Clock()
    monkeypatch.setattr(writer_module, "time", stopped)
    return stopped


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "t.parquet"


# Order, content


@pytest.mark.parametrize("flush_bytes", [1 << 30, 4000, 1], ids=["no part", "some parts", "a part each"])
def test_rows_come_out_by_sequence_and_position_whatever_the_order_they_came_in(
    trace, monkeypatch, flush_bytes
):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", flush_bytes)
    writer = start(trace)
    interleave(writer)
    assert writer.finish(header(SITES)) == trace
    table = pq.read_table(trace)
    assert places(table) == in_order()
    assert writer.rows_written == 30
    assert not trace.with_name("t.parquet.parts").exists()
    assert [path.name for path in trace.parent.iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("flush_bytes", [1 << 30, 1])
def test_every_column_holds_what_was_handed_over(trace, monkeypatch, flush_bytes):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", flush_bytes)
    writer = start(trace)
    interleave(writer)
    writer.append(info(1), rows(1, 15, 1, summaries=False, topk=False))  # a last token that was never fed
    writer.finish(header(SITES))
    table = pq.read_table(trace)
    assert table.schema.equals(arrow_schema(len(SITES), keeps_tensors=False))
    for row in table.to_pylist():
        sequence, position = row["sequence"], row["position"]
        assert row["request_id"] == f"request-{sequence}"
        assert row["sample"] == sequence
        assert row["cell"] == ""
        assert row["step"] == (None if position < PROMPT_TOKENS else position - PROMPT_TOKENS)
        assert row["phase"] == ("prompt" if position < PROMPT_TOKENS else "decode")
        assert row["token_id"] == position + 100 * sequence
        assert row["forced"] is False
        assert (row["batch_size"], row["batch_row"], row["cached_tokens"]) == (2, sequence, position)
        if position == 15:
            assert row["topk_ids"] is None
            assert row["logits_hash"] is row["logsumexp"] is row["sampler"] is None
            assert row["site_hash"] == [None] * 3
            assert row["site_l2"] == [0.0] * 3
            assert row["site_sketch"] == [0.0] * 48
            continue
        assert row["topk_ids"] == [0, 1, 2]
        assert row["topk_logprobs"] == [0.0, -1.0, -2.0]
        assert (row["logsumexp"], row["logits_hash"]) == (2.5, bytes(range(16)))
        assert row["sampler"] == {"top1_id": 1, "top1_logit": 0.5, "draw": 0.25, "rng_offset": 7}
        expected = summaries_of(position, 1, sequence)
        assert row["site_hash"] == [digest.tobytes() for digest in expected.digests()[0]]
        assert row["site_l2"] == expected.l2[0].tolist()
        assert row["site_absmax"] == expected.absmax[0].tolist()
        assert row["site_sketch"] == expected.sketch[0].reshape(-1).tolist()


def test_forced_marks_generated_tokens_only(trace):
    writer = start(trace)
    writer.append(info(0), rows(0, 0, 6, forced=True))
    writer.finish(header(SITES))
    assert pq.read_table(trace)["forced"].to_pylist() == [False] * 4 + [True] * 2


def test_the_header_of_the_finished_trace_is_the_final_one(trace):
    writer = start(trace)
    interleave(writer)
    writer.finish(header(SITES, findings=["found at the end"]))
    text = pq.read_metadata(trace).metadata[HEADER_KEY]
    assert TraceHeader.from_json(text, "t").findings == ["found at the end"]


def test_capture_of_tokens_has_no_site_columns(trace):
    writer = start(trace, sites=[])
    writer.append(info(0), rows(0, 0, 3, summaries=False))
    writer.finish(header([]))
    assert not {name for name in pq.read_schema(trace).names if name.startswith("site_")}


def test_kept_tensors_are_raw_bits(trace):
    writer = start(trace, keeps_tensors=True)
    kept = [[(0, b"\x00\x80\xff"), (2, b"")], [], [(1, b"abc")]]
    plain = rows(0, 0, 3)
    writer.append(info(0), Rows(**{**vars(plain), "tensors": kept}))
    writer.append(info(0), rows(0, 3, 2))
    writer.finish(header(SITES))
    assert pq.read_table(trace)["tensors"].to_pylist() == [
        [{"site": 0, "row": b"\x00\x80\xff"}, {"site": 2, "row": b""}],
        None,
        [{"site": 1, "row": b"abc"}],
        None,
        None,
    ]


def test_nan_and_infinity_stay_what_they_are(trace):
    writer = start(trace)
    odd = rows(0, 0, 2)
    odd.summaries.l2[0], odd.summaries.sketch[1, 2, 3] = np.nan, np.inf
    odd.topk[0] = TopK(
        odd.topk[0].ids,
        np.array([np.nan, np.inf, -np.inf], np.float32),
        np.full(3, np.nan),
        np.nan,
        b"x" * 16,
    )
    writer.append(info(0), odd)
    writer.finish(header(SITES))
    table = pq.read_table(trace).to_pylist()
    assert np.isnan(table[0]["site_l2"]).all()
    assert table[1]["site_sketch"][2 * 16 + 3] == np.inf
    np.testing.assert_array_equal(table[0]["topk_logits"], [np.nan, np.inf, -np.inf])
    assert np.isnan(table[0]["logsumexp"])


def test_a_site_that_was_not_computed_in_some_rows_is_null_there(trace):
    writer = start(trace)
    gap = rows(0, 0, 3)
    gap.summaries.row_hash[1, 2] = 0
    writer.append(info(0), gap)
    writer.finish(header(SITES))
    hashes = pq.read_table(trace)["site_hash"].to_pylist()
    assert [[digest is None for digest in row] for row in hashes] == [
        [False] * 3,
        [False, False, True],
        [False] * 3,
    ]


def test_summaries_that_are_views_of_a_batch_are_written_row_by_row(trace):
    whole = summaries_of(0, 6)
    chosen = slice(1, 6, 2)
    view = RowSummaries(whole.row_hash[chosen], whole.l2[chosen], whole.absmax[chosen], whole.sketch[chosen])
    writer = start(trace)
    writer.append(info(0), Rows(**{**vars(rows(0, 0, 3)), "summaries": view}))
    writer.finish(header(SITES))
    table = pq.read_table(trace)
    assert table["site_l2"].to_pylist() == whole.l2[chosen].tolist()
    assert table["site_hash"].to_pylist() == [[d.tobytes() for d in row] for row in whole.digests()[chosen]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=20), st.integers(1, 20_000))
def test_any_interleaving_and_any_limit_give_the_same_rows(tmp_path_factory, blocks, flush_bytes):
    trace = tmp_path_factory.mktemp("trace") / "t.parquet"
    reached = dict.fromkeys(range(4), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "FLUSH_BYTES", flush_bytes)
        patch.setattr(writer_module, "ROW_GROUP_BYTES", 2000)
        writer = start(trace)
        for sequence, count in blocks:
            writer.append(info(sequence), rows(sequence, reached[sequence], count))
            reached[sequence] += count
        writer.finish(header(SITES))
    table = pq.read_table(trace)
    assert places(table) == [(sequence, at) for sequence in range(4) for at in range(reached[sequence])]
    assert table["request_id"].to_pylist() == [f"request-{sequence}" for sequence, _ in places(table)]


# Parts


def test_a_part_is_written_when_the_buffer_is_full(trace, monkeypatch):
    size = table_of(arrow_schema(len(SITES), False), info(0), rows(0, 0, 3)).nbytes
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 2 * size + size // 2)
    writer = start(trace)
    written = []
    for block in range(7):
        writer.append(info(0), rows(0, 3 * block, 3))
        written.append(len(parts_of(trace)))
    assert written == [0, 0, 1, 1, 1, 2, 2]
    assert writer.rows_written == 18


def test_a_part_is_written_when_rows_have_waited(trace, clock):
    writer = start(trace)
    written = []
    for block in range(7):
        clock.now += 4.0
        writer.append(info(0), rows(0, 3 * block, 3))
        written.append(len(parts_of(trace)))
    assert written == [0, 0, 1, 1, 1, 2, 2]  # after 12 and after 24 seconds


def test_no_part_of_a_long_trace_is_larger_than_the_limit_and_one_block(trace, monkeypatch, clock):
    limit = 200_000
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", limit)
    block = table_of(arrow_schema(len(SITES), False), info(0), rows(0, 0, 64)).nbytes
    writer = start(trace)
    for index in range(80):
        writer.append(info(index % 3), rows(index % 3, 64 * (index // 3), 64))
    sizes = [pq.read_table(path).nbytes for path in parts_of(trace)]
    assert len(sizes) > 5
    assert max(sizes) <= limit + block
    writer.finish(header(SITES))
    assert pq.read_metadata(trace).num_rows == 80 * 64


def test_row_groups_are_bounded_even_where_a_long_prompt_comes_in_one_piece(trace, monkeypatch):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 1)
    monkeypatch.setattr(writer_module, "ROW_GROUP_BYTES", 50_000)
    writer = start(trace)
    writer.append(info(0), rows(0, 0, 500))
    in_part = pq.read_metadata(parts_of(trace)[0])
    writer.finish(header(SITES))
    for metadata in (in_part, pq.read_metadata(trace)):
        sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
        assert len(sizes) > 2
        assert max(sizes) < 2 * 50_000
    assert places(pq.read_table(trace)) == in_order(1, 500)


def test_more_parts_than_a_process_may_have_open_are_merged(trace, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    writer = start(trace)
    for block in range(120):
        writer.append(info(0), rows(0, block, 1))
    already_open = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (already_open + 40, hard))
    try:
        writer.finish(header(SITES))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert places(pq.read_table(trace)) == in_order(1, 120)


def test_parts_of_an_earlier_run_are_not_mixed_in(trace, monkeypatch):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 1)
    dead = start(trace)
    interleave(dead, sequences=1, blocks=9)
    assert len(parts_of(trace)) == 9
    dead.close()
    with pytest.raises(OutputFailed, match="holds what an unfinished run recorded"):
        start(trace)
    assert len(parts_of(trace)) == 9
    fresh = start(trace, force=True)
    assert parts_of(trace) == []
    interleave(fresh, sequences=1, blocks=2)
    assert len(parts_of(trace)) == 2
    fresh.finish(header(SITES))
    assert places(pq.read_table(trace)) == in_order(1, 6)


def test_an_earlier_parts_folder_is_gone_after_a_run_that_needed_none(trace):
    left = trace.with_name("t.parquet.parts")
    left.mkdir()
    (left / "part-00000.parquet").write_bytes(b"old")
    writer = start(trace, force=True)
    writer.append(info(0), rows(0, 0, 3))
    writer.finish(header(SITES))
    assert not left.exists()


# Permissions and layout


def test_only_the_owner_can_read_a_trace_or_its_parts(trace, monkeypatch):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 1)
    previous = os.umask(0)
    try:
        writer = start(trace)
        interleave(writer)
        parts = trace.with_name("t.parquet.parts")
        assert stat.S_IMODE(parts.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in parts.iterdir()} == {0o600}
        writer.finish(header(SITES))
    finally:
        os.umask(previous)
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600


@pytest.mark.parametrize("flush_bytes", [1 << 30, 1])
def test_sketches_are_the_last_bytes_of_their_column_chunk(trace, monkeypatch, flush_bytes):
    """The layout that schemas/trace.parquet_options promises: one plain page per row group."""
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", flush_bytes)
    monkeypatch.setattr(writer_module, "ROW_GROUP_BYTES", 5000)
    writer = start(trace)
    interleave(writer, blocks=20)
    files = [*parts_of(trace), writer.finish(header(SITES))]
    metadata = pq.read_metadata(trace)
    assert metadata.num_row_groups > 2
    raw, table, start_row = trace.read_bytes(), pq.read_table(trace), 0
    assert files[-1] == trace
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for column in range(group.num_columns):
            chunk = group.column(column)
            name = chunk.path_in_schema.split(".")[0]
            if name not in ("site_l2", "site_absmax", "site_sketch"):
                continue
            width = 48 if name == "site_sketch" else 3
            size = group.num_rows * width * 4
            end = chunk.data_page_offset + chunk.total_compressed_size
            values = np.frombuffer(raw[end - size : end], "<f4").reshape(group.num_rows, width)
            expected = table[name].slice(start_row, group.num_rows).to_pylist()
            np.testing.assert_array_equal(values, np.array(expected, np.float32))
            assert chunk.compression == "UNCOMPRESSED"
        start_row += group.num_rows


def test_a_reader_that_checks_finds_a_flipped_bit(trace):
    writer = start(trace)
    interleave(writer)
    writer.finish(header(SITES))
    group = pq.read_metadata(trace).row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    sketch = next(chunk for chunk in chunks if chunk.path_in_schema.startswith("site_sketch"))
    whole = bytearray(trace.read_bytes())
    whole[sketch.data_page_offset + sketch.total_compressed_size - 1] ^= 1
    pq.read_table(trace, page_checksum_verification=True)
    trace.write_bytes(whole)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(trace, page_checksum_verification=True)
