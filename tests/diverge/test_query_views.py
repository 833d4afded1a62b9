"""Views of `rip query` that an option fills, and what is said where none did."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from fakes import results
from rip.commands.query import query
from rip.diverge.views.columns import RESULT_VIEWS
from rip.diverge.views.open_views import open_views
from rip.schemas.findings.statement import Sentence
from rip.schemas.zoom import OpFinding, SideCheck, Transplant, TransplantedSite, Zoom, ZoomOp
from typer.testing import CliRunner

app = typer.Typer()
app.command()(query)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A made-up result; its verdict can be replaced."""
    results.write_result(tmp_path / "result", results.Scene())
    return tmp_path


def call(*arguments: object) -> tuple[str, str]:
    """Standard output and standard error of a call that succeeds."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout, done.stderr


def ask(path: Path, sql: str) -> list[dict]:
    """All rows of a statement."""
    return json.loads(call(path, sql, "--format", "json")[0])["rows"]


def test_every_column_has_one_meaning_and_every_meaning_a_column(folder: Path) -> None:
    with open_views(folder / "result") as views:
        for name, view in RESULT_VIEWS.items():
            assert {column.name for column in views.describe(name)} == set(view.meanings), name


def test_a_view_without_its_option_is_empty_and_names_the_option(folder: Path) -> None:
    out, err = call(folder / "result", "SELECT * FROM zoom")
    assert "note: zoom is empty: rip diverge --zoom fills it" in err
    assert out.startswith("request_id")
    assert "--reference R.parquet fills it" in call(folder / "result", "SELECT * FROM Reference_Sites")[1]
    assert "fills it" not in call(folder / "result", "SELECT * FROM tokens")[1]
    listed, _ = call(folder / "result")
    assert "\nzoom  (empty: rip diverge --zoom fills it)\n" in listed


def test_the_view_zoom_has_a_row_for_each_origin(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())
    sites = [TransplantedSite(site=f"layers.{layer}.mlp", positions=3, first=13, last=24) for layer in (1, 2)]
    op = ZoomOp(op="aten.mm.default", module="layers.1.mlp", occurrence=0)
    finding = OpFinding(
        kind="op", shows=Sentence(text="another output"), a=[op], b=[op, op], max_abs_diff=0.25, differing=3
    )
    check = SideCheck(state="repeated", rows=9)
    found = Zoom(
        request_id="req-1",
        sample=0,
        position=13,
        site="layers.1.mlp",
        a=check,
        b=check,
        seen_again=True,
        finding=finding,
        transplant=Transplant(state="proven", origins=sites, last=24, logits=9, logits_equal=9),
    )
    path = tmp_path / "result" / "summary.json"
    path.write_text(verdict.model_copy(update={"zoom": found}).to_json())
    rows = ask(tmp_path / "result", "SELECT * FROM zoom ORDER BY origin")
    assert [row["origin"] for row in rows] == ["layers.1.mlp", "layers.2.mlp"]
    assert {row["op_b"] for row in rows} == {"aten.mm.default + aten.mm.default"}
    assert (rows[0]["transplant"], rows[0]["max_abs_diff"], rows[0]["logits_equal"]) == ("proven", 0.25, 9)
    assert "fills it" not in call(tmp_path / "result", "SELECT * FROM zoom")[1]
    alone = found.model_copy(update={"finding": None, "transplant": Transplant(state="not run")})
    path.write_text(verdict.model_copy(update={"zoom": alone}).to_json())
    assert ask(tmp_path / "result", "SELECT transplant, origin, kind FROM zoom") == [
        {"transplant": "not run", "origin": None, "kind": None}
    ]


def test_the_sign_of_a_difference_between_populations_is_documented(folder: Path) -> None:
    out, _ = call(folder / "result")
    assert re.search(r"difference +DOUBLE +share of value_2 minus share of value_1; above 0", out)
