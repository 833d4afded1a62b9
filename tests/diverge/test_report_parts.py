"""The report's sentences, token text and map geometry, without a page around them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from fakes import results
from hypothesis import given
from hypothesis import strategies as st
from rip.diverge.present.first_screen.compose import Scene, first_screen
from rip.diverge.present.first_screen.screen import Row
from rip.diverge.present.format import does, drift_cell, drift_size, moment, pieces, plural
from rip.diverge.present.report.pair_sentences import close_call
from rip.diverge.present.report.pictures.heat import Columns, Matrix, Rows, Scale, draw
from rip.diverge.present.report.rendering import TEMPLATES
from rip.diverge.present.verdict_sentences import headline, is_cut, second_line
from rip.schemas.findings.statement import Command
from rip.schemas.findings.unseen import RowsUnseen
from rip.schemas.verdict import FirstText, Verdict


def test_the_headline_follows_the_verdict(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())
    first = verdict.first_token
    assert first is not None

    def said(**changes: object) -> str:
        return headline(verdict.model_copy(update={"first_token": first.model_copy(update=changes)}))

    many = "1 of 2 answers differs: "
    assert said(sample=2) == many + "req-1 sample 2 step 17"
    assert said(step=None, position=4) == many + "in the prompt of req-1, position 4"
    assert said(token_b=None) == many + "req-1 step 17, where B ends"
    one = {"compared": verdict.compared.model_copy(update={"sequences": 1})}
    verdict = verdict.model_copy(update=one)
    assert said(sample=2) == "The answer differs: req-1 sample 2 step 17"
    assert said(step=None, position=4) == "The answer differs: in the prompt of req-1, position 4"
    assert said(token_b=None) == "The answer differs: req-1 step 17, where B ends"
    unseen = verdict.first_site
    assert unseen is not None
    unseen_rows = RowsUnseen(kind="not computed", count=5, position=0, site="embed_tokens")
    later = verdict.model_copy(
        update={"first_site": unseen.model_copy(update={"is_origin": False, "unseen": [unseen_rows]})}
    )
    line = second_line(later)
    assert line.startswith("First observed difference: layers.2.mlp.gate_proj at position 13.")
    assert "5 earlier rows were not computed in both runs" in line


@pytest.mark.parametrize(
    ("margin", "moved", "said"),
    [
        (0.01, 0.02, "Near tie"),
        (2.0, 0.02, "Not a near tie"),
        (0.5, 0.0, "the choice differs, not the numbers"),
    ],
)
def test_margin_and_drift_are_read_together(margin: float, moved: float, said: str) -> None:
    assert said in (close_call(margin, moved) or "")


@given(st.text())
def test_nothing_invisible_is_left_in_token_text(text: str) -> None:
    shown = "".join(part for _, part in pieces(text, spaces=True))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff ]", shown)
    visible = "".join(character for character in text if character.isalnum() or character in "<&>")
    assert [c for c in visible if c not in shown] == []


@given(st.lists(st.floats(2**-30, 10, width=32), min_size=1, max_size=40))
def test_every_cell_of_a_map_is_drawn_once_in_its_class(drifts: list[float]) -> None:
    values = np.array([drifts, [0.0] * len(drifts)], np.float32)
    scale = Scale.over((min(drifts), max(drifts)))
    columns = Columns((("steps", len(drifts)),), tuple("x" * len(drifts)), ())
    map_ = draw(Matrix("m", values, columns, Rows(["a", "b"], [0, 0], [], height=4), scale))
    drawn = [int(run) for layer in map_.layers for run in re.findall(r"h(\d+)", layer.path)]
    assert sum(drawn) == map_.cell_width * len(drifts)  # the first row wholly, nothing of the second
    assert all(layer.path.startswith("M") for layer in map_.layers)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours as WCAG 2 defines it, 1 to 21."""

    def luminance(colour: str) -> float:
        channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_from_its_ground_in_both_themes() -> None:
    style = (TEMPLATES / "report.css").read_text()
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#8b929b", "#fcfcfb") < 4.5  # the negative control
    blocks = [style[: style.index("{% set dark %}")], style[style.index("{% set dark %}") :]]
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block.split("{% endset %}")[0]))
        grounds = [
            (text, ground) for text in ("ink", "soft", "faint") for ground in ("page", "wash", "ground")
        ]
        grounds += [(text, "page") for text in ("a", "b", "good", "bad")]
        grounds += [("a", "a-wash"), ("b", "b-wash"), ("page", "a"), ("page", "b"), ("page", "ink")]
        too_faint = [pair for pair in grounds if contrast(colours[pair[0]], colours[pair[1]]) < 4.5]
        assert too_faint == []


def test_verbs_agree_with_their_counts_and_plurals_with_their_words() -> None:
    assert [f"{plural(count, 'row')} {does(count, 'differ')}" for count in (0, 1, 2)] == [
        "0 rows differ",
        "1 row differs",
        "2 rows differ",
    ]
    assert (does(1, "were"), does(3, "were")) == ("was", "were")
    assert (plural(1, "entry"), plural(2, "entry"), plural(2, "hash")) == ("1 entry", "2 entries", "2 hashes")


def test_one_text_and_several_agree_with_their_verbs(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene(bitwise_equal=True))

    def said(texts: int, differing: int) -> str:
        first = FirstText(request_id="q", sample=0, character=4, before="abcd", a="e", b="f")
        none = {"sequences": 0, "rows": 0, "sites": 0, "positions": 0, "sequences_diverging": 0}
        counts = verdict.compared.model_copy(update={"texts": texts, "texts_differing": differing, **none})
        one = verdict.model_copy(update={"compared": counts, "first_text": first if differing else None})
        return headline(one)

    assert said(1, 0) == "The answer is equal as text; token equality is unknown"
    assert said(3, 0) == "All 3 answers are equal as text; token equality is unknown"
    assert said(1, 1) == "The answer differs as text: q character 4"
    assert said(3, 1) == "1 of 3 answers differs as text: q character 4"
    assert said(3, 2) == "2 of 3 answers differ as text; first: q character 4"


@pytest.mark.parametrize(
    ("character", "before", "cut"), [(0, "", False), (4, "abcd", False), (90, "x" * 40, True)]
)
def test_an_excerpt_begins_with_dots_only_where_something_was_left_out(
    character: int, before: str, cut: bool
) -> None:
    assert (
        is_cut(FirstText(request_id="q", sample=0, character=character, before=before, a="e", b="f")) is cut
    )


def test_a_row_that_differs_by_less_than_a_sketch_shows_has_no_drift_of_zero() -> None:
    assert drift_size(0.0) == "drift below the sketch's resolution"
    assert drift_cell(0.0) == "below resolution"
    assert drift_size(0.0021) == "relative drift 2.1e-3"
    assert drift_cell(0.0021) == "2.1e-3"
    assert drift_cell(None) == "–"


def test_the_next_step_follows_the_verdict(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())

    def step(one: Verdict) -> Row:
        return first_screen(one, Scene("a result", (None, None))).next[0]

    first = step(verdict)
    assert (first.text, first.command) == ("rip confirm 'a result' 1", True)
    look = verdict.causes[0].model_copy(
        update={"confirm": Command(purpose="show", argv=["rip", "query", "old", "SELECT 1"])}
    )
    shown = step(verdict.model_copy(update={"causes": [look]}))
    assert (shown.text, shown.command) == (
        "check the evidence for “Different batch shape”, fix it and replay B",
        False,
    )
    zoom = step(verdict.model_copy(update={"causes": []}))
    assert (zoom.text, zoom.command) == ("rip diverge single.parquet batch.parquet --zoom", True)
    equal = results.write_result(tmp_path / "equal", results.Scene(bitwise_equal=True))
    assert step(equal).text.startswith("nothing to do: keep the two traces")


def test_times_are_for_people_and_what_is_no_time_stays() -> None:
    assert (
        moment("2026-11-30T17:05:11+00:00") == moment("2026-11-30T17:05:11.25Z") == "2026-11-30 17:05:11 UTC"
    )
    assert moment("<b>yesterday") == "<b>yesterday"
