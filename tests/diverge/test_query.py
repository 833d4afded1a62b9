"""`rip query`: views, formats, and what it refuses."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from fakes import results
from rip.commands.query import query
from rip.diverge.views.open_views import open_views
from rip.diverge.views.query import run
from rip.schemas import trace
from rip.schemas.errors import RipError
from typer.testing import CliRunner

DOCS = Path(__file__).parents[2] / "docs" / "queries.md"
SCENE = results.Scene()

app = typer.Typer()
app.command()(query)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("query")
    results.write_result(path / "result", SCENE)
    results.write_trace(path / "t.parquet", SCENE)
    return path


def ask(path: Path, sql: str) -> list[dict]:
    """All rows of a statement."""
    with open_views(path) as views:
        rows = run(views, sql)
        return pa.Table.from_batches(list(rows.batches), schema=rows.schema).to_pylist()


def call(*arguments: object) -> tuple[str, str]:
    """Standard output and standard error of a call that succeeds."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout, done.stderr


def refusal(path: Path, sql: str = "SELECT 1") -> RipError:
    with pytest.raises(RipError) as caught:
        ask(path, sql)
    assert "\n" not in caught.value.message + caught.value.fix
    assert caught.value.exit_code == 2
    return caught.value


def documented(section: str) -> list[str]:
    text = DOCS.read_text().split(f"## {section}")[1].split("\n## ")[0]
    return re.findall(r"```sql\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("sql", documented("Over a result folder"))
def test_documented_queries_over_a_result_give_rows(folder: Path, sql: str) -> None:
    assert ask(folder / "result", sql)


@pytest.mark.parametrize("sql", documented("Over a trace"))
def test_documented_queries_over_a_trace_run(folder: Path, sql: str) -> None:
    ask(folder / "t.parquet", sql)


@pytest.mark.parametrize(("name", "views"), [("result", 13), ("t.parquet", 6)])
def test_without_sql_every_view_is_listed_with_an_example_that_runs(
    folder: Path, name: str, views: int
) -> None:
    out, _ = call(folder / name)
    examples = re.findall(r'example: rip query \S+ "(.*)"', out)
    assert len(examples) == views
    for sql in examples:
        ask(folder / name, sql)
    described = [line for line in out.splitlines() if re.match(r"  \w+ +[A-Z]+", line)]
    assert all(len(line.split(None, 2)) == 3 for line in described)  # every column has a meaning


def test_site_rows_of_a_result_carry_name_layer_and_step(folder: Path) -> None:
    first = ask(folder / "result", "SELECT * FROM sites ORDER BY pair, position, site LIMIT 1")[0]
    assert first["label"] == "layers.2.mlp.gate_proj"
    assert (first["layer"], first["position"], first["step"]) == (2, SCENE.origin_position, 5)
    assert first["request_id"] == "req-1"


def test_trace_site_rows_are_the_files_values(folder: Path) -> None:
    file = pq.read_table(folder / "t.parquet").slice(12, 1).to_pylist()[0]
    sql = f"SELECT * FROM sites WHERE sequence = 0 AND position = {file['position']} ORDER BY site"
    rows = ask(folder / "t.parquet", sql)
    assert [row["hash"] for row in rows] == [value.hex() for value in file["site_hash"]]
    assert [row["l2"] for row in rows] == file["site_l2"]
    assert [value for row in rows for value in row["sketch"]] == file["site_sketch"]
    assert [row["layer"] for row in rows[:3]] == [None, 0, 0]


def test_a_row_that_was_not_computed_is_null_and_not_zero(folder: Path) -> None:
    row = ask(folder / "t.parquet", "SELECT * FROM sites WHERE name = 'norm' AND position = 0 LIMIT 1")[0]
    assert [row["hash"], row["l2"], row["absmax"], row["sketch"]] == [None] * 4


def test_derived_token_columns_speak_of_the_row_before(folder: Path) -> None:
    rows = ask(folder / "t.parquet", "SELECT * FROM tokens WHERE sequence = 0 ORDER BY position")
    assert rows[0]["logprob"] is None
    assert rows[0]["margin"] is None
    for before, row in itertools.pairwise(rows):
        assert row["top1_id"] == before["topk_ids"][0]
        assert row["rank"] == 0
        assert row["logprob"] == before["topk_logprobs"][0]
        assert row["margin"] == pytest.approx(before["topk_logits"][0] - before["topk_logits"][1])
    assert rows[1]["text"] == " does"


def test_candidates_stand_at_the_position_that_they_predict(folder: Path) -> None:
    sql = "SELECT t.step, k.step AS candidate_step, token_id = t.token FROM topk k JOIN (SELECT sequence,"
    sql += " position, step, token_id AS token FROM tokens) t USING (sequence, position) WHERE chosen"
    rows = ask(folder / "t.parquet", sql)
    assert len(rows) == 2 * (len(results.sequences(SCENE)[0]) - 1)
    assert all(row["step"] == row["candidate_step"] for row in rows)


def test_parts_of_a_run_that_died_are_read_and_a_truncated_one_is_named(folder: Path, tmp_path: Path) -> None:
    parts = tmp_path / "t.parquet.parts"
    parts.mkdir()
    said = results.header(SCENE, "single", threads=2)
    (parts / "header.json").write_text(said.to_json())
    table = results.trace_table(SCENE, "a")
    for number in range(3):
        results.write_part(parts / f"part-{number:05d}.parquet", table.slice(number * 10, 10), said)
    whole = (parts / "part-00002.parquet").read_bytes()
    (parts / "part-00002.parquet").write_bytes(whole[: len(whole) // 2])
    out, err = call(parts, "SELECT count(*) AS n, count(DISTINCT site) AS s FROM sites", "--format", "csv")
    assert out == "n,s\n600,30\n"
    assert "part-00002.parquet" in err
    assert "t.parquet.parts" in refusal(tmp_path / "t.parquet").fix


def test_parts_with_fewer_sites_are_matched_by_name(tmp_path: Path) -> None:
    parts = tmp_path / "t.parquet.parts"
    parts.mkdir()
    said = results.header(SCENE, "single", threads=2)
    fewer = said.model_copy(update={"sites": said.sites[2:]})
    (parts / "header.json").write_text(said.to_json())
    table = results.trace_table(SCENE, "a").slice(0, 8)
    results.write_part(parts / "part-00000.parquet", table, said)
    narrow = _without_first_sites(table, 2)
    results.write_part(parts / "part-00001.parquet", narrow, fewer)
    rows = ask(
        parts, "SELECT name, count(*) AS n, min(site) AS i, count(DISTINCT hash) AS h FROM sites GROUP BY ALL"
    )
    found = {row["name"]: (row["n"], row["i"]) for row in rows if row["name"] in {"embed_tokens", "layers.3"}}
    assert found == {"embed_tokens": (8, 0), "layers.3": (16, 28)}
    same = (
        "SELECT position FROM sites WHERE name = 'layers.3' GROUP BY position HAVING count(DISTINCT hash) > 1"
    )
    assert ask(parts, same) == []


def _without_first_sites(table: pa.Table, count: int) -> pa.Table:
    n = len(table["site_hash"][0])
    schema = trace.arrow_schema(n - count, keeps_tensors=False)
    rows = table.to_pylist()
    for row in rows:
        for name in ("site_hash", "site_l2", "site_absmax"):
            row[name] = row[name][count:]
        row["site_sketch"] = row["site_sketch"][count * trace.SKETCH_SIZE :]
    return pa.Table.from_pylist(rows, schema=schema)


def test_a_trace_without_sites_has_an_empty_sites_view(tmp_path: Path) -> None:
    table = results.trace_table(SCENE, "a").drop_columns(sorted(trace.SITE_COLUMNS))
    said = results.header(SCENE, "single", threads=2).model_copy(update={"sites": [], "capture": "tokens"})
    pq.write_table(table.replace_schema_metadata({trace.HEADER_KEY: said.to_json()}), tmp_path / "t.parquet")
    assert ask(tmp_path / "t.parquet", "SELECT name, layer, l2, sketch FROM sites") == []
    assert ask(tmp_path / "t.parquet", "SELECT * FROM changes") == []


ODD = (
    "SELECT 1::FLOAT / 10 AS f, NULL AS n, 'a,\"b' AS s, [0.1::FLOAT, NULL] AS l,"
    " '\\xAB'::BLOB AS b, 'NaN'::FLOAT AS x"
)


def test_csv_is_complete_and_shows_the_shortest_float(folder: Path) -> None:
    out, _ = call(folder / "result", ODD, "--format", "csv")
    assert list(csv.reader(io.StringIO(out)))[1] == ["0.1", "", 'a,"b', "[0.1, null]", "ab", "nan"]
    out, err = call(folder / "result", "SELECT * FROM range(1234)", "--format", "csv")
    assert len(out.splitlines()) == 1235
    assert err == ""


def test_json_is_one_document_with_a_schema_field(folder: Path) -> None:
    out, _ = call(folder / "result", ODD, "--format", "json")
    document = json.loads(out)
    assert document["schema"] == "rip.rows/1"
    assert document["rows"] == [{"f": 0.1, "n": None, "s": 'a,"b', "l": [0.1, None], "b": "ab", "x": "NaN"}]
    assert json.loads(call(folder / "result", "SELECT 1 WHERE false", "--format", "json")[0])["rows"] == []


def test_repeated_column_names_stay_apart(folder: Path) -> None:
    out, _ = call(folder / "result", "SELECT 1 AS a, 2 AS a", "--format", "json")
    assert json.loads(out)["rows"] == [{"a": 1, "a_2": 2}]


def test_the_output_file_decides_the_format_and_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    call(folder / "result", "SELECT * FROM sites", "-o", out)
    assert pq.read_metadata(out).num_rows == pq.read_metadata(folder / "result" / "sites.parquet").num_rows
    assert out.stat().st_mode & 0o077 == 0
    with pytest.raises(RipError, match="exists already"):
        call(folder / "result", "SELECT 1", "-o", out)
    call(folder / "result", "SELECT 1 AS one", "-o", out, "--force")
    assert pq.read_table(out).to_pylist() == [{"one": 1}]


def test_a_failing_statement_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RipError):
        call(folder / "result", "SELECT CAST(request_id AS INTEGER) FROM tokens", "-o", tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_table_shows_null_hides_nothing_silently_and_cannot_steer_the_terminal(folder: Path) -> None:
    out, err = call(folder / "result", "SELECT NULL AS a, chr(27) || '[31m' AS b FROM range(150)")
    assert len(out.splitlines()) == 102
    assert "NULL" in out
    assert "\x1b" not in out
    assert "\\x1b[31m" in out
    assert "first 100 rows" in err
    out, err = call(folder / "result", "SELECT repeat('x', 500) AS a")
    assert "…" in out
    assert "long cells" in err


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{here}/out.csv'",
        "WITH x AS (COPY (SELECT 1) TO '{here}/t.parquet' (USE_TMP_FILE false)) SELECT 1",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{here}/t.parquet' (USE_TMP_FILE false)",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW tokens",
        "ATTACH '{here}/other.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT * FROM read_text('{here}/secret')",
        "SELECT * FROM '{here}/secret.csv'",
        "SELECT * FROM glob('{here}/*')",
        "SELECT 1; SELECT 2",
        "",
        "-- only a comment",
    ],
)
def test_a_statement_can_read_the_views_and_nothing_else(folder: Path, tmp_path: Path, sql: str) -> None:
    shutil.copy(folder / "t.parquet", tmp_path / "t.parquet")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret.csv").write_text("secret\n1\n")
    before = (tmp_path / "t.parquet").read_bytes()
    error = refusal(tmp_path / "t.parquet", sql.format(here=tmp_path))
    assert "secret\n" not in error.message
    assert (tmp_path / "t.parquet").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"t.parquet", "secret", "secret.csv"}


def test_copy_may_be_a_quoted_name_or_a_text(folder: Path) -> None:
    assert ask(folder / "result", "SELECT 'copy' AS \"copy\"") == [{"copy": "copy"}]


def test_a_fault_in_the_sql_is_told_in_one_line_with_the_views(folder: Path) -> None:
    assert "nope" in refusal(folder / "result", "SELECT nope FROM tokens").message
    assert "tokens, sites, site_totals, topk, changes" in refusal(folder / "result", "SELEC 1").fix


def test_bad_files_are_named_with_a_fix(folder: Path, tmp_path: Path) -> None:
    refusal(tmp_path / "missing.parquet")
    (tmp_path / "empty").mkdir()
    assert "rip diverge" in refusal(tmp_path / "empty").message
    (tmp_path / "text.parquet").write_text("hello")
    refusal(tmp_path / "text.parquet")
    whole = (folder / "t.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    assert "truncated" in refusal(tmp_path / "cut.parquet").message
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    refusal(tmp_path / "foreign.parquet")
    newer = results.header(SCENE, "single", 2).to_json().replace("rip.trace/1", "rip.trace/99")
    table = results.trace_table(SCENE, "a").replace_schema_metadata({trace.HEADER_KEY: newer})
    pq.write_table(table, tmp_path / "newer.parquet")
    assert "newer rip" in refusal(tmp_path / "newer.parquet").message


@pytest.mark.parametrize("fault", ["missing", "truncated", "foreign", "newer"])
def test_a_broken_result_folder_is_refused(tmp_path: Path, fault: str) -> None:
    results.write_result(tmp_path / "result", SCENE)
    table = tmp_path / "result" / "sites.parquet"
    if fault == "missing":
        table.unlink()
    elif fault == "truncated":
        table.write_bytes(table.read_bytes()[:-9])
    elif fault == "foreign":
        pq.write_table(pa.table({"a": [1]}), table)
    else:
        summary = tmp_path / "result" / "summary.json"
        summary.write_text(summary.read_text().replace("rip.verdict/3", "rip.verdict/9"))
    refusal(tmp_path / "result", "SELECT * FROM sites")


# Ctrl-C, and SQL that looks like an option

TELLING = """
import sys
from rip.diverge.views import query
plain = query.interruptible
def interruptible(connection, work):
    def told():
        print("running", file=sys.stderr, flush=True)
        return work()
    return plain(connection, told)
query.interruptible = interruptible
from rip.cli import main
main()
"""


@pytest.mark.parametrize("signals", [1, 5])
def test_ctrl_c_ends_a_long_query_at_once(folder: Path, signals: int) -> None:
    sql = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"  # hours
    command = [sys.executable, "-c", TELLING, "query", str(folder / "t.parquet"), sql]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As from a terminal: what runs behind a shell's `&` ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "running\n"
        for _ in range(signals):
            running.send_signal(signal.SIGINT)
        try:
            out, err = running.communicate(timeout=10)
        finally:
            running.kill()
    assert running.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "rip: interrupted"
    assert "Traceback" not in err


def test_a_statement_after_a_bare_double_dash_may_start_with_a_comment(folder: Path) -> None:
    out, _ = call(folder / "result", "--", "-- one\nSELECT 1 AS x, 'a' AS words")
    assert out.splitlines() == ["x  words", "-  -----", "1  a"]


def test_a_damaged_verdict_is_told_with_what_makes_it_whole(tmp_path: Path) -> None:
    results.write_result(tmp_path / "result", SCENE)
    path = tmp_path / "result" / "summary.json"
    path.write_text(path.read_text()[:300])
    assert "run rip diverge again" in refusal(tmp_path / "result").fix


def test_force_replaces_what_a_link_leads_to_and_keeps_the_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.csv").write_text("old")
    link = tmp_path / "link.csv"
    link.symlink_to("kept.csv")
    call(folder / "result", "SELECT 1 AS one", "-o", link, "--force")
    assert link.is_symlink()
    assert (tmp_path / "kept.csv").read_text().split() == ["one", "1"]
