"""The report's sentences, token text and map geometry, without a page around them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from fakes import results
from hypothesis import given
from hypothesis import strategies as st
from rip.diverge.report_heat import Columns, Scale, draw
from rip.diverge.report_words import close_call, headline, pieces, second_line
from rip.schemas.verdict import FirstToken


def test_the_headline_follows_the_verdict(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())
    first = verdict.first_token
    assert first is not None

    def said(**changes: object) -> str:
        return headline(verdict.model_copy(update={"first_token": first.model_copy(update=changes)}))

    many = " 1 of 2 sequences diverge."
    assert said(sample=2) == "Tokens diverge at step 17 of request req-1, sample 2." + many
    assert said(step=None, position=4) == "The prompts of request req-1 differ at position 4." + many
    assert said(token_b=None) == "In request req-1, B ends at step 17 where A goes on." + many
    unseen = verdict.first_site
    assert unseen is not None
    later = verdict.model_copy(
        update={
            "first_site": unseen.model_copy(
                update={"is_origin": False, "unseen": "positions 0–4 were cached"}
            )
        }
    )
    assert "a first observed difference: positions 0–4 were cached." in second_line(later)


@pytest.mark.parametrize(
    ("margin", "moved", "said"),
    [
        (0.01, 0.02, "A near tie"),
        (2.0, 0.02, "Not a near tie"),
        (0.5, 0.0, "the choice differs, not the numbers"),
    ],
)
def test_margin_and_drift_are_read_together(margin: float, moved: float, said: str) -> None:
    first = FirstToken(
        request_id="r",
        sample=0,
        step=1,
        position=2,
        token_a=1,
        token_b=2,
        margin_a=margin,
        margin_b=margin,
        max_abs_logit_diff=moved,
    )
    assert said in (close_call(first) or "")


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
    map_ = draw("m", values, columns, ["a", "b"], scale, cell_height=4, row_groups=[0, 0], row_labels=[])
    drawn = [int(run) for layer in map_.layers for run in re.findall(r"h(\d+)", layer.path)]
    assert sum(drawn) == map_.cell_width * len(drifts)  # the first row wholly, nothing of the second
    assert all(layer.path.startswith("M") for layer in map_.layers)
