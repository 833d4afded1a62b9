"""Sentences on a zoom: every kind of finding has one, they are made last, and old documents keep theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.findings import kinds_of
from rip.diverge.present.zoom import SENTENCES, sentence, zoom_lines, zoom_with_sentences
from rip.schemas.findings import ops
from rip.schemas.findings.statement import Location, Sentence, Statement
from rip.schemas.verdict import Verdict
from rip.schemas.zoom import InputOf, OpFinding, SideCheck, Transplant, TransplantedSite, Zoom

GOLDEN = Path(__file__).parent.parent / "golden"
MM, UP = "aten.mm.default", "layers.1.mlp.up_proj"
ROW = Location(position=3, site=UP)

EXAMPLES: dict[str, Statement] = {
    "an old sentence": Sentence(text="an old sentence"),
    f"{MM} in {UP}: equal inputs, different output": ops.OpDiffers(op=MM, module=UP),
    f"{MM} in the model itself: equal inputs, different output; its arguments differ: none in A, eps=1 in B "
    "(not compared: self)": ops.OpDiffers(op=MM, module="", arguments_b="eps=1", not_compared=["self"]),
    f"different ops in {UP}, with equal inputs and a different output: a in A, b → c → d → e → f → g … "
    "(1 more) in B": ops.OpsDiffer(module=UP, a=["a"], b=list("bcdefgh")),
    f"different ops in {UP}, with equal inputs and a different output: only B runs b before {MM}": (
        ops.OpsDiffer(module=UP, a=[], b=["b"], before=MM)
    ),
    f"the weight w has different values in B; {MM} in {UP} only reads it": ops.WeightDiffers(
        tensor="w", dtype_a="float32", dtype_b="float32", op=MM, module=UP
    ),
    f"the weight w is float32 in A and bfloat16 in B; {MM} in {UP} only reads it": ops.WeightDiffers(
        tensor="w", dtype_a="float32", dtype_b="bfloat16", op=MM, module=UP
    ),
    f"the input 'mask' of {MM} in {UP} already differs, and it was made before this pass (a KV cache, "
    "positions, a mask)": ops.InputDiffers(tensor="mask", op=MM, module=UP, made_by="before this pass"),
    f"the input 'mask' of {MM} in {UP} already differs, and a different module of this pass made it": (
        ops.InputDiffers(tensor="mask", op=MM, module=UP, made_by="different module")
    ),
    "none of the 9 ops that both sides run is known to differ; 2 run on one side only; 1 could not be "
    "compared": ops.NoOpDiffers(matched=9, one_side=2, not_comparable=1),
    "the runs are equal, rows and logits": ops.RunsEqual(),
    "no rows of A were kept": ops.NotTransplanted(kind="no rows kept"),
    f"{UP} at position 3 still differs, and A's row does not fit there": ops.StillDiffers(at=ROW),
    f"2 sites have a different dtype in B, so their hashes always differ: first {UP}": ops.SitesRetyped(
        sites=2, first=UP
    ),
    "the re-runs are equal, rows and logits: the difference of the traces was not reproduced": (
        ops.NotReproduced()
    ),
    f"the traces differ first at {UP} at position 3, the re-runs at the logits at position 4: what follows "
    "is about the re-runs": ops.FoundElsewhere(recorded=ROW, found=Location(position=4), is_origin=True),
    f"in the traces the first observed difference is {UP} at position 3, which is not an origin; the "
    "re-runs observe every site, and differ first at the logits at position 4": ops.FoundElsewhere(
        recorded=ROW, found=Location(position=4), is_origin=False
    ),
    "the files of ./model have changed since a.parquet was recorded": ops.ModelFilesChanged(
        model="./model", trace="a.parquet"
    ),
}


def test_every_kind_of_finding_of_a_zoom_has_a_sentence() -> None:
    kinds = {kind for union in (ops.OpsShow, ops.NotProven, ops.ZoomNote) for kind in kinds_of(union)}
    assert set(SENTENCES) == kinds == {type(example) for example in EXAMPLES.values()}


@pytest.mark.parametrize("said", EXAMPLES)
def test_a_finding_of_a_zoom_is_said_and_survives_json(said: str) -> None:
    example = EXAMPLES[said]
    assert sentence(example) == said
    assert type(example).model_validate_json(example.model_dump_json()) == example


def zoomed() -> Zoom:
    shows = ops.OpDiffers(op=MM, module=UP)
    return Zoom(
        request_id="r",
        sample=0,
        position=3,
        site=UP,
        a=SideCheck(state="repeated", rows=9),
        b=SideCheck(state="not repeated", rows=4, where=ROW),
        seen_again=True,
        finding=OpFinding(kind="op", shows=shows, through=InputOf(op="aten.add", module="", tensor="self")),
        transplant=Transplant(
            state="not proven",
            origins=[TransplantedSite(site=UP, positions=1, first=3, last=3)],
            why=ops.NotTransplanted(kind="no logits"),
        ),
        notes=[ops.NotReproduced()],
    )


def test_a_written_zoom_has_each_sentence_beside_its_data() -> None:
    found, worded = zoomed(), zoom_with_sentences(zoomed())
    assert worded.finding
    assert worded.finding.shows.text == (
        "the input 'self' of aten.add in the model itself already differs: "
        f"{MM} in {UP}: equal inputs, different output"
    )
    assert worded.transplant.why
    assert worded.transplant.why.text == "no logits were computed from the first difference on"
    assert worded.b.where
    assert worded.b.where.text == f"position 3 site {UP}"
    assert [note.text for note in worded.notes] == [sentence(note) for note in found.notes]
    assert zoom_lines(worded) == zoom_lines(found)


def test_a_zoom_of_version_2_keeps_what_it_said() -> None:
    old: dict[str, Any] = json.loads((GOLDEN / "verdict-v2.json").read_text("utf-8"))
    check = {"state": "not repeated", "rows": 4, "where": "position 3 site layers.1"}
    old["zoom"] = {
        **{"request_id": "r", "sample": 0, "position": 3, "site": UP, "seen_again": True},
        **{"a": {"state": "repeated", "rows": 9}, "b": check, "notes": ["a note"]},
        "finding": {"kind": "op", "sentence": "an op differs", "matched": 9},
        "transplant": {"state": "not proven", "why": "a row differs"},
    }
    verdict = Verdict.from_object(old, "v2")
    assert verdict.schema_name() == "rip.verdict/3"
    assert verdict.unknown_fields() == []
    assert verdict.zoom
    lines = zoom_lines(verdict.zoom)
    assert lines[0].endswith("a row differs")
    assert lines[1] == "op: an op differs"
    assert lines[-2].endswith("the row at position 3 site layers.1 differs")
    assert lines[-1] == "a note"
    assert zoom_lines(zoom_with_sentences(verdict.zoom)) == lines
