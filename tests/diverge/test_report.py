"""The postmortem as HTML: what it says, that it is self-contained, escaped, and bounded in size."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import results
from rip.diverge import result_folder
from rip.diverge.present.report.build import write_report
from rip.diverge.present.report.pictures.heat import NOT_COMPUTED
from rip.schemas.errors import MissingPackage, RipError

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}\u202e\x00"


class Page(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside[:-1] if self._inside[-1:] == [tag] else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside[-1:] not in (["script"], ["style"]):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def made(tmp_path: Path, scene: results.Scene, with_traces: bool = True) -> str:
    """The report of a scene, as text."""
    results.write_result(tmp_path / "result", scene)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    if with_traces:
        for path, side in zip(paths, "ab", strict=True):
            results.write_trace(path, scene, side)
    write_report(tmp_path / "result", tmp_path / "r.html", *(paths if with_traces else (None, None)))
    return (tmp_path / "r.html").read_text()


def test_it_says_what_happened_where_and_why(tmp_path: Path) -> None:
    text = Page(made(tmp_path, results.Scene())).text
    assert "1 of 2 answers differs: req-1 step 17" in text
    assert "A (single, 2026-07-14) and B (batch-8, 2026-07-14)." in text
    assert "cause batch_size: 1 → 8 likely, not proven" in text
    assert "begins layers.2.mlp.gate_proj, token 13 rounding-sized (0.27 ULP)" in text
    assert "next rip confirm result 1" in text
    assert "Different batch shape high confidence batch_size: 1 in A, 8 in B" in text
    assert "0.27 ULP (bfloat16)" in text
    assert "The top two candidates can swap: margin 0.006 in A, largest logit difference 0.00407." in text
    assert "consistent with rounding: different kernel or summation order" in text
    assert "rip replay req.json --neighbours 0 -o alone.parquet" in text
    assert "no repeats of A's lane (--noise), so its own scatter is not known" in text
    assert "cpu.threads" in text
    assert "13 of 76 positions come after the tokens diverge in 1 sequence" in text
    assert "c0ffeec0ffee" in text


def test_both_outputs_stand_side_by_side_with_the_divergence_marked(tmp_path: Path) -> None:
    page = Page(made(tmp_path, results.Scene()))
    assert [
        attributes["data-p"] for tag, attributes in page.tags if attributes.get("class") == "t first"
    ] == [
        "25",
        "25",
    ]
    others = [attributes for tag, attributes in page.tags if attributes.get("class") == "t other"]
    assert len(others) == 2 * 12
    assert "That is why a tie between two words" in page.text
    assert "So one word may win" in page.text.replace("␣ ", "")


def test_without_traces_token_ids_stand_for_the_text(tmp_path: Path) -> None:
    text = Page(made(tmp_path, results.Scene(), with_traces=False)).text
    assert "⟨25⟩" in text
    assert "⟨38⟩" in text


def test_equal_traces_read_as_equal(tmp_path: Path) -> None:
    page = Page(made(tmp_path, results.Scene(bitwise_equal=True)))
    assert "The two runs are bitwise equal" in page.text
    assert "may still differ (95 % confidence)" in page.text
    assert "nothing to do: keep the two traces as evidence" in page.text
    assert "All 38 tokens are equal" in page.text
    assert "No compared row of this sequence differs." in page.text
    assert "diverge at" not in page.text
    assert not [
        attributes for _, attributes in page.tags if attributes.get("class") in {"t first", "t other"}
    ]
    assert not [attributes for _, attributes in page.tags if attributes.get("class") == "heat"]


def test_equal_tokens_over_unequal_numbers_are_not_called_equal_runs(tmp_path: Path) -> None:
    page = Page(made(tmp_path, results.Scene(tokens_equal=True)))
    assert "All 2 answers are equal, the numbers are not" in page.text
    assert [attributes for _, attributes in page.tags if attributes.get("class") == "heat"]


@pytest.mark.parametrize("scene", [results.Scene(), results.Scene(bitwise_equal=True)])
def test_empty_tables_break_nothing(tmp_path: Path, scene: results.Scene) -> None:
    results.write_result(tmp_path / "result", scene)
    for name in result_folder.TABLES:
        pq.write_table(
            result_folder.arrow_schema(name).empty_table(), tmp_path / "result" / f"{name}.parquet"
        )
    write_report(tmp_path / "result", tmp_path / "r.html")
    assert "rip · postmortem" in Page((tmp_path / "r.html").read_text()).text


def test_a_comparison_of_tokens_alone_says_that_the_inside_was_not_seen(tmp_path: Path) -> None:
    results.write_result(tmp_path / "result", results.Scene())
    for name in ("sites", "site_totals"):
        pq.write_table(
            result_folder.arrow_schema(name).empty_table(), tmp_path / "result" / f"{name}.parquet"
        )
    tokens = pq.read_table(tmp_path / "result" / "tokens.parquet").to_pylist()
    rows = [row | {"sites_compared": 0, "sites_differing": 0, "first_site": None} for row in tokens]
    table = pa.Table.from_pylist(rows, schema=result_folder.arrow_schema("tokens"))
    pq.write_table(table, tmp_path / "result" / "tokens.parquet")
    write_report(tmp_path / "result", tmp_path / "r.html")
    assert "No module output was captured in both traces" in (tmp_path / "r.html").read_text()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    scene = results.Scene(request_ids=(HOSTILE, "req-2"), words={20: HOSTILE, 25: HOSTILE})
    html = made(tmp_path, scene)
    page = Page(html)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert len(scripts) == 2  # the data and our own
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "alert(1)" in page.text  # shown, as text
    assert "49" not in re.findall(r"\{\{(.*?)\}\}", html)
    assert "{{7*7}}" in page.text
    assert "\u202e" not in html
    assert "\\u202e" in html
    assert "\x00" not in html


def test_it_loads_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    html = made(tmp_path, results.Scene())
    page = Page(html)
    loads = [
        attributes.get(name) for _, attributes in page.tags for name in ("src", "href", "data", "action")
    ]
    targets = {value for value in loads if value is not None and not value.startswith("#")}
    assert targets == {"data:,"}
    ids = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert {value for value in loads if value and value.startswith("#")} <= ids  # no dead link inside
    assert "http:" not in html
    assert "https:" not in html
    assert not re.search(r"@import|url\((?!#)", html)
    own = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(own[0].encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}" in html or f"script-src 'sha256-{digest}'" in html
    assert len(own) == 1


def test_the_data_for_hovering_agrees_with_the_tables(tmp_path: Path) -> None:
    html = made(tmp_path, results.Scene())
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert text
    view = json.loads(text[1])[0]
    map_of = {item["id"]: item for item in view["maps"]}["sites-0"]
    values = np.frombuffer(base64.b64decode(map_of["values"]), "<f4").reshape(len(map_of["y"]), -1)
    rows = pq.read_table(tmp_path / "result" / "sites.parquet").to_pylist()
    shown = {(row["site"], row["position"]): np.float32(row["rel_drift"]) for row in rows if row["pair"] == 0}
    cells = {(int(site), int(column)): values[site, column] for site, column in np.argwhere(values > 0)}
    assert cells == shown  # few enough positions for a column each
    assert values[29, 0] == NOT_COMPUTED  # the final norm is not computed inside the prompt
    assert values[28, 0] == 0
    assert all(value == NOT_COMPUTED for value in values[:, 25])  # not comparable after the divergence


def test_many_sequences_are_listed_and_the_divergent_ones_can_be_chosen(tmp_path: Path) -> None:
    scene = results.Scene(request_ids=tuple(f"req-{number}" for number in range(700)))
    page = Page(made(tmp_path, scene, with_traces=False))
    listed = [text for text in page.texts if re.fullmatch(r"req-\d+", text.strip())]
    assert len(listed) >= 400
    assert listed[0].strip() == "req-0"
    assert "300 more pairs" in page.text
    assert len([1 for _, attributes in page.tags if (attributes.get("class") or "") == "pair"]) == 1


def test_the_size_is_bounded_for_long_sequences_and_many_sites(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    results.write_result(folder, results.Scene())
    positions, sites, prompt = 30_000, 600, 2_000
    random = np.random.default_rng(3)
    some = 400_000
    pq.write_table(_long_tokens(positions, prompt, sites), folder / "tokens.parquet")
    spots = np.sort(random.choice(positions * sites, some, replace=False))
    columns = {
        "pair": np.zeros(some, np.int32),
        "position": (spots // sites).astype(np.int32),
        "site": (spots % sites).astype(np.int16),
        "rel_drift": 10 ** random.uniform(-6, -1, some).astype(np.float32),
        "l2_a": np.ones(some, np.float32),
        "l2_b": np.ones(some, np.float32),
    }
    pq.write_table(pa.table(columns, schema=result_folder.arrow_schema("sites")), folder / "sites.parquet")
    totals = [
        {
            "site": site,
            "name": f"layers.{site // 20}.block.module_{site % 20}",
            "occurrence": 0,
            "part": "",
            "module": "Linear",
            "dtype_a": "bfloat16",
            "dtype_b": "bfloat16",
            "compared": positions,
            "differing": some // sites,
            "by_sketch": False,
        }
        for site in range(sites)
    ]
    pq.write_table(
        pa.Table.from_pylist(totals, schema=result_folder.arrow_schema("site_totals")),
        folder / "site_totals.parquet",
    )
    write_report(folder, tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 3_000_000


def _long_tokens(positions: int, prompt: int, sites: int) -> pa.Table:
    schema = result_folder.arrow_schema("tokens")
    count = np.arange(positions, dtype=np.int32)
    steps = pa.array(np.where(count < prompt, 0, count - prompt), pa.int32(), mask=count < prompt)
    given = {
        "pair": np.zeros(positions, np.int32),
        "request_id": pa.array(["req-1"] * positions).dictionary_encode(),
        "sample": np.zeros(positions, np.int16),
        "position": count,
        "step": steps,
        "phase": pa.array(["decode"] * positions).dictionary_encode(),
        "token_a": count,
        "token_b": count,
        "token_equal": np.ones(positions, bool),
        "comparable": np.ones(positions, bool),
        "margin_a": np.full(positions, 0.5, np.float32),
        "margin_b": np.full(positions, 0.5, np.float32),
        "max_abs_logit_diff": np.full(positions, 0.01, np.float32),
        "sites_compared": np.full(positions, sites, np.int32),
        "sites_differing": np.ones(positions, np.int32),
    }
    arrays = [
        pa.array(given[column.name]).cast(column.type)
        if column.name in given
        else pa.nulls(positions, column.type)
        for column in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def test_a_page_that_cannot_be_written_is_an_error_with_a_fix(tmp_path: Path) -> None:
    results.write_result(tmp_path / "result", results.Scene())
    with pytest.raises(RipError) as caught:
        write_report(tmp_path / "result", tmp_path / "missing" / "r.html")
    assert "r.html" in caught.value.message
    write_report(tmp_path / "result", tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_mode & 0o077 == 0  # it holds prompts


def test_without_jinja_neither_form_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.write_result(tmp_path / "result", results.Scene())
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    for name, form in (("r.html", "html"), ("r.md", "markdown")):
        with pytest.raises(MissingPackage, match="jinja2") as caught:
            write_report(tmp_path / "result", tmp_path / name, form="html" if form == "html" else "markdown")
        assert "rip-forensics[report]" in caught.value.fix
        assert not (tmp_path / name).exists()
