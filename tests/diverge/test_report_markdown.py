"""The postmortem as Markdown: what it says, that any text stays text, its size, and a golden copy."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fakes import results
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rip.diverge.present.format import plain
from rip.diverge.present.report.build import write_report
from rip.diverge.present.report.rendering import block, code, fenced, text, wrapped_markdown

HOSTILE = "</b><script>alert(1)</script>|`x`|[a](b)*c*~~d~~ @team #1 www.example.org\n# head\u202e"
GOLDEN = Path(__file__).parent.parent / "golden" / "postmortem.md"


class Rendered(HTMLParser):
    """What a reader of Markdown makes of a text: tags, table cells, running text."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self._in_cell = False
        self.feed(
            MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
        )

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "br":
            self.text += "\n"
        if tag == "td":
            self.cells.append("")
        self._in_cell = tag == "td" or (self._in_cell and tag != "tr")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.cells[-1] += data


def made(tmp_path: Path, scene: results.Scene, **more: str) -> str:
    """The Markdown of a scene."""
    results.write_result(tmp_path / "result", scene)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, side in zip(paths, "ab", strict=True):
        results.write_trace(path, scene, side)
    write_report(tmp_path / "result", tmp_path / "r.md", *paths, form="markdown", **more)
    return (tmp_path / "r.md").read_text()


def test_it_says_what_where_and_why_and_how_to_check_it(tmp_path: Path) -> None:
    page = Rendered(made(tmp_path, results.Scene()))
    assert "1 of 2 answers differs: req-1 step 17" in page.text
    assert "A (single, 2026-07-14) and B (batch-8, 2026-07-14)." in page.text
    assert "rip confirm result 1" in page.text
    assert "The top two candidates can swap" in page.text
    assert "rip replay req.json --neighbours 0 -o alone.parquet" in page.text
    assert "Missing evidence: no repeats of A's lane (--noise)" in page.text
    for title in (
        "Timeline",
        "Causes",
        "Candidates at step 17",
        "Environment changes",
        "To reproduce",
    ):
        assert title in page.text
    assert ["layers.2.mlp.gate_proj: origin of the difference" in cell for cell in page.cells].count(
        True
    ) == 1
    assert "c0ffeec0ffee" in page.text


def test_a_title_stands_above_the_headline(tmp_path: Path) -> None:
    lines = made(tmp_path, results.Scene(), title="Replica 7 <answers> *otherwise*").splitlines()
    assert lines[0] == "# Replica 7 &lt;answers&gt; &#42;otherwise&#42;"
    assert lines[2].startswith("**1 of 2 answers differs: req-1 step 17")


def test_equal_traces_read_as_equal(tmp_path: Path) -> None:
    page = Rendered(made(tmp_path, results.Scene(bitwise_equal=True)))
    assert "The two runs are bitwise equal" in page.text
    assert "may still differ" in page.text
    assert "## Causes" not in page.text
    assert "compared bit for bit, 0 differ." in page.text


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    scene = results.Scene(request_ids=(HOSTILE, "req-2"), words={20: HOSTILE, 25: HOSTILE, 3: HOSTILE})
    markdown = made(tmp_path, scene, title=HOSTILE)
    page = Rendered(markdown)
    allowed = {"h1", "h2", "h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "br", "em"}
    allowed |= {"code", "pre", "ul", "li", "details", "summary", "blockquote", "b", "i"}
    assert set(page.tags) <= allowed
    assert set(page.attributes) <= {"style", "class"}  # alignment of columns, language of a block
    assert "alert(1)" in page.text  # shown, as text
    assert "\u202e" not in markdown
    assert not re.search(r"[@#](?=team|1\b)", re.sub(r"`[^`]*`|<code>.*?</code>", "", markdown))


@given(st.text())
@example(HOSTILE)
@example("| a \\| b \\\\| c |")
@example("1. x")
@example("- x")
@example("_a_ a_b __c__")
@example("https://example.org/?a=b&amp;c")
@example("    indented")
def test_any_text_in_a_cell_reads_as_it_is(value: str) -> None:
    for written in (text(value), code(value)):
        page = Rendered(f"| a | b |\n| --- | --- |\n| x{written}x | after |\n")
        assert page.cells[1:] == ["after"]
        assert page.cells[0].split() == f"x{plain(value)}x".split()
        assert set(page.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


@given(st.text())
@example("1. x")
@example("- x")
@example("+ x")
@example("# x")
@example("===")
@example("    x")
def test_any_text_where_a_block_begins_makes_no_other_block(value: str) -> None:
    page = Rendered(f"before\n\n{block(value)}\n\n- {block(value)} end\n")
    assert set(page.tags) <= {"p", "ul", "li"}
    assert page.text.split() == ["before", *plain(value).split(), *plain(value).split(), "end"]


@given(st.text())
@example(HOSTILE)
@example("a\n\n# b\n\n<b>")
def test_any_text_in_a_quotation_reads_as_it_is(value: str) -> None:
    page = Rendered(f"<blockquote>{wrapped_markdown(value)}</blockquote>\n\nafter\n")
    assert set(page.tags) <= {"blockquote", "br", "p"}
    shown = page.text.replace("\u00a0", " ").split()
    assert shown == [*value.replace("\x00", "\ufffd").split(), "after"]


@given(st.text(alphabet="`a\n ~"))
def test_any_command_stays_inside_its_block(value: str) -> None:
    page = Rendered(fenced(value) + "\n\nafter\n")
    assert page.tags == ["pre", "code", "p"]


def test_the_size_is_bounded_for_many_sequences_and_long_texts(tmp_path: Path) -> None:
    names = tuple(f"req-{number}" for number in range(100))
    words = {token: f" {'long' * 40}{token}" for token in range(60)}
    markdown = made(tmp_path, results.Scene(request_ids=names, words=words, layers=1))
    assert len(markdown) < 65_536  # what GitHub takes as one comment
    assert "60 more sequences not listed." in markdown


def test_it_agrees_with_the_golden_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene = results.Scene(request_ids=("req-1",), layers=2)
    results.write_result(Path("result"), scene)
    for name, side in (("single.parquet", "a"), ("batch.parquet", "b")):
        results.write_trace(Path(name), scene, side)
    write_report(Path("result"), Path("r.md"), Path("single.parquet"), Path("batch.parquet"), form="markdown")
    assert Path("r.md").read_text().replace(str(tmp_path), "/incident") == GOLDEN.read_text()
