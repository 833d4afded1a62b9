"""What a postmortem says beyond the comparison: traces that moved, proofs, patterns, rules, timeline."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes import results
from fakes.traces import header, llama_sites, result, sequence, write_trace
from rip.diverge import result_folder
from rip.diverge.compare import diverge
from rip.diverge.present.report.appendix import proofs
from rip.diverge.present.report.build import write_report
from rip.diverge.present.report.environment_changes import group_by_rule
from rip.schemas.change import Change
from rip.schemas.findings.statement import Sentence
from rip.schemas.fingerprint import fact
from rip.schemas.reference import Reference, ReferenceSite
from rip.schemas.sequences import DriftJump, Patterns, Proportion, SurvivalPoint
from rip.schemas.trace import EngineAbilities
from rip.schemas.verdict import Verdict
from rip.schemas.zoom import OpFinding, SideCheck, Transplant, TransplantedSite, Zoom, ZoomOp, ZoomTensor

SITES = llama_sites(2)


def document(folder: Path) -> tuple[str, str]:
    """Both forms of one result."""
    write_report(folder, folder.parent / "r.html")
    write_report(folder, folder.parent / "r.md", form="markdown")
    return (folder.parent / "r.html").read_text(), (folder.parent / "r.md").read_text()


def changed(folder: Path, verdict: Verdict, **fields: Any) -> None:
    """Give a result folder another verdict."""
    text = verdict.model_copy(update=fields).to_json()
    (folder / result_folder.SUMMARY_FILE).write_text(text)


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """A real comparison, its traces beside it."""
    about = header(SITES, token_text={"7": " seven", "8": " eight"})
    parted = sequence(1, len(SITES))
    parted.tokens[8] = 7
    write_trace(tmp_path / "a.parquet", [sequence(1, len(SITES))], about)
    write_trace(tmp_path / "b.parquet", [parted], about)
    diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "result")
    return tmp_path / "result"


def test_the_traces_are_found_where_they_were_compared(compared: Path) -> None:
    for text in document(compared):
        assert "seven" in text
        assert "was not read" not in text


def test_the_traces_are_found_beside_a_result_that_was_moved(compared: Path, tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet", "result"):
        (tmp_path / "moved").mkdir(exist_ok=True)
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    for text in document(tmp_path / "moved" / "result"):
        assert "seven" in text


def test_without_its_traces_a_report_says_so_and_shows_the_rest(compared: Path, tmp_path: Path) -> None:
    (tmp_path / "b.parquet").unlink()
    missing = write_report(compared, tmp_path / "r.html")
    assert len(missing) == 1
    assert missing[0].startswith("Trace B was not read (")
    assert "b.parquet does not exist" in missing[0]
    for text in document(compared):
        assert "Trace B was not read" in text
        assert "Trace A was not read" not in text


def test_another_trace_at_the_same_place_is_not_taken_for_it(compared: Path, tmp_path: Path) -> None:
    about = header(SITES, token_text={"7": " somebody else's words"})
    write_trace(tmp_path / "b.parquet", [sequence(2, len(SITES))], about)
    for text in document(compared):
        assert "is not the trace that was compared" in text
        assert "somebody else" not in text


def zoomed(state: str) -> Zoom:
    tensor = ZoomTensor(name="mat2", shape=[1, 576], stride=[576, 1], dtype="bfloat16", device="cpu")
    op = ZoomOp(op="aten.mm.default", module="layers.2.mlp.gate_proj", occurrence=0, inputs=[tensor])
    finding = OpFinding(
        kind="op",
        shows=Sentence(text="aten.mm.default gives another output for equal inputs <here>"),
        a=[op],
        b=[op],
        max_abs_diff=0.25,
        differing=3,
        elements=1536,
        matched=9,
        hints_a={"threads": "1"},
        hints_b={"threads": "2"},
    )
    origin = TransplantedSite(site="layers.2.mlp.gate_proj", positions=12, first=13, last=24)
    return Zoom(
        request_id="req-1",
        sample=0,
        position=13,
        site="layers.2.mlp.gate_proj",
        a=SideCheck(state="repeated", rows=300),
        b=SideCheck(state="repeated", rows=300),
        seen_again=True,
        finding=finding,
        transplant=Transplant.model_validate(
            {"state": state, "origins": [origin], "last": 24, "logits": 18, "logits_equal": 18}
        ),
    )


def test_a_transplant_that_proves_the_origin_comes_first_and_in_the_summary(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())
    changed(tmp_path / "result", verdict, zoom=zoomed("proven"))
    for text in document(tmp_path / "result"):
        assert "by experiment: with A" in text
        assert "s rows put in at layers.2.mlp.gate_proj, B follows A to position 24" in text
        assert text.index("Transplant (activation patching): proven") < text.index(
            "Zoom into layers.2.mlp.gate_proj"
        )
        assert "aten.mm.default gives another output for equal inputs &lt;here" in text
        assert "threads 1 in A, 2 in B" in text


def test_a_transplant_that_proves_nothing_is_not_called_a_proof(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())
    changed(tmp_path / "result", verdict, zoom=zoomed("not proven"))
    for text in document(tmp_path / "result"):
        assert "Transplant (activation patching): not proven" in text
        assert "by experiment: with A" not in text
        assert "likely, not proven" in text


def test_the_reference_is_shown_with_its_numbers(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())
    assert proofs(verdict) == []
    place = ReferenceSite(
        site="layers.2.mlp", request_id="req-1", sample=0, position=9, ratio=4.5, low=3.1, high=6.2, rows=40
    )
    reference = Reference(
        path="golden.parquet",
        verdict="B is farther",
        sentence="B is farther than A by ×4.5 from layers.2.mlp on",
        dtype_a="bfloat16",
        dtype_b="bfloat16",
        dtype_reference="float32",
        rows=40,
        covered=41,
        sites=30,
        sites_farther=12,
        first=place,
    )
    changed(tmp_path / "result", verdict, reference=reference)
    for text in document(tmp_path / "result"):
        assert "Against the reference: B is farther" in text
        assert "× 4.5" in text
        assert "3.1 to 6.2" in text
        assert "12 of 30" in text


def test_patterns_are_shown_for_several_sequences_and_for_one_not(tmp_path: Path) -> None:
    verdict = results.write_result(tmp_path / "result", results.Scene())
    share = Proportion(count=3, of=12, share=0.25, low=0.09, high=0.53)
    patterns = Patterns(
        sequences=12,
        diverging=share,
        survival=[
            SurvivalPoint(step=4, at_risk=12, share=0.92, low=0.54, high=0.99),
            SurvivalPoint(step=17, at_risk=9, share=0.75, low=0.4, high=0.9),
        ],
        causes={"batch-shape": 3},
        watched_site="layers.3",
        growth=1.5,
        jumps=1,
        jump=DriftJump(
            request_id="req-1", sample=0, position=20, step=12, site="layers.1", drift=0.1, before=0.01
        ),
    )
    changed(tmp_path / "result", verdict, patterns=patterns)
    html, markdown = document(tmp_path / "result")
    for text in (html, markdown):
        assert "3 of 12: 0.25 (0.09 to 0.53)" in text
        assert "0.400 to 0.900" in text
        assert "Different batch shape" in text
        assert "the largest jump is at step 12 (position 20) of request req-1, at layers.1" in text
    assert 'class="curve"' in html
    few = patterns.model_copy(update={"sequences": 3})
    changed(tmp_path / "result", verdict, patterns=few)
    for text in document(tmp_path / "result"):
        assert "Drift jumps in 1 sequence" in text  # a jump is a clue, however few the sequences
        assert "interval" not in text
    changed(tmp_path / "result", verdict, patterns=few.model_copy(update={"jump": None}))
    for text in document(tmp_path / "result"):
        assert "Patterns over the sequences" not in text


def test_changes_stand_under_their_rule_the_most_serious_first() -> None:
    def change(name: str, risk: str | None, rule: str, *sources: str) -> Change:
        said = {"section": "s", "field": name, "before": fact("1", "t"), "after": fact("2", "t")}
        return Change.model_validate(said | {"risk": risk, "rule": rule, "sources": list(sources)})

    groups = group_by_rule(
        [
            change("harmless", None, "it only names the host"),
            change("threads", "bitwise", "reduction order", "https://example.org/a"),
            change("cores", "bitwise", "reduction order", "https://example.org/a"),
            change("weights", "semantic", "other weights"),
        ],
        limit=3,
    )
    assert [(group.risk, [name for name, _, _ in group.fields]) for group in groups] == [
        ("semantic at risk", ["s.weights"]),
        ("bitwise at risk", ["s.threads", "s.cores"]),
    ]
    assert groups[1].sources == ["example.org/a"]  # no link


def test_a_comparison_by_text_alone_has_a_timeline_and_says_what_it_cannot_know(tmp_path: Path) -> None:
    abilities = EngineAbilities(modes=["free"], seed=True, token_ids=False, logprobs="none")
    for name, text in (("a", "The answer is 4."), ("b", "The answer is 5.")):
        about = header([], abilities=abilities, results=[result(text)])
        write_trace(tmp_path / f"{name}.parquet", [], about)
    verdict = diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "result")
    assert verdict.first_text is not None
    for text in document(tmp_path / "result"):
        assert "The answer differs as text: r0 character 14" in text
        assert "replay both on an engine that returns token ids" in text
        assert "so numbers are unknown" in text
        assert "The texts of request r0 diverge" in text


def test_prompts_that_differ_are_named_and_no_choice_is_weighed(tmp_path: Path) -> None:
    other = sequence(1, len(SITES))
    other.tokens[2] = 7
    write_trace(tmp_path / "a.parquet", [sequence(1, len(SITES))], header(SITES))
    write_trace(tmp_path / "b.parquet", [other], header(SITES))
    diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "result")
    for text in document(tmp_path / "result"):
        assert "in the prompt of r0, position 2" in text
        assert "near tie" not in text
        assert "margins 3" not in text
