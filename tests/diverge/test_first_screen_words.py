"""What the first screen says of draws, of two dtypes, of proof, and of values that are cut."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.traces import Sequence, disturb, header, llama_sites, sequence, write_trace
from fakes.verdicts import SITES, flip, pair
from rip.diverge.compare import diverge
from rip.diverge.present.first_screen.causes import flips
from rip.diverge.present.first_screen.compose import Scene, first_screen
from rip.diverge.present.first_screen.places import site_course
from rip.diverge.present.first_screen.screen import FirstScreen
from rip.diverge.present.format import shortened_pair
from rip.diverge.present.report.pair_sentences import causes_ranked
from rip.schemas.findings.experiments import Confirmation, RunCompared
from rip.schemas.findings.statement import Undone
from rip.schemas.lane import Setting
from rip.schemas.trace import TraceHeader
from rip.schemas.verdict import Cause, Verdict

NOW = "2026-01-01T00:00:00Z"


def sampled(**values: float) -> TraceHeader:
    """A header whose request states some sampling fields."""
    said = header(SITES)
    fields = {name: Setting(requested=one, resolved=one, source="envelope") for name, one in values.items()}
    return said.model_copy(update={"requests": [said.requests[0].model_copy(update={"sampling": fields})]})


def compared(
    folder: Path, a: Sequence, b: Sequence, said: tuple[TraceHeader, TraceHeader]
) -> tuple[Verdict, FirstScreen]:
    for name, one, head in zip("ab", (a, b), said, strict=True):
        write_trace(folder / f"{name}.parquet", [one], head)
    verdict = diverge(folder / "a.parquet", folder / "b.parquet", folder / "result")
    return verdict, first_screen(verdict, Scene("result", said, site_course(folder / "result")))


def confirmed(cause: Cause, *undoes: Undone) -> Cause:
    found = Confirmation(state="confirmed", evidence=[], undoes=list(undoes), created=NOW)
    return cause.model_copy(update={"confirmation": found})


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        ((0.2737, 0.2737), "sampled: the same draw 0.2737 picks a different token"),
        ((0.27, 0.81), "sampled: different draws 0.27 and 0.81"),
        (None, "sampled: draws not recorded"),
    ],
)
def test_of_a_sampled_token_the_draw_is_named_and_no_tie(
    tmp_path: Path, draws: tuple[float, float] | None, said: str
) -> None:
    a, b = pair()
    flip(b, 2)
    if draws is not None:
        a.draws, b.draws = np.full(a.length, draws[0]), np.full(b.length, draws[1])
    head = sampled(temperature=0.8)
    verdict, screen = compared(tmp_path, a, b, (head, head))
    text = next(row.text for row in screen.rows if row.name == "flips")
    assert text.startswith(said)
    same = draws is not None and draws[0] == draws[1]
    assert bool(re.search(r"; probabilities moved by up to [\d.]+(e-\d+)?$", text)) is same
    # The control: the same numbers of a greedy request are a margin and a drift.
    assert verdict.first_token is not None
    greedy = verdict.first_token.model_copy(update={"sampled": []})
    assert "margin" in flips(verdict.model_copy(update={"first_token": greedy}))


@pytest.mark.parametrize(
    ("margin", "drift", "said"),
    [
        (4.5, 0.4, "no near tie: margin 4.5 against drift 0.4"),
        (0.2573, 1.079, "drift far above the margin: margin 0.2573 against drift 1.079"),
        (0.3, 0.3, "drift about as large as the margin: margin 0.3 against drift 0.3"),
        (0.3, float("inf"), "a number is not finite: margin 0.3 against drift ∞"),
    ],
)
def test_every_form_of_flips_has_words(tmp_path: Path, margin: float, drift: float, said: str) -> None:
    a, b = pair()
    flip(b, 2)
    verdict, _ = compared(tmp_path, a, b, (header(SITES), header(SITES)))
    assert verdict.first_token is not None
    sizes = {"margin_a": margin, "max_abs_logit_diff": drift}
    token = verdict.first_token.model_copy(update=sizes)
    assert flips(verdict.model_copy(update={"first_token": token, "causes": []})) == said


def test_a_drift_between_two_dtypes_is_counted_in_the_coarser_one(tmp_path: Path) -> None:
    moved = sequence(1, len(SITES))
    moved.sketch *= 1.003
    moved.l2 *= 1.003
    for folder, said in (
        (tmp_path / "to", (llama_sites(2, "float32"), llama_sites(2, "bfloat16"))),
        (tmp_path / "from", (llama_sites(2, "bfloat16"), llama_sites(2, "float32"))),
    ):
        folder.mkdir()
        heads = header(said[0]), header(said[1])
        verdict, screen = compared(folder, sequence(1, len(SITES)), moved, heads)
        begins = next(row for row in screen.rows if row.name == "begins")
        assert begins.aside == "rounding-sized (0.38 ULP)"
        assert verdict.causes[0].id == "dtype"
        assert begins.course is not None
        assert begins.course.end == "jumps: not judged (compared by sketch)"


def test_no_jump_is_said_only_where_the_difference_begins_as_rounding(tmp_path: Path) -> None:
    for name, size, end in (("small", 1e-4, "no jump"), ("large", 0.5, "")):
        folder = tmp_path / name
        folder.mkdir()
        a, b = pair()
        for site in range(2, len(SITES)):
            disturb(b, 2, site, size)
        _, screen = compared(folder, a, b, (header(SITES), header(SITES)))
        course = next(row.course for row in screen.rows if row.name == "begins")
        assert course is not None
        assert course.end == end


def test_after_a_proof_nothing_asks_for_one(tmp_path: Path) -> None:
    a, b = pair((2, 3))
    flip(b, 2)
    heads = header(SITES), header(SITES)
    verdict, screen = compared(tmp_path, a, b, heads)
    assert screen.judged == "rounding or regression? rip diverge A B --reference R"
    assert causes_ranked(verdict).endswith("Run the command to confirm a cause.")
    proven = verdict.model_copy(update={"causes": [confirmed(verdict.causes[0])]})
    assert first_screen(proven, Scene("result", heads)).judged == ""
    assert "Run the command" not in causes_ranked(proven)


def test_two_causes_are_counted_and_what_undoes_both_is_no_third(tmp_path: Path) -> None:
    a, b = pair((2, 3))
    flip(b, 2)
    heads = header(SITES), header(SITES)
    verdict, _ = compared(tmp_path, a, b, heads)
    undone = [Undone(of="setting", name=name, value="x") for name in ("dtype", "attention")]
    cause = verdict.causes[0]
    run = RunCompared(run="all undone", against="A", equal=True, by="rows", compared=9, undoes=undone)
    update: dict[str, Any] = {
        "causes": [confirmed(cause, undone[0]), confirmed(cause, undone[1])],
        "together": Confirmation(state="confirmed", evidence=[run], undoes=undone, created=NOW),
    }
    screen = first_screen(verdict.model_copy(update=update), Scene("result", heads))
    assert screen.headline == "The answer differs, 2 causes: r0 step 2"
    assert "all 2 undone together: equals A to the bit" in [row.text for row in screen.rows]
    one = verdict.model_copy(update={"causes": update["causes"][:1]})
    assert first_screen(one, Scene("result", heads)).headline == "The answer differs: r0 step 2"


@pytest.mark.parametrize(("penalty", "expected"), [(1.3, "sampling-contract"), (1.0, "logits-processing")])
def test_logits_processed_as_a_sampling_field_says_are_one_cause(
    tmp_path: Path, penalty: float, expected: str
) -> None:
    a, b = pair()
    step = a.prompt_length + 1
    b.tokens[step + 1] += 1
    for one in (a, b):
        one.draws = np.full(one.length, 0.5)
    b.topk_logits[step, 0] += 1.0  # what the sampler saw; the raw logits have one hash
    heads = tuple(sampled(temperature=0.8, repetition_penalty=value) for value in (1.0, penalty))
    verdict, _ = compared(tmp_path, a, b, (heads[0], heads[1]))
    found = [cause.id for cause in verdict.causes if cause.id in ("sampling-contract", "logits-processing")]
    assert found == [expected]
    assert "processed-logits" in [one.kind for one in verdict.causes[0].evidence]


def test_values_that_are_cut_show_where_they_differ() -> None:
    start = "{% for m in messages %}" * 4
    before, after = shortened_pair(start + "\\n{% endfor %}", start + " {% endfor %}", 32)
    assert before.startswith("…")
    assert before != after
    assert "\\n{%" in before
    assert len(before) <= 32
    assert shortened_pair("sdpa", "eager", 32) == ("sdpa", "eager")
    assert shortened_pair("x" * 40, "y" * 40, 32) == ("x" * 31 + "…", "y" * 31 + "…")
