"""What `diverge` takes as a trace: whole files, rewritten ones, parts of a dead run; and what it refuses."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.traces import Sequence, disturb, header, llama_sites, sequence, write_parts, write_trace
from fakes.verdicts import sentences
from rip.diverge.compare import diverge
from rip.diverge.present.findings.sentences import why
from rip.diverge.present.verdict_sentences import headline, second_line
from rip.diverge.reading import site_columns
from rip.diverge.reading.load import open_trace
from rip.diverge.reading.site_columns import DecodedGroup, DirectGroup, SiteReader
from rip.schemas.errors import BadInput, OutputFailed
from rip.schemas.trace import HEADER_KEY
from rip.schemas.verdict import Verdict

SITES = llama_sites(2)
S = len(SITES)
ABOUT = header(SITES)


def made(seed: int = 1) -> Sequence:
    one = sequence(seed, S, prompt=5, decode=30)
    one.present[2, 3] = one.present[11] = False  # null hashes inside and a whole row
    return one


def planted() -> Sequence:
    other = made()
    for position, site in ((4, 2), (4, 5), (9, 0), (20, S - 1)):
        disturb(other, position, site, 10.0**-position)
    return other


def judged(verdict: Verdict) -> dict[str, object]:
    said = verdict.to_object()
    return {
        name: said[name] for name in ("levels", "first_token", "first_site", "compared", "max_abs_logit_diff")
    }


def site_rows(folder: Path) -> list[dict[str, object]]:
    return pq.read_table(folder / "sites.parquet").to_pylist()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "a.parquet", [made()], ABOUT)


@pytest.mark.parametrize("rows_per_group", [1024, 6])
def test_our_own_layout_is_read_in_place(tmp_path: Path, rows_per_group: int) -> None:
    trace = open_trace(write_trace(tmp_path / "a.parquet", [made()], ABOUT, rows_per_group))
    reader = SiteReader(trace)
    assert all(isinstance(reader.group(number), DirectGroup) for number in range(len(trace.groups)))
    reader.close()


def _rewritten_by_pyarrow(source: Path, target: Path, **options: object) -> None:
    pq.write_table(pq.read_table(source), target, **options)  # type: ignore[arg-type]


def _rewritten_by_duckdb(source: Path, target: Path) -> None:
    text = pq.read_metadata(source).metadata[HEADER_KEY].decode()
    quoted = text.replace("'", "''")
    kept = f"KV_METADATA {{\"{HEADER_KEY.decode()}\": '{quoted}'}}"
    duckdb.execute(f"COPY (FROM '{source}') TO '{target}' (FORMAT parquet, {kept})")


@pytest.mark.parametrize("how", ["pyarrow", "pages", "data_page_v2", "snappy", "duckdb"])
def test_a_rewritten_trace_gives_the_same_verdict(
    tmp_path: Path, base: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_columns, "_WINDOW_ROWS", 4)
    other = write_trace(tmp_path / "b.parquet", [planted()], ABOUT)
    expected = diverge(base, other, tmp_path / "plain")
    changed = tmp_path / "b2.parquet"
    if how == "duckdb":
        _rewritten_by_duckdb(other, changed)
    else:
        options: dict[str, dict[str, object]] = {
            "pyarrow": {},
            "pages": {"compression": "NONE", "use_dictionary": False, "data_page_size": 1000},
            "data_page_v2": {"compression": "NONE", "use_dictionary": False, "data_page_version": "2.0"},
            "snappy": {"compression": "SNAPPY", "use_dictionary": False, "data_page_size": 1 << 30},
        }
        _rewritten_by_pyarrow(other, changed, **options[how])
    trace = open_trace(changed)
    reader = SiteReader(trace)
    assert isinstance(reader.group(0), DecodedGroup)
    reader.close()
    found = diverge(base, changed, tmp_path / "rewritten")
    assert judged(found) == judged(expected)
    assert site_rows(tmp_path / "rewritten") == site_rows(tmp_path / "plain")
    assert expected.compared.rows_differing == 4


def parts_of(one: Sequence, other: Sequence) -> list[list[tuple[int, int, Sequence]]]:
    """Two sequences, interleaved over three parts."""
    cuts = (0, 7, 20, 35)
    return [[(0, low, one.rows(low, high)), (1, low, other.rows(low, high))] for low, high in pairwise(cuts)]


def two_sequences(plant: bool = False) -> tuple[Sequence, Sequence]:
    one, other = made(), made(2)
    other.sample = 1
    if plant:
        disturb(other, 19, 4)
    return one, other


def test_the_parts_of_a_dead_run_are_read_like_the_whole(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "a.parquet", two_sequences(), ABOUT)
    parts = write_parts(tmp_path / "b.parquet", parts_of(*two_sequences(plant=True)), ABOUT)
    verdict = diverge(whole, parts, tmp_path / "out")
    assert verdict.levels["token"].state == "holds"
    assert verdict.first_site is not None
    assert (verdict.first_site.sample, verdict.first_site.position) == (1, 19)
    assert any("unfinished" in line for line in sentences(verdict.not_seen))


def test_a_truncated_last_part_is_named_and_the_rest_compared(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "a.parquet", two_sequences(), ABOUT)
    parts = write_parts(tmp_path / "b.parquet", parts_of(*two_sequences()), ABOUT)
    last = parts / "part-00002.parquet"
    last.write_bytes(last.read_bytes()[:-100])
    verdict = diverge(whole, parts, tmp_path / "out")
    assert verdict.compared.positions == 2 * 20
    assert (verdict.first_token, verdict.causes) == (None, [])  # cut short is not ended
    assert verdict.levels["token"].state == "not comparable"
    assert "B is incomplete: 30 positions of it are missing" in why(verdict.levels["token"])
    assert verdict.level is None
    assert "B is incomplete" in headline(verdict)
    assert any("part-00002.parquet is truncated" in line for line in sentences(verdict.not_seen))


def test_a_missing_part_in_the_middle_ends_the_comparison_there(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "a.parquet", two_sequences(), ABOUT)
    parts = write_parts(tmp_path / "b.parquet", parts_of(*two_sequences()), ABOUT)
    (parts / "part-00001.parquet").unlink()
    verdict = diverge(whole, parts, tmp_path / "out")
    assert verdict.compared.positions == 2 * 7
    assert any("no rows from position 7 to 19" in line for line in sentences(verdict.not_seen))


def test_a_sequence_that_an_unfinished_run_had_not_begun_is_missing_too(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "a.parquet", two_sequences(), ABOUT)
    parts = write_parts(tmp_path / "b.parquet", [[(0, 0, two_sequences()[0])]], ABOUT)
    reason = why(diverge(whole, parts, tmp_path / "out").levels["token"])
    assert "B is incomplete: 35 positions of it are missing" in reason


def test_tokens_that_part_inside_an_unfinished_trace_diverge(tmp_path: Path) -> None:
    other = made().rows(0, 20)
    other.tokens = other.tokens.copy()
    other.tokens[12] += 1
    whole = write_trace(tmp_path / "a.parquet", [made()], ABOUT)
    verdict = diverge(whole, write_parts(tmp_path / "b.parquet", [[(0, 0, other)]], ABOUT), tmp_path / "out")
    assert verdict.first_token is not None
    assert verdict.first_token.position == 12
    assert verdict.levels["token"].state == "fails"
    assert second_line(verdict).startswith("B is an unfinished run.")


def test_a_whole_trace_that_is_shorter_than_the_parts_has_ended(tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "a.parquet", [[(0, 0, made())]], ABOUT)
    short = write_trace(tmp_path / "b.parquet", [made().rows(0, 20)], ABOUT)
    first = diverge(parts, short, tmp_path / "out").first_token
    assert first is not None
    assert (first.position, first.token_b) == (20, None)


def test_parts_may_hold_fewer_sites_than_the_header(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "a.parquet", [made()], ABOUT)
    parts = write_parts(tmp_path / "b.parquet", [[(0, 0, made())]], ABOUT)
    fewer = [5, 1]
    one = made()
    for name in ("hashes", "present", "l2", "absmax", "sketch"):
        setattr(one, name, getattr(one, name)[:, fewer])
    write_parts(tmp_path / "c.parquet", [[(0, 0, one)]], header([SITES[i] for i in fewer]))
    (tmp_path / "c.parquet.parts" / "part-00000.parquet").replace(parts / "part-00000.parquet")
    verdict = diverge(whole, parts, tmp_path / "out")
    assert verdict.compared.rows == 2 * 33
    assert verdict.compared.rows_differing == 0


def test_an_unfinished_trace_points_to_its_parts(tmp_path: Path, base: Path) -> None:
    write_parts(tmp_path / "b.parquet", [[(0, 0, made())]], ABOUT)
    with pytest.raises(BadInput, match="never finished") as failure:
        diverge(base, tmp_path / "b.parquet", tmp_path / "out")
    assert "b.parquet.parts" in failure.value.fix


def _foreign(path: Path, base: Path) -> None:
    pq.write_table(pq.read_table(base).replace_schema_metadata(None), path)


def _newer(path: Path, base: Path) -> None:
    raw = ABOUT.to_object() | {"schema": "rip.trace/99"}
    plain = pq.read_table(base)
    pq.write_table(plain.replace_schema_metadata({HEADER_KEY: json.dumps(raw).encode()}), path)


def _damaged(path: Path, base: Path) -> None:
    raw = bytearray(base.read_bytes())
    raw[4:400] = bytes(396)
    path.write_bytes(raw)


def _words_for_tokens(path: Path, base: Path) -> None:
    plain = pq.read_table(base)
    column = plain.schema.get_field_index("token_id")
    words = pa.array([str(token) for token in plain.column("token_id").to_pylist()])
    pq.write_table(plain.set_column(column, "token_id", words), path)


def _large_tokens(path: Path, base: Path) -> None:
    plain = pq.read_table(base)
    column = plain.schema.get_field_index("token_id")
    pq.write_table(plain.set_column(column, "token_id", pa.array([2**31] * len(plain))), path)


def _no_tokens(path: Path, base: Path) -> None:
    plain = pq.read_table(base)
    column = plain.schema.get_field_index("token_id")
    pq.write_table(plain.set_column(column, "token_id", pa.nulls(len(plain), pa.int32())), path)


def _damaged_header(path: Path, base: Path) -> None:
    plain = pq.read_table(base)
    pq.write_table(plain.replace_schema_metadata({HEADER_KEY: b"\xff" + ABOUT.to_json().encode()}), path)


def _no_hashes(path: Path, base: Path) -> None:
    pq.write_table(pq.read_table(base).drop_columns(["site_hash"]), path)


def _too_few_sites_named(path: Path, base: Path) -> None:
    about = header(SITES[:-1]).to_json().encode()
    pq.write_table(pq.read_table(base).replace_schema_metadata({HEADER_KEY: about}), path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path, base: None, "does not exist"),
        (lambda path, base: path.write_bytes(b""), "is empty"),
        (lambda path, base: path.write_text("{}"), "not a Parquet file"),
        (lambda path, base: path.write_bytes(base.read_bytes()[:5000]), "truncated"),
        (lambda path, base: path.mkdir(), "has no header.json"),
        (_foreign, "not a trace"),
        (_newer, "newer rip"),
        (_damaged, "damaged"),
        (_damaged_header, "its header is damaged"),
        (_words_for_tokens, "'token_id' holds text, not integers"),
        (_no_hashes, "the column 'site_hash' is missing"),
        (_too_few_sites_named, "names 11 sites, its columns hold 12"),
        (_no_tokens, "empty cells in its column token_id"),
        (_large_tokens, "damaged.*2147483648 not in range"),
        (lambda path, base: write_trace(path, [], ABOUT), "no rows"),
    ],
    ids=[
        "missing",
        "empty",
        "text",
        "truncated",
        "folder",
        "foreign",
        "newer",
        "damaged",
        "header",
        "words",
        "no hashes",
        "too few sites",
        "no tokens",
        "large tokens",
        "no rows",
    ],
)
def test_bad_input_is_named_with_a_fix(tmp_path: Path, base: Path, make, words: str) -> None:  # type: ignore[no-untyped-def]
    bad = tmp_path / "bad.parquet"
    make(bad, base)
    with pytest.raises(BadInput, match=words) as failure:
        diverge(base, bad, tmp_path / "out")
    assert failure.value.fix
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("column", ["token_id", "logits_hash", "site_hash", "topk_logits"])
def test_a_flipped_bit_is_never_taken_for_a_difference(tmp_path: Path, base: Path, column: str) -> None:
    intact = base.read_bytes()
    meta = pq.ParquetFile(base).metadata.row_group(0)
    chunk = next(
        meta.column(i) for i in range(meta.num_columns) if meta.column(i).path_in_schema.startswith(column)
    )
    bad = tmp_path / "bad.parquet"
    rng = np.random.default_rng(7)
    refusals: list[str] = []
    for at in rng.integers(chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size, 25):
        raw = bytearray(intact)
        raw[at] ^= 1 << rng.integers(8)
        bad.write_bytes(raw)
        try:
            verdict = diverge(base, bad, tmp_path / "out", force=True)
        except BadInput as error:
            refusals.append(error.message)
        else:  # a bit of the checksum itself, or one that says nothing
            assert verdict.level == "bitwise"
    assert len(refusals) > 20
    assert all("damaged" in message for message in refusals)


def test_a_sketch_that_no_row_can_have_is_damage_and_a_large_real_drift_is_not(tmp_path: Path) -> None:
    one, other = made(), made()
    disturb(other, 9, 3, 1.0)
    base = write_trace(tmp_path / "a.parquet", [one], ABOUT)
    drifted = write_trace(tmp_path / "b.parquet", [other], ABOUT)
    assert diverge(base, drifted, tmp_path / "out").compared.rows_differing == 1
    meta = pq.ParquetFile(drifted).metadata.row_group(0)
    chunks = [meta.column(i) for i in range(meta.num_columns)]
    sketch = next(chunk for chunk in chunks if chunk.path_in_schema.startswith("site_sketch"))
    raw = bytearray(drifted.read_bytes())
    end = sketch.data_page_offset + sketch.total_compressed_size
    place = end - (one.length * S - (9 * S + 3)) * 64
    raw[place + 3] ^= 0x40  # the highest bit of an exponent
    drifted.write_bytes(raw)
    with pytest.raises(BadInput, match=r"damaged.*site_sketch"):
        diverge(base, drifted, tmp_path / "out", force=True)


def test_another_row_hash_proves_nothing_about_bits(tmp_path: Path) -> None:
    one = made()
    one.has_logits[:] = False
    a = write_trace(tmp_path / "a.parquet", [one], ABOUT)
    b = write_trace(tmp_path / "b.parquet", [one], header(SITES, row_hash="other-hash/1"))
    level = diverge(a, b, tmp_path / "out").levels["bitwise"]
    assert level.state == "not comparable"
    assert "different row hashes" in why(level)
    disturb(one, 9, 3)
    c = write_trace(tmp_path / "c.parquet", [one], header(SITES, row_hash="other-hash/1"))
    assert diverge(a, c, tmp_path / "out2").levels["bitwise"].state == "fails"


def test_results_are_not_overwritten_unless_forced(tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    diverge(base, base, out)
    with pytest.raises(OutputFailed, match="exists already"):
        diverge(base, base, out)
    diverge(base, base, out, force=True)
    foreign = tmp_path / "precious"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputFailed, match="not a result"):
        diverge(base, base, foreign, force=True)
    assert (foreign / "thesis.txt").exists()


def test_many_null_patterns_are_read_as_pyarrow_reads_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    one = sequence(3, S, prompt=100, decode=100)
    one.present[:] = rng.random(one.present.shape) < 0.7
    one.present[50:60], one.present[100:130] = True, False
    trace = open_trace(write_trace(tmp_path / "a.parquet", [one], ABOUT))
    reader = SiteReader(trace)
    direct, decoded = reader.group(0), DecodedGroup(trace.groups[0])
    assert isinstance(direct, DirectGroup)
    for first, count in ((0, 200), (45, 20), (99, 2), (120, 80)):
        a, b = np.empty((count, S, 2), np.uint64), np.empty((count, S, 2), np.uint64)
        there, expected = direct.hashes(first, a), DecodedGroup(trace.groups[0]).hashes(first, b)
        assert expected is not None
        assert np.array_equal(there, expected)
        assert np.array_equal(a, b)
        assert np.array_equal(a, np.where(expected[..., None], one.hashes[first : first + count], 0))
    rows, sites = np.array([3, 3, 77, 199]), np.array([0, 5, 2, 1])
    for column in ("site_sketch", "site_l2"):
        assert np.array_equal(direct.take(column, rows, sites), decoded.take(column, rows, sites))
    reader.close()
