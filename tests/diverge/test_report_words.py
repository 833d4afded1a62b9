"""What the postmortem says of faults that are easily misread: prompts, near ties, samplers, dtypes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import results
from fakes.traces import Sequence, disturb, disturb_logits, header, llama_sites, sequence, write_trace
from rip.diverge.compare import diverge
from rip.diverge.present.format import quoted_token
from rip.diverge.present.report.build import write_report
from rip.diverge.present.report.pictures.text_map import group_rows
from rip.schemas.findings.execution import ShapeDiffers
from rip.schemas.findings.rows import DriftSize, FirstDifferenceAt
from rip.schemas.findings.statement import Sentence
from rip.schemas.lane import Setting
from rip.schemas.trace import TraceHeader
from rip.schemas.verdict import Cause, Verdict

SITES = llama_sites(2)
LONG = "a sentence that goes on and on until it is far longer than one line of any terminal " * 4


def both_forms(folder: Path) -> tuple[str, str]:
    """The postmortem of `result` as HTML and as Markdown, spaces joined and quotes as they are read."""
    texts = []
    for name, form in (("r.html", "html"), ("r.md", "markdown")):
        write_report(folder / "result", folder / name, form="html" if form == "html" else "markdown")
        texts.append(" ".join((folder / name).read_text().replace("&#39;", "'").split()))
    return texts[0], texts[1]


def compared(
    folder: Path,
    a: list[Sequence],
    b: list[Sequence],
    said: tuple[TraceHeader, TraceHeader] | None = None,
) -> tuple[Verdict, str, str]:
    """The verdict on two traces, and both forms of its postmortem."""
    for name, sequences, head in zip("ab", (a, b), said or (header(SITES),) * 2, strict=True):
        write_trace(folder / f"{name}.parquet", sequences, head)
    verdict = diverge(folder / "a.parquet", folder / "b.parquet", folder / "result")
    return verdict, *both_forms(folder)


def changed(folder: Path, change: Callable[[Cause], Cause]) -> None:
    """Write the made-up result with another first cause."""
    verdict = results.write_result(folder / "result", results.Scene(request_ids=("req-1",)))
    causes = [change(verdict.causes[0])]
    (folder / "result" / "summary.json").write_text(verdict.model_copy(update={"causes": causes}).to_json())


@pytest.mark.parametrize(("cause", "tie"), [("near-tie", True), ("module", False)])
def test_a_small_margin_is_called_a_near_tie_only_where_rounding_explains_the_drift(
    tmp_path: Path, cause: str, tie: bool
) -> None:
    changed(tmp_path, lambda found: found.model_copy(update={"id": cause}))
    for text in both_forms(tmp_path):
        assert ("Near tie: margin" in text) is tie
        assert "rounding can flip" not in text
        assert "can flip the choice" in text


def test_a_cause_has_its_evidence_its_command_and_how_to_read_it(tmp_path: Path) -> None:
    evidence = [
        FirstDifferenceAt(role="origin", site="layers.0", position=3),
        Sentence(text=LONG.strip()),
        ShapeDiffers(name="cached_tokens", a=0, b=16),
        DriftSize(rel_drift=0.5, ulps=0.003, dtype="bfloat16", reading="within rounding"),
    ]
    update = {"evidence": evidence, "interpretation": "same setting as A"}
    changed(tmp_path, lambda found: found.model_copy(update=update))
    for text in both_forms(tmp_path):
        first, rest = text.split("Safe under", 1)
        assert "rounding-sized (0.003 ULP)" in first
        assert LONG.strip() not in first  # evidence stands below
        assert LONG.strip() in rest
        assert rest.index("rip replay req.json --neighbours 0") < rest.index(
            "How to read it: if the new run equals A, this is the cause"
        )


def test_unlike_prompts_are_not_called_equal_and_nothing_is_said_to_hold(tmp_path: Path) -> None:
    longer, shorter = sequence(1, len(SITES), prompt=5, decode=3), sequence(1, len(SITES), prompt=4, decode=3)
    longer.tokens[:], shorter.tokens[:] = [1, 2, 3, 9, 4, 5, 6, 7], [1, 2, 9, 4, 5, 6, 7]
    verdict, *texts = compared(tmp_path, [longer], [shorter])
    assert verdict.levels["semantic"].state == "not comparable"
    assert [reason.kind for reason in verdict.levels["semantic"].why] == ["prompts differ"]
    for text in texts:
        assert "5 tokens in A and 4 tokens in B" in text
        assert "3 generated tokens" in text
        assert "equal in both runs" not in text
        assert "Candidates at" not in text  # nobody chose a prompt
        assert "No row of this sequence could be compared" not in text


def test_levels_and_timeline_name_logits_by_the_same_position(tmp_path: Path) -> None:
    moved = sequence(1, len(SITES))
    disturb(moved, 5, 3)
    disturb_logits(moved, 5, 0.5)
    verdict, _, markdown = compared(tmp_path, [sequence(1, len(SITES))], [moved])
    named = re.findall(r"largest log\w+ difference [^|]*? position (\d+)", markdown)
    first = re.search(r"position (\d+) \| \*\*First differing log", markdown)
    assert named
    assert first is not None
    site = verdict.first_site
    assert site is not None
    assert int(first[1]) == site.position + 1
    assert named[0] == first[1]


def stated(temperature: float, top_k: int) -> TraceHeader:
    """A header whose request states a temperature and a top_k, and nothing else."""
    sampling = {
        "temperature": Setting(requested=temperature, resolved=temperature, source="envelope"),
        "top_k": Setting(requested=top_k, resolved=top_k, source="envelope"),
        "top_p": Setting(resolved=0.95, source="generation_config"),
        "min_p": Setting(resolved=0.0, source="engine default"),
    }
    said = header(SITES)
    request = said.requests[0].model_copy(update={"sampling": sampling})
    return said.model_copy(update={"requests": [request]})


def test_a_choice_is_shown_with_the_chosen_tokens_and_what_the_samplers_saw(tmp_path: Path) -> None:
    a, b = (sequence(1, len(SITES), k=12) for _ in range(2))
    a.draws, b.draws = np.full(a.length, 0.125), np.full(b.length, 0.875)
    unlikely = int(a.topk_ids[5, 9])  # the tenth of twelve candidates for position 6
    b.tokens[6] = unlikely
    _, html, markdown = compared(tmp_path, [a], [b], (stated(0.7, 0), stated(0.7, 3)))
    chosen = re.search(r"### Candidates at step 2 .*?## ", markdown)
    assert chosen is not None
    assert re.search(rf"\| {unlikely} \|[^|]*\|[^|]*\|[^|]*\|[^|]*\|[^|]*\| B \|", chosen[0])
    assert chosen[0].count("█ ") < 12  # the others are folded away
    for text in (html, markdown):
        assert "random draw: 0.125000 in A, 0.875000 in B" in text
        assert "temperature 0.7; top_k 0 in A, 3 in B; top_p 0.95 (from generation_config)." in text
        assert "min_p 0.0;" not in text


def test_a_sampled_token_is_called_no_tie_and_is_listed_though_it_was_no_candidate(tmp_path: Path) -> None:
    a, b = (sequence(1, len(SITES), k=12) for _ in range(2))
    a.draws, b.draws = np.full(a.length, 0.125), np.full(b.length, 0.125)
    b.topk_logits[5, 3] -= 0.01
    b.logits_hash[5] += 1
    b.tokens[6] = outside = 9999
    _, *texts = compared(tmp_path, [a], [b], (stated(0.7, 0), stated(0.7, 0)))
    assert outside not in a.topk_ids[5]
    for text in texts:
        assert "Sampled: the same draw 0.125 picks a different token" in text
        assert "the tokens are sampled, and a draw can pick a different token" in text
        assert "ear tie" not in text.split("Candidates at step 2")[0].split("Prompt")[-1]
        assert "too small to flip" not in text
    assert re.search(rf"\| {outside} \|[^|]*\|[^|]*\|[^|]*\|[^|]*\|[^|]*\| B \|", texts[1])


def test_logits_that_differ_without_a_token_or_a_row_are_shown(tmp_path: Path) -> None:
    a, b = (sequence(1, len(SITES), k=12) for _ in range(2))
    b.topk_logits[5, 11] -= 1.0  # of the least likely candidate
    b.logits_hash[5] += 1
    _, *texts = compared(tmp_path, [a], [b])
    for text in texts:
        assert "No token diverges; the logits differ here for the first time." in text
        assert (
            f"{int(a.topk_ids[5, 11])}"
            in text.split("Candidates at step 2")[1].split("Margin and logit difference")[0]
        )
        assert "differs; the logits do, so the difference arises after them." in text


def test_rows_of_unlike_dtypes_are_counted_by_their_summaries(tmp_path: Path) -> None:
    moved = sequence(1, len(SITES))
    moved.sketch *= 1.01
    moved.l2 *= 1.01
    said = header(SITES), header(llama_sites(2, "float32"))
    _, *texts = compared(tmp_path, [sequence(1, len(SITES))], [moved], said)
    for text in texts:
        assert f"{len(SITES)} sites with a different dtype or row hash compared by sketch" in text
        assert "of 0 sites" not in text
        assert "0 row hashes" not in text
        assert not re.search(r"\b0 rows", text)


def test_a_value_that_is_not_finite_has_no_drift_of_nan(tmp_path: Path) -> None:
    broken = sequence(1, len(SITES))
    disturb(broken, 5, 3)
    broken.l2[5, 3] = broken.absmax[5, 3] = np.inf
    broken.sketch[5, 3] = np.inf
    _, *texts = compared(tmp_path, [sequence(1, len(SITES))], [broken])
    for text in texts:
        assert "a value is not finite; " in text
        assert "drift NaN" not in text


def test_a_map_of_many_layers_takes_few_lines() -> None:
    names = ["embed_tokens", *(f"layer {index}" for index in range(30)), "norm"]
    equal = [index < 3 for index in range(32)]
    lines = group_rows(names, equal)
    assert [name for name, _ in lines][:2] == ["embed_tokens … layer 1", "layers 2–4"]
    assert len(lines) == 12
    assert [index for _, members in lines for index in members] == list(range(32))


def test_what_spreads_to_earlier_tokens_of_the_pass_stands_behind_its_origin(tmp_path: Path) -> None:
    broken = sequence(1, len(SITES))
    # One row is not finite, and at the next site every row of the prompt, which is read in one pass.
    for position, site in ((2, 3), (0, 6), (1, 6), (2, 6), (3, 6)):
        broken.sketch[position, site] = np.nan
        broken.l2[position, site] = broken.absmax[position, site] = np.nan
        broken.hashes[position, site] += 1
    verdict, _, markdown = compared(tmp_path, [sequence(1, len(SITES))], [broken])
    assert verdict.first_site is not None
    assert verdict.first_site.position == 2
    origin = markdown.index("origin of the difference")
    assert origin < markdown.index("Spreads through the whole pass, to earlier tokens too")


def test_a_part_of_a_character_is_shown_as_its_token() -> None:
    texts = {"7": "\ufffd", "8": "数"}
    assert quoted_token(7, texts) == "token 7, part of a character"
    assert quoted_token(8, texts) == "“数” (8)"
